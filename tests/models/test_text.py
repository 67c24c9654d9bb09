"""The text tower against its definition, in float64, every size a different prime."""

from dataclasses import asdict, replace

import numpy as np
import pytest
import torch

from reference.random_weights import randomise
from reference.text import embedding
from vitlab.errors import ConfigError, InputError
from vitlab.models.text import TextConfig, TextTower

SMALL = TextConfig(
    width=3 * 5, depth=2, heads=3, mlp_width=13, vocabulary=23, context=7, embedding=11
)
EOS = 19
CASES = {
    "clip": replace(SMALL, gelu="quick"),
    "first end": replace(SMALL, pool="eos", eos=EOS, norm_eps=1e-2, layer_scale=1e-5),
    "siglip": replace(
        SMALL, causal=False, pool="last", projection_bias=True, gelu="tanh", task="multi-label"
    ),
    "first, unprojected": replace(SMALL, causal=False, pool="first", embedding=None, depth=1),
    "causal, last": replace(SMALL, pool="last", depth=3),
}


def tower_of(config: TextConfig) -> TextTower:
    tower = TextTower(config).double().eval()
    randomise(tower)
    return tower


def tokens_of(config: TextConfig) -> torch.Tensor:
    generator = torch.Generator().manual_seed(3)
    tokens = torch.randint(0, EOS, (5, config.context), generator=generator)
    for row, end in enumerate((2, 6, 3, 0, 5)):
        tokens[row, end] = EOS
    tokens[1, 2:4] = EOS  # the first of several ends counts
    return tokens


@pytest.mark.parametrize("case", CASES)
def test_forward_matches_the_definition(case: str) -> None:
    config = CASES[case]
    tower, tokens = tower_of(config), tokens_of(config)
    with torch.no_grad():
        found = tower(tokens)
    assert found.std() > 1e-2
    arrays = {name: tensor.numpy() for name, tensor in tower.state_dict().items()}
    expected = [embedding(text, arrays, asdict(config)) for text in tokens.tolist()]
    np.testing.assert_allclose(found.numpy(), np.stack(expected), rtol=1e-9, atol=1e-9)


def test_what_follows_the_end_of_a_text_does_not_matter_to_clip() -> None:
    tower, tokens = tower_of(CASES["clip"]), tokens_of(CASES["clip"])
    other = tokens.clone()
    other[2, 4:] = 1
    with torch.no_grad():
        torch.testing.assert_close(tower(other), tower(tokens))
        changed = tokens.clone()
        changed[2, 1] = (changed[2, 1] + 1) % EOS
        assert not torch.allclose(tower(changed)[2], tower(tokens)[2])


def test_a_tower_of_a_sigmoid_has_a_bias() -> None:
    assert TextTower(CASES["siglip"]).logit_bias is not None
    assert TextTower(CASES["clip"]).logit_bias is None


def test_tokens_that_do_not_fit_raise() -> None:
    clip, siglip = tower_of(CASES["clip"]), tower_of(CASES["siglip"])
    with pytest.raises(InputError, match=r"shape \[1, 8\]; valid: \[texts, 1 to 7\]"):
        clip(torch.zeros(1, 8, dtype=torch.long))
    with pytest.raises(InputError, match=r"shape \[1, 6\]; valid: \[texts, 7\]"):
        siglip(torch.zeros(1, 6, dtype=torch.long))
    with pytest.raises(InputError, match="token 23 for a text tower of 23 tokens"):
        clip(torch.full((1, 7), 23))


def test_impossible_configs_raise() -> None:
    with pytest.raises(ConfigError, match="width 15 of a text tower does not split into 2 heads"):
        replace(SMALL, heads=2)
    with pytest.raises(ConfigError, match="needs the number of that token"):
        replace(SMALL, pool="eos")
    with pytest.raises(ConfigError, match="context 0 of a text tower; valid: from 1"):
        replace(SMALL, context=0)

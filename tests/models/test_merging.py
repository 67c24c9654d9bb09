"""Models that merge tokens, against the plain definition; models that cannot, refused."""

from dataclasses import asdict, replace
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from models.vit_cases import CASES
from reference.merging import merging_vit
from reference.random_weights import randomise
from vitlab.errors import InputError
from vitlab.models.config import ViTConfig, pair
from vitlab.models.cost import count_flops
from vitlab.models.merging import MergingTransformer, merging
from vitlab.models.variants import create_model
from vitlab.models.vit import VisionTransformer

B = 3
# Both sides compute in float64; they differ in the order of their sums alone.
TOLERANCE = 1e-10
REFUSED = {
    "lsa": "attention 'lsa' does not treat all tokens alike",
    "sliding": "attention 'sliding' does not treat all tokens alike",
    "axial": "attention 'axial' does not treat all tokens alike",
    "sparse": "attention 'sparse' does not treat all tokens alike",
    "relative": "position 'relative' is about the offset between two patches",
    "relative_bias": "position 'relative_bias' is about the offset between two patches",
    "conditional_every": "position 'conditional' at 'every_layer' needs the whole grid",
    "conditional_shared": "position 'conditional' at 'shared_layers' needs the whole grid",
}


def mergeable(config: ViTConfig) -> bool:
    apart = config.position in ("relative", "relative_bias")
    whole = config.position == "conditional" and config.position_at != "stem"
    apart = apart or config.relative_table != "none"
    return config.attention == "full" and config.depth > 0 and not apart and not whole


MERGEABLE = [name for name, config in CASES.items() if mergeable(config)]


def build(case: str) -> tuple[VisionTransformer, torch.Tensor]:
    """The model of a case, four blocks deep, with weights that leave no part silent; images."""
    config = replace(CASES[case], depth=4)
    model = VisionTransformer(config).double().eval()
    randomise(model)
    generator = torch.Generator().manual_seed(1)
    shape = (B, config.channels, *pair(config.image_size))
    return model, torch.randn(shape, dtype=torch.float64, generator=generator)


@pytest.mark.parametrize("case", MERGEABLE)
def test_logits_match_the_definition(case: str) -> None:
    model, images = build(case)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    # In every third case so many that hardly a token is left.
    count = 1000 if MERGEABLE.index(case) % 3 == 2 else 3
    with torch.inference_mode():
        found = merging(model, count)(images)
    answers = merging_vit(model.state_dict(), asdict(model.config), count)(images)
    expected = torch.tensor([answer.logits.tolist() for answer in answers], dtype=torch.float64)
    torch.testing.assert_close(found, expected, atol=TOLERANCE, rtol=TOLERANCE)
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())


def test_the_cases_are_what_merging_must_know() -> None:
    configs = [CASES[case] for case in MERGEABLE]
    pools = {"cls", "mean", "mean_all", "map", "map_patches", "cls_mean", "cls_dist"}
    assert {config.pool for config in configs} == pools
    assert {config.norm for config in configs} == {"pre", "post", "res_post"}
    assert {"rope", "none", "learned2d", "sincos2d"} <= {config.position for config in configs}
    assert {config.position_at for config in configs} == {"stem", "every_layer", "shared_layers"}
    assert any(config.registers and config.class_token for config in configs)
    assert any(not config.prefix for config in configs)
    assert any(config.pool_after for config in configs)


def test_without_merging_it_is_the_model_itself() -> None:
    model, _ = build("paper")
    assert merging(model, 0) is model


def test_merging_nothing_gives_what_the_plain_model_gives() -> None:
    for case in ("paper", "pooled_gap", "rope_registers", "map", "learned2d_every"):
        model, images = build(case)
        with torch.inference_mode():
            found = MergingTransformer(model, 0)(images)
            torch.testing.assert_close(found, model(images), atol=TOLERANCE, rtol=TOLERANCE)


def test_an_image_is_answered_the_same_in_any_batch() -> None:
    model, images = build("learned2d_gap")
    merged = merging(model, 3)
    with torch.inference_mode():
        alone = torch.cat([merged(image[None]) for image in images])
        torch.testing.assert_close(merged(images), alone, atol=TOLERANCE, rtol=TOLERANCE)


def test_attention_stays_fused() -> None:
    config = replace(CASES["paper"], image_size=(30, 28))
    model = merging(VisionTransformer(config).eval(), 5)
    images = torch.randn(B, config.channels, *pair(config.image_size))
    called = Called()
    with torch.no_grad(), called:  # inference mode would hide what an operation is made of
        model(images)
    fused = called.names.count("aten::_scaled_dot_product_flash_attention_for_cpu")
    assert fused == config.depth
    assert "aten::_softmax" not in called.names


class Called(TorchDispatchMode):
    """The operations that are called."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(func.name().partition(".")[0])
        return func(*args, **(kwargs or {}))


def test_fewer_tokens_cost_less() -> None:
    config = replace(CASES["gap_registers"], depth=3)
    model = VisionTransformer(config).eval()
    plain, merged = (
        count_flops(merging(model, r), config.image_size, config.channels) for r in (0, 4)
    )
    assert merged - blocks(config, 4) == plain - blocks(config, 0)


def blocks(config: ViTConfig, count: int) -> int:
    """FLOPs of the encoder blocks, 2 for each multiply-add."""
    inner, patches, total = config.heads * config.key_width, config.tokens - config.prefix, 0
    for _ in range(config.depth):
        tokens = config.prefix + patches
        total += 2 * tokens * config.width * 4 * inner  # queries, keys, values, projection
        total += 2 * tokens * tokens * 2 * inner  # scores and mixing
        if count:
            total += 2 * (patches // 2) * (patches - patches // 2) * config.key_width
        patches -= min(count, patches // 2)
        total += 2 * (config.prefix + patches) * config.width * 2 * config.mlp_width
    return total


@pytest.mark.parametrize(("case", "reason"), REFUSED.items())
def test_a_model_that_cannot_is_refused(case: str, reason: str) -> None:
    with pytest.raises(InputError) as caught:
        merging(VisionTransformer(CASES[case]), 2)
    assert str(caught.value).startswith(f"merge_tokens 2: {reason}; valid: 0, or a Vision")


def test_other_models_are_refused() -> None:
    with pytest.raises(InputError, match="a ResNet has no tokens that could be merged"):
        merging(create_model("resnet18_cifar"), 2)
    with pytest.raises(InputError, match="the model has no encoder blocks"):
        merging(VisionTransformer(replace(CASES["paper"], depth=0)), 2)
    with pytest.raises(InputError, match="merge_tokens -1; valid: 0"):
        merging(nn.Linear(1, 1), -1)

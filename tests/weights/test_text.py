"""Text towers of transformers and OpenCLIP through ours: same embeddings, every tensor used."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import vitlab
from reference.foreign import TOLERANCE
from reference.random_weights import randomise
from reference.torchvision_ops import declare
from vitlab.errors import VitlabError, WeightsError
from vitlab.models.text import TextTower
from vitlab.weights.formats import text_huggingface, text_open_clip
from vitlab.weights.text import load_text

declare()
transformers = pytest.importorskip("transformers")

VISION: dict[str, Any] = {"hidden_size": 24, "num_attention_heads": 3, "intermediate_size": 40} | {
    "num_hidden_layers": 1,
    "image_size": 28,
    "patch_size": 14,
}
# Every axis of a tower has its own size, and each tower its own.
TEXTS: dict[str, dict[str, Any]] = {
    "three heads": {"hidden_size": 21, "num_attention_heads": 3, "intermediate_size": 40}
    | {"num_hidden_layers": 3, "vocab_size": 29, "max_position_embeddings": 11},
    "one block": {"hidden_size": 20, "num_attention_heads": 5, "intermediate_size": 28}
    | {"num_hidden_layers": 1, "vocab_size": 31, "max_position_embeddings": 7}
    | {"hidden_act": "gelu", "layer_norm_eps": 1e-3},
    "deep": {"hidden_size": 16, "num_attention_heads": 1, "intermediate_size": 12}
    | {"num_hidden_layers": 5, "vocab_size": 37, "max_position_embeddings": 13},
}
END = 28


def tokens_of(vocabulary: int, length: int) -> Tensor:
    """Texts that end with the highest number, at different places."""
    generator = torch.Generator().manual_seed(5)
    tokens = torch.randint(3, vocabulary - 1, (4, length), generator=generator)
    for row, end in enumerate((length - 1, 2, 4, 0)):
        tokens[row, end] = vocabulary - 1
    return tokens


def saved(theirs: nn.Module, folder: Path) -> vitlab.VisionTransformer:
    """Image tower of a folder of transformers' with every parameter random."""
    randomise(theirs)
    theirs.save_pretrained(folder)
    return vitlab.load_weights(folder)


def same_embeddings(found: Tensor, expected: Tensor) -> None:
    assert expected.std() > 1e-2, "a silent model proves nothing"
    largest = max(1.0, float(expected.abs().max()))
    torch.testing.assert_close(found, expected, rtol=0.0, atol=TOLERANCE * largest)


def same_tensors_back(tower: TextTower, rules: Any, theirs: dict[str, Tensor]) -> None:
    """Reversed, the rules give every tensor of theirs bit for bit, and no other."""
    state = tower.state_dict()
    found: dict[str, Tensor] = {}
    for rule in rules:
        tensors = rule.to_theirs([state[name] for name in rule.ours])
        found.update(zip(rule.theirs, tensors, strict=True))
    assert set(found) == set(theirs)
    for name, tensor in theirs.items():
        assert torch.equal(found[name], tensor), name


def text_part(model: nn.Module) -> dict[str, Tensor]:
    prefixes = ("text_model.", "text_projection.", "logit_")
    return {n: t for n, t in model.state_dict().items() if n.startswith(prefixes)}


@pytest.mark.parametrize("eos", [2, "highest"])
@pytest.mark.parametrize("case", TEXTS)
def test_clip_of_transformers(case: str, eos: int | str, tmp_path: Path) -> None:
    size = TEXTS[case]
    end = size["vocab_size"] - 1 if eos == "highest" else 2
    text = {"bos_token_id": 0, "pad_token_id": 1, "eos_token_id": end, **size}
    config = transformers.CLIPConfig(text_config=text, vision_config=VISION, projection_dim=19)
    theirs = transformers.CLIPModel(config).eval()
    image = saved(theirs, tmp_path)
    tower = load_text(image.source, image.config)
    assert tower.config.pool == ("argmax" if eos == 2 else "eos")
    assert tower.config.task == "single-label"
    tokens = tokens_of(size["vocab_size"], size["max_position_embeddings"])
    with torch.no_grad():
        expected = theirs.get_text_features(input_ids=tokens).pooler_output
        same_embeddings(tower(tokens), expected)
    assert torch.equal(tower.logit_scale, theirs.logit_scale)
    same_tensors_back(tower, text_huggingface.rules(tower.config, frozenset()), text_part(theirs))


@pytest.mark.parametrize("case", TEXTS)
def test_siglip_of_transformers(case: str, tmp_path: Path) -> None:
    text = TEXTS[case] | {"projection_size": VISION["hidden_size"]}
    config = transformers.SiglipConfig(text_config=text, vision_config=VISION)
    theirs = transformers.SiglipModel(config).eval()
    image = saved(theirs, tmp_path)
    tower = load_text(image.source, image.config)
    assert (tower.config.pool, tower.config.causal) == ("last", False)
    assert tower.config.task == "multi-label"
    tokens = tokens_of(text["vocab_size"], text["max_position_embeddings"])
    with torch.no_grad():
        expected = theirs.get_text_features(input_ids=tokens).pooler_output
        same_embeddings(tower(tokens), expected)
    assert tower.logit_scale.item() == theirs.logit_scale.item()
    assert tower.logit_bias is not None
    assert tower.logit_bias.item() == theirs.logit_bias.item()
    rules = text_huggingface.rules(tower.config, frozenset([text_huggingface.VECTOR]))
    same_tensors_back(tower, rules, text_part(theirs))


# OpenCLIP

CLIPS: dict[str, dict[str, Any]] = {
    "clip": {"text_cfg": {"width": 21, "heads": 3, "layers": 3, "mlp_ratio": 2.0}},
    "quick": {"quick_gelu": True, "text_cfg": {"width": 20, "heads": 5, "layers": 1}},
    "scaled": {"text_cfg": {"width": 16, "heads": 2, "layers": 5, "ls_init_value": 0.1}},
    "custom": {
        "custom_text": True,
        "text_cfg": {"width": 18, "heads": 3, "layers": 2, "pool_type": "eos", "eos_id": END},
    },
    "sigmoid": {
        "custom_text": True,
        "init_logit_bias": -10.0,
        "text_cfg": {"width": 22, "heads": 2, "layers": 2, "no_causal_mask": True}
        | {"proj_bias": True, "pool_type": "last", "norm_kwargs": {"eps": 1e-4}}
        | {"act_kwargs": {"approximate": "tanh"}},
    },
}


def open_clip_model(case: str, folder: Path) -> tuple[nn.Module, vitlab.VisionTransformer]:
    """Their model, and our image tower of a folder with its config."""
    open_clip = pytest.importorskip("open_clip")
    given = CLIPS[case]
    vision = {"width": 24, "head_width": 8, "layers": 2, "patch_size": 14, "image_size": 28}
    text = {"context_length": 11, "vocab_size": 29, **given["text_cfg"]}
    config = {**given, "embed_dim": 17, "vision_cfg": vision, "text_cfg": text}
    arguments = {key: value for key, value in config.items() if key != "custom_text"}
    kind = open_clip.CustomTextCLIP if given.get("custom_text") else open_clip.CLIP
    theirs = kind(**arguments).eval()
    randomise(theirs)
    torch.save(theirs.state_dict(), folder / "open_clip_pytorch_model.bin")
    (folder / "open_clip_config.json").write_text(json.dumps({"model_cfg": config}))
    gelu = "quick" if given.get("quick_gelu") else "erf"
    return theirs, vitlab.load_weights(folder, heads=3, gelu=gelu)


@pytest.mark.parametrize("case", CLIPS)
def test_open_clip(case: str, tmp_path: Path) -> None:
    theirs, image = open_clip_model(case, tmp_path)
    tower = load_text(image.source, image.config)
    tokens = tokens_of(29, 11)
    with torch.no_grad():
        same_embeddings(tower(tokens), theirs.encode_text(tokens))
    assert tower.logit_scale.item() == theirs.logit_scale.item()
    dialect = {"text."} if case in ("custom", "sigmoid") else set()
    dialect |= {"linear"} if case == "sigmoid" else set()
    rules = text_open_clip.rules(tower.config, frozenset(dialect))
    state = {n: t for n, t in theirs.state_dict().items() if not n.startswith("visual.")}
    same_tensors_back(tower, rules, state)


def test_openais_own_state(tmp_path: Path) -> None:
    theirs, _ = open_clip_model("quick", tmp_path)
    numbers = {"input_resolution": 28, "context_length": 11, "vocab_size": 29}
    state = theirs.state_dict() | {n: torch.tensor(v) for n, v in numbers.items()}
    alone = tmp_path / "openai"
    alone.mkdir()
    torch.save(state, alone / "vit.pt")
    image = vitlab.load_weights(alone / "vit.pt", heads=3)
    tower = load_text(image.source, image.config)
    assert (tower.config.gelu, tower.config.heads) == ("quick", 1)  # heads of width 64
    assert tower.config.pool == "argmax"


# Mistakes


def clip_folder(folder: Path) -> dict[str, Tensor]:
    """Tensors of a small CLIP of transformers, whose config is in the folder."""
    size = TEXTS["one block"] | {"bos_token_id": 0, "pad_token_id": 1, "eos_token_id": 2}
    config = transformers.CLIPConfig(text_config=size, vision_config=VISION, projection_dim=19)
    model = transformers.CLIPModel(config)
    config.save_pretrained(folder)
    return dict(model.state_dict())


def load_state(state: dict[str, Tensor], folder: Path) -> TextTower:
    torch.save(state, folder / "a.pth")
    image = vitlab.load_weights(folder / "a.pth")
    return load_text(image.source, image.config)


def test_missing_and_unused_tensors_raise(tmp_path: Path) -> None:
    state = clip_folder(tmp_path)
    layer = "text_model.encoder.layers.0"
    lacking = {n: t for n, t in state.items() if n != f"{layer}.mlp.fc2.bias"}
    with pytest.raises(WeightsError, match=r"fc2.bias' \(20,\) is missing"):
        load_state(lacking, tmp_path)
    with pytest.raises(WeightsError, match=r"extra.weight' \(3,\) is not used"):
        load_state(state | {f"{layer}.extra.weight": torch.ones(3)}, tmp_path)
    with pytest.raises(WeightsError, match=r"shape \(29,\), expected \(28,\)"):
        load_state(state | {f"{layer}.mlp.fc1.bias": torch.ones(29)}, tmp_path)
    numbers = torch.arange(7)[None]
    found = load_state(state | {"text_model.embeddings.position_ids": numbers}, tmp_path)
    assert found.config.context == 7


def test_an_image_tower_alone_has_no_text_tower(tmp_path: Path) -> None:
    state = {n: t for n, t in clip_folder(tmp_path).items() if n.startswith("visi")}
    with pytest.raises(WeightsError, match="no text tower in it; valid: the weights of a whole"):
        load_state(state, tmp_path)
    model = vitlab.load_weights(state, heads=3)
    with pytest.raises(WeightsError, match="no text tower"):
        load_text(model.source, model.config)


def test_other_text_towers_are_named(tmp_path: Path) -> None:
    state = {n: t for n, t in clip_folder(tmp_path).items() if not n.startswith("text_model")}
    bert = {"text_model.encoder.layer.0.attention.self.query.weight": torch.ones(3, 3)}
    with pytest.raises(VitlabError, match="a text tower of another kind, by tensor 'text_model"):
        load_state(state | bert, tmp_path)


def test_config_of_another_model_is_refused(tmp_path: Path) -> None:
    state = clip_folder(tmp_path)
    path = tmp_path / "config.json"
    config = json.loads(path.read_text())
    for key, value, message in (
        ("hidden_act", "relu", "hidden_act 'relu' is not supported"),
        ("num_attention_heads", 3, "does not split into 3 heads"),
        ("layer_norm_eps", -1, "layer_norm_eps -1; valid: a positive number"),
    ):
        changed = {**config, "text_config": {**config["text_config"], key: value}}
        path.write_text(json.dumps(changed))
        with pytest.raises(VitlabError, match=message):
            load_state(state, tmp_path)
    path.write_text(json.dumps({**config, "text_config": 3}))
    with pytest.raises(VitlabError, match="text_config '3'; valid: an object"):
        load_state(state, tmp_path)


def test_without_a_config_assumptions_are_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    state = clip_folder(tmp_path)
    (tmp_path / "config.json").unlink()
    torch.save(state, tmp_path / "a.pth")
    image = vitlab.load_weights(tmp_path / "a.pth", heads=3, norm_eps=1e-5, gelu="quick")
    caplog.clear()
    load_text(image.source, image.config)
    (line,) = caplog.messages
    assert "assumed norm_eps 1e-05 of the text tower, 1 heads of the text tower" in line
    assert "put the publisher's config.json beside the file" in line

"""DeiT, BEiT, Data2Vec, MAE and MSN of transformers: published names, and those of release 5."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import vitlab
from reference.foreign import same_back, same_logits
from reference.random_weights import randomise
from reference.torchvision_ops import declare
from vitlab.errors import WeightsError
from vitlab.models.config import pair

declare()
transformers = pytest.importorskip("transformers")

SIZES: dict[str, dict[str, Any]] = {
    "three blocks": {"hidden_size": 60, "num_attention_heads": 5, "intermediate_size": 44}
    | {"num_hidden_layers": 3, "image_size": 42, "patch_size": 14},
    "one block": {"hidden_size": 20, "num_attention_heads": 5, "intermediate_size": 28}
    | {"num_hidden_layers": 1, "image_size": (12, 20), "patch_size": 4, "num_channels": 2},
    "tanh": {"hidden_size": 24, "num_attention_heads": 2, "intermediate_size": 96}
    | {"num_hidden_layers": 5, "image_size": (18, 30), "patch_size": 6, "hidden_act": "gelu_new"}
    | {"layer_norm_eps": 1e-3},
}
SQUARE = {name: size | {"image_size": pair(size["image_size"])[0]} for name, size in SIZES.items()}
OWN = {"use_relative_position_bias": True}
SHARED = {"use_shared_relative_position_bias": True}
TABLE = {"use_absolute_position_embeddings": True, "use_mean_pooling": False, **OWN}


def tokens(theirs: nn.Module) -> Callable[[Tensor], Tensor]:
    return lambda images: theirs(pixel_values=images).last_hidden_state


def logits(theirs: nn.Module) -> Callable[[Tensor], Tensor]:
    return lambda images: theirs(pixel_values=images).logits


def unmasked(theirs: nn.Module) -> Callable[[Tensor], Tensor]:
    """Tokens of a masked autoencoder that masks nothing, in their order."""

    def run(images: Tensor) -> Tensor:
        count = theirs.embeddings.patch_embeddings.num_patches
        noise = torch.arange(count).float().repeat(len(images), 1)
        found: Tensor = theirs(pixel_values=images, noise=noise).last_hidden_state
        return found

    return run


Case = tuple[str, str, dict[str, Any], dict[str, dict[str, Any]]]
CLASSES: dict[str, Case] = {
    "DeiT": ("DeiTModel", "DeiT", {}, SIZES),
    "DeiT classifier": ("DeiTForImageClassification", "DeiT", {"num_labels": 7}, SIZES),
    "DeiT distilled": ("DeiTForImageClassificationWithTeacher", "DeiT", {"num_labels": 7}, SIZES),
    "BEiT": ("BeitModel", "Beit", SHARED, SQUARE),
    "BEiT classifier": ("BeitForImageClassification", "Beit", OWN | {"num_labels": 7}, SQUARE),
    "BEiT with a table": ("BeitForImageClassification", "Beit", TABLE | {"num_labels": 7}, SQUARE),
    "Data2Vec": (
        "Data2VecVisionForImageClassification",
        "Data2VecVision",
        OWN | {"num_labels": 7},
        SQUARE,
    ),
    "MSN": ("ViTMSNModel", "ViTMSN", {}, SIZES),
    "MSN classifier": ("ViTMSNForImageClassification", "ViTMSN", {"num_labels": 7}, SIZES),
    "MAE": ("ViTMAEModel", "ViTMAE", {"mask_ratio": 0.0}, SQUARE),
}


def build(name: str, config: str, arguments: dict[str, Any]) -> nn.Module:
    theirs: nn.Module = getattr(transformers, name)(
        getattr(transformers, f"{config}Config")(**arguments)
    )
    randomise(theirs)
    return theirs.eval()


def answers(family: str, ours: vitlab.VisionTransformer, theirs: nn.Module) -> tuple[Any, Any]:
    """Functions that must agree: logits, or all tokens of a bare model."""
    if ours.config.classes:
        return ours, logits(theirs)
    features: Any = lambda images: ours.features(images).tokens  # noqa: E731
    return features, unmasked(theirs) if family == "MAE" else tokens(theirs)


@pytest.mark.parametrize("case", SIZES)
@pytest.mark.parametrize("family", CLASSES)
def test_both_generations_of_names(family: str, case: str, tmp_path: Path) -> None:
    name, config, changes, sizes = CLASSES[family]
    arguments = sizes[case] | changes
    theirs = build(name, config, arguments)
    theirs.save_pretrained(tmp_path / "folder")  # published names
    ours = vitlab.load_weights(tmp_path / "folder")
    assert ours.source.format == "huggingface"
    assert ours.source.assumed == ()
    side, channels = pair(arguments["image_size"]), ours.config.channels
    same_logits(*answers(family, ours, theirs), side, channels)

    torch.save(theirs.state_dict(), tmp_path / "new.pth")  # names of release 5
    fields = {name: getattr(ours.config, name) for name in ("heads", "norm_eps", "gelu")}
    new = vitlab.load_weights(tmp_path / "new.pth", image_size=arguments["image_size"], **fields)
    assert new.config == ours.config
    same_logits(*answers(family, new, theirs), side, channels)
    same_back(new, theirs, tmp_path, format="huggingface")

    vitlab.save_weights(ours, tmp_path / "ours", format="huggingface")
    again = vitlab.load_weights(tmp_path / "ours")
    assert again.config == ours.config
    written = set(file_names(tmp_path / "ours"))
    assert written == set(file_names(tmp_path / "folder"))


def file_names(folder: Path) -> list[str]:
    from safetensors import safe_open

    with safe_open(folder / "model.safetensors", "pt") as file:
        return [*file.keys()]


@pytest.mark.parametrize("family", ["DeiT distilled", "BEiT classifier", "BEiT with a table"])
def test_transformers_reads_what_we_write(family: str, tmp_path: Path) -> None:
    name, config, changes, sizes = CLASSES[family]
    theirs = build(name, config, sizes["tanh"] | changes)
    theirs.save_pretrained(tmp_path / "folder")
    ours = vitlab.load_weights(tmp_path / "folder")
    vitlab.save_weights(ours, tmp_path / "ours", format="huggingface")
    again = getattr(transformers, name).from_pretrained(tmp_path / "ours").eval()
    same_logits(ours, logits(again), pair(ours.config.image_size))


@pytest.mark.parametrize("name", ["ViTMAEForPreTraining", "ViTForMaskedImageModeling"])
def test_decoders_of_pretraining_are_left_out(name: str, tmp_path: Path) -> None:
    config = name.split("For")[0]
    theirs = build(name, config, SQUARE["three blocks"] | {"decoder_hidden_size": 64})
    theirs.save_pretrained(tmp_path)
    ours = vitlab.load_weights(tmp_path)
    assert any(tensor.startswith("decoder.") for tensor in ours.source.ignored)
    assert not any(tensor.startswith("vit.encoder") for tensor in ours.source.ignored)
    inner = theirs.vit
    run = unmasked(inner) if "MAE" in name else tokens(inner)
    if "MAE" in name:
        inner.config.mask_ratio = 0.0
    same_logits(lambda images: ours.features(images).tokens, run, (42, 42))


def test_beit_of_masked_pretraining(tmp_path: Path) -> None:
    arguments = SQUARE["tanh"] | SHARED | {"vocab_size": 9}
    theirs = build("BeitForMaskedImageModeling", "Beit", arguments)
    theirs.save_pretrained(tmp_path)
    ours = vitlab.load_weights(tmp_path)
    assert {"lm_head.weight", "lm_head.bias"} <= set(ours.source.ignored)

    def normed(images: Tensor) -> Tensor:
        found: Tensor = theirs.layernorm(theirs.beit(pixel_values=images).last_hidden_state)
        return found

    same_logits(lambda images: ours.features(images).tokens, normed, (18, 18))


def test_relative_positions_of_a_grid_that_is_not_square(tmp_path: Path) -> None:
    """transformers reads them with swapped sides; so do we, and they cannot be written back."""
    theirs = build("BeitForImageClassification", "Beit", SIZES["tanh"] | OWN | {"num_labels": 7})
    theirs.save_pretrained(tmp_path / "folder")
    ours = vitlab.load_weights(tmp_path / "folder")
    same_logits(ours, logits(theirs), (18, 30))
    with pytest.raises(WeightsError, match="with a grid of 3x5 patches; valid: a square"):
        vitlab.save_weights(ours, tmp_path / "back.safetensors", format="huggingface")

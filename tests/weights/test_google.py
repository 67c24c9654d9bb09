"""The original's checkpoints against what the original computes with them."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

import vitlab
from reference.random_weights import randomise
from vitlab.errors import VitlabError, WeightsError
from vitlab.weights.adapt import resize_table

MODELS = (
    "vit_token",
    "vit_token_prelogits",
    "vit_gap_linen_names",
    "hybrid_stem_only",
    "hybrid_two_stages",
)
TOLERANCE = 2e-5
"""Float32 sums in another order than XLA's; the encoded tokens are of order one."""


@pytest.fixture(scope="module")
def oracle(shared: Path) -> Path:
    return shared / "oracle" / "google_jax"


def test_no_model_of_the_oracle_is_forgotten(oracle: Path) -> None:
    assert set(json.loads((oracle / "models.json").read_text())) == set(MODELS)


@pytest.mark.parametrize("name", MODELS)
def test_logits_and_tokens_are_the_originals(name: str, oracle: Path, tmp_path: Path) -> None:
    spec = json.loads((oracle / "models.json").read_text())[name]
    model = vitlab.load_weights(oracle / f"{name}.npz", image_size=tuple(spec["image"]))
    assert sum(p.numel() for p in model.parameters()) == spec["params"]
    expected = np.load(oracle / f"{name}.expected.npz")
    images = torch.from_numpy(expected["images_nhwc"]).permute(0, 3, 1, 2)
    with torch.no_grad():
        logits, tokens = model(images), model.features(images).tokens
    for found, key in ((logits, "logits"), (tokens, "encoded")):
        torch.testing.assert_close(found, torch.from_numpy(expected[key]), rtol=0, atol=TOLERANCE)

    vitlab.save_weights(model, tmp_path / "back.npz", format="google")
    same_arrays(oracle / f"{name}.npz", tmp_path / "back.npz")


def same_arrays(one: Path, other: Path) -> None:
    with np.load(one) as a, np.load(other) as b:
        assert set(a.files) == set(b.files)
        for name in a.files:
            np.testing.assert_array_equal(a[name], b[name], strict=True)


def test_positions_are_resized_as_by_the_original(oracle: Path) -> None:
    tables = np.load(oracle / "position_resize.npz")
    cases = (
        ("in_14_cls", "out_14_to_24_cls", 14, 24),
        ("in_14_cls", "out_14_to_7_cls", 14, 7),
        ("in_8_nocls", "out_8_to_12_nocls", 8, 12),
    )
    for before, after, old, new in cases:
        table = torch.from_numpy(tables[before][0])
        found = resize_table(table, (old, old), (new, new), "zoom")
        expected = torch.from_numpy(tables[after][0])
        # Interpolated in float64 on both sides and rounded once.
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)


def config(**changes: Any) -> vitlab.ViTConfig:
    fields: dict[str, Any] = {
        "width": 40,
        "depth": 2,
        "heads": 5,
        "mlp_width": 56,
        "patch_size": 8,
        "image_size": (24, 40),
        "classes": 7,
        "gelu": "tanh",
    }
    return vitlab.ViTConfig(**{**fields, **changes})


def saved(path: Path, **changes: Any) -> vitlab.VisionTransformer:
    model = vitlab.VisionTransformer(config(**changes)).eval()
    randomise(model)
    vitlab.save_weights(model, path, format="google")
    return model


def same_models(one: vitlab.VisionTransformer, other: vitlab.VisionTransformer) -> None:
    names = set(one.state_dict())
    assert names == set(other.state_dict())
    for name in names:
        assert torch.equal(one.state_dict()[name], other.state_dict()[name]), name


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"head_width": 12},
        {"head": "mlp", "representation_size": 29},
        {"pool": "mean", "class_token": False},
        {"pool": "map", "class_token": False},
        {"position_prefix": "none"},
        {"classes": 0, "channels": 5},
        {"qkv_bias": False, "proj_bias": False},
        {"stem": "resnet", "resnet_layers": (1, 1), "resnet_width": 32, "patch_size": (3, 5)},
    ],
)
def test_ours_there_and_back(changes: dict[str, Any], tmp_path: Path) -> None:
    ours = saved(tmp_path / "a.npz", **changes)
    again = vitlab.load_weights(tmp_path / "a.npz", image_size=(24, 40))
    same_models(ours, again)
    assert again.config == config(**changes, position_resize="zoom")


def rewrite(path: Path, change: Any) -> None:
    with np.load(path) as file:
        arrays = {name: file[name] for name in file.files}
    np.savez(path, **change(arrays))


@pytest.mark.parametrize("prefix", ["opt/target/", "params/"])
def test_training_states(prefix: str, tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    ours = saved(path)

    def wrap(arrays: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        wrapped = {prefix + name: array for name, array in arrays.items()}
        return wrapped | {"opt/state/step": np.zeros(())}

    rewrite(path, wrap)
    same_models(ours, vitlab.load_weights(path, image_size=(24, 40)))


def test_bfloat16_comes_as_bytes_without_meaning(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    ours = saved(path)

    def shorten(arrays: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        return {name: as_void(torch.from_numpy(array)) for name, array in arrays.items()}

    rewrite(path, shorten)
    again = vitlab.load_weights(path, image_size=(24, 40))
    for name, tensor in ours.state_dict().items():
        assert torch.equal(again.state_dict()[name], tensor.bfloat16().float()), name


def as_void(tensor: Tensor) -> NDArray[Any]:
    array: NDArray[Any] = tensor.bfloat16().view(torch.int16).numpy().view("V2")
    return array


def test_a_zero_head_is_seen_and_refuses_to_predict(tmp_path: Path) -> None:
    model = vitlab.VisionTransformer(config())
    randomise(model)
    assert model.head is not None
    with torch.no_grad():
        model.head.weight.zero_()
        model.head.bias.zero_()
    vitlab.save_weights(model, tmp_path / "imagenet21k_ViT-B_16.npz", format="google")
    loaded = vitlab.load_weights(tmp_path / "imagenet21k_ViT-B_16.npz", image_size=(24, 40))
    assert loaded.source.zero_head
    with pytest.raises(VitlabError, match="every weight of the head is zero"):
        loaded.source.require_head()
    preparation = loaded.source.require_preprocessing()
    assert (preparation.mean, preparation.keep_aspect) == ((0.5, 0.5, 0.5), False)


def test_unknown_preprocessing_is_asked_for(tmp_path: Path) -> None:
    saved(tmp_path / "mine.npz")
    loaded = vitlab.load_weights(tmp_path / "mine.npz", image_size=(24, 40))
    loaded.source.require_head()
    with pytest.raises(VitlabError, match="preprocessing="):
        loaded.source.require_preprocessing()


def test_a_file_without_positions_needs_a_word(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    saved(path, pool="mean", class_token=False)
    rewrite(path, lambda arrays: {n: a for n, a in arrays.items() if "pos_embedding" not in n})
    with pytest.raises(WeightsError, match="position table is missing"):
        vitlab.load_weights(path)
    model = vitlab.load_weights(path, position="sincos2d", image_size=(24, 40))
    assert model.config.position == "sincos2d"


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"gelu": "erf"}, "gelu='erf'"),
        ({"norm_bias": False}, "norm_bias=False"),
        ({"branch_norm": 0.2}, "branch_norm=0.2"),
        ({"norm_eps": 1e-5}, "norm_eps=1e-05"),
        ({"registers": 3}, "registers=3"),
        ({"pool": "mean"}, "pool='mean'"),
        ({"layer_scale": 1.0}, "layer_scale=1.0"),
        ({"position": "learned2d"}, "position='learned2d'"),
        ({"position_at": "every_layer"}, "position_at='every_layer'"),
        ({"stem": "conv", "patch_size": 4}, "stem='conv'"),
    ],
)
def test_inexpressible(changes: dict[str, Any], named: str, tmp_path: Path) -> None:
    model = vitlab.VisionTransformer(config(**changes))
    with pytest.raises(WeightsError, match=f"format 'google' cannot express {named}"):
        vitlab.save_weights(model, tmp_path / "a.npz", format="google")

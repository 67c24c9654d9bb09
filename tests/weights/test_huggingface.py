"""Hugging Face transformers: classifier and bare model, published and newer names, folders."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from torch import Tensor, nn

import vitlab
from reference.foreign import converted, same_logits
from reference.random_weights import randomise
from reference.torchvision_ops import declare
from vitlab.errors import WeightsError
from vitlab.images.preprocessing import Preprocessing

declare()
transformers = pytest.importorskip("transformers")

SMALL: dict[str, Any] = {
    "hidden_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "intermediate_size": 56,
    "image_size": 40,
    "patch_size": 8,
    "num_labels": 7,
}
CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "non-square, no qkv bias": {"image_size": [40, 56], "qkv_bias": False},
    "tanh, another epsilon": {"hidden_act": "gelu_pytorch_tanh", "layer_norm_eps": 1e-3},
    "one channel": {"num_channels": 1, "num_hidden_layers": 3},
}


def classifier(**changes: Any) -> nn.Module:
    model: nn.Module = transformers.ViTForImageClassification(
        transformers.ViTConfig(**{**SMALL, **changes})
    )
    randomise(model)
    return model.eval()


def size_of(case: str) -> tuple[int, int]:
    size = CASES[case].get("image_size", 40)
    return (size, size) if isinstance(size, int) else (size[0], size[1])


@pytest.mark.parametrize("case", CASES)
def test_folder_of_save_pretrained(case: str, tmp_path: Path) -> None:
    theirs = classifier(**CASES[case])
    theirs.save_pretrained(tmp_path / "theirs")
    ours = vitlab.load_weights(tmp_path / "theirs")
    assert ours.config.heads == 3
    assert not [note for note in ours.source.assumed if note.startswith(("heads", "norm", "gelu"))]
    same_logits(ours, lambda x: theirs(x).logits, size_of(case), ours.config.channels)

    vitlab.save_weights(ours, tmp_path / "ours", format="huggingface")
    again = transformers.ViTForImageClassification.from_pretrained(tmp_path / "ours").eval()
    for name, tensor in theirs.state_dict().items():
        assert torch.equal(again.state_dict()[name], tensor), name
    same_logits(ours, lambda x: again(x).logits, size_of(case), ours.config.channels)
    assert vitlab.load_weights(tmp_path / "ours").config == ours.config


@pytest.mark.parametrize("case", CASES)
def test_tensors_alone(case: str, tmp_path: Path) -> None:
    theirs = classifier(**CASES[case])
    open_fields = {
        "heads": 3,
        "gelu": "tanh" if "tanh" in case else "erf",
        "norm_eps": CASES[case].get("layer_norm_eps", 1e-12),
        "image_size": size_of(case),
    }
    ours = converted(theirs, tmp_path, format="huggingface", **open_fields)
    same_logits(ours, lambda x: theirs(x).logits, size_of(case), ours.config.channels)
    path = tmp_path / "back.safetensors"
    vitlab.save_weights(ours, path, format="huggingface")
    from safetensors.torch import load_file

    back, expected = load_file(path), theirs.state_dict()
    assert set(back) == set(expected)
    assert all(torch.equal(back[name], expected[name]) for name in expected)


def test_pooler_is_an_mlp_head_without_classes(tmp_path: Path) -> None:
    theirs = transformers.ViTModel(transformers.ViTConfig(**SMALL)).eval()
    ours = converted(theirs, tmp_path, format="huggingface", heads=3)
    assert (ours.config.head, ours.config.classes) == ("mlp", 0)

    def pooled(images: Tensor) -> Tensor:
        output: Tensor = theirs(images).pooler_output
        return output

    same_logits(ours, pooled, (40, 40))
    vitlab.save_weights(ours, tmp_path / "ours", format="huggingface")
    again = transformers.ViTModel.from_pretrained(tmp_path / "ours")
    assert all(torch.equal(again.state_dict()[n], t) for n, t in theirs.state_dict().items())


def published(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """The names of the files on the hub, whatever the installed release calls its modules."""
    pairs = (
        ("vit.layers.", "vit.encoder.layer."),
        (".attention.q_proj.", ".attention.attention.query."),
        (".attention.k_proj.", ".attention.attention.key."),
        (".attention.v_proj.", ".attention.attention.value."),
        (".attention.o_proj.", ".attention.output.dense."),
        (".mlp.fc1.", ".intermediate.dense."),
        (".mlp.fc2.", ".output.dense."),
    )
    renamed = {}
    for name, tensor in state.items():
        for new, old in pairs:
            name = name.replace(new, old)
        renamed[name] = tensor
    return renamed


def test_published_names_and_a_leftover_pooler(tmp_path: Path) -> None:
    theirs = classifier()
    state = published(theirs.state_dict())
    assert "vit.encoder.layer.1.attention.attention.query.weight" in state
    state["vit.pooler.dense.weight"] = torch.zeros(48, 48)
    torch.save(state, tmp_path / "pytorch_model.bin")
    ours = vitlab.load_weights(tmp_path, heads=3)
    assert ours.source.ignored == ("vit.pooler.dense.weight",)
    same_logits(ours, lambda x: theirs(x).logits, (40, 40))
    vitlab.save_weights(ours, tmp_path / "b.bin", format="huggingface")
    back = torch.load(tmp_path / "b.bin", weights_only=True)
    assert set(back) == set(state) - {"vit.pooler.dense.weight"}


def test_published_names_are_the_default(tmp_path: Path) -> None:
    base: dict[str, Any] = {"width": 32, "depth": 1, "heads": 2, "mlp_width": 48, "patch_size": 8}
    model = vitlab.VisionTransformer(vitlab.ViTConfig(image_size=16, classes=3, **base))
    vitlab.save_weights(model, tmp_path / "a.bin", format="huggingface")
    names = set(torch.load(tmp_path / "a.bin", weights_only=True))
    assert "vit.encoder.layer.0.attention.attention.query.weight" in names


def test_shards(tmp_path: Path) -> None:
    theirs = classifier()
    theirs.save_pretrained(tmp_path, max_shard_size="40KB")
    assert (tmp_path / "model.safetensors.index.json").is_file()
    ours = vitlab.load_weights(tmp_path)
    same_logits(ours, lambda x: theirs(x).logits, (40, 40))


def test_labels_and_preprocessing_travel(tmp_path: Path) -> None:
    theirs = classifier(id2label=dict(enumerate("abcdefg")))
    theirs.save_pretrained(tmp_path / "theirs")
    processor = {
        "do_resize": True,
        "size": {"height": 40, "width": 40},
        "resample": 2,
        "image_mean": [0.1, 0.2, 0.3],
        "image_std": [0.4, 0.5, 0.6],
    }
    (tmp_path / "theirs" / "preprocessor_config.json").write_text(json.dumps(processor))
    ours = vitlab.load_weights(tmp_path / "theirs")
    assert ours.source.labels == tuple("abcdefg")
    expected = Preprocessing(
        size=(40, 40),
        interpolation="bilinear",
        mean=(0.1, 0.2, 0.3),
        std=(0.4, 0.5, 0.6),
        keep_aspect=False,
    )
    assert ours.source.preprocessing == expected
    vitlab.save_weights(ours, tmp_path / "ours", format="huggingface")
    for file in (tmp_path / "ours" / "model.safetensors", tmp_path / "ours"):
        again = vitlab.load_weights(file)
        assert again.source.labels == ours.source.labels
        assert again.source.preprocessing == expected
    written = json.loads((tmp_path / "ours" / "preprocessor_config.json").read_text())
    assert written["size"] == {"height": 40, "width": 40}


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ("multi_label_classification", "multi-label"),
        ("regression", "regression"),
        ("single_label_classification", "single-label"),
        (None, "single-label"),
    ],
)
def test_the_task_travels(theirs: str | None, ours: str, tmp_path: Path) -> None:
    classifier(problem_type=theirs).save_pretrained(tmp_path / "theirs")
    loaded = vitlab.load_weights(tmp_path / "theirs")
    assert loaded.source.task == ours
    vitlab.save_weights(loaded, tmp_path / "ours", format="huggingface")
    config = transformers.AutoConfig.from_pretrained(tmp_path / "ours")
    assert config.problem_type == (None if ours == "single-label" else theirs)


@pytest.mark.parametrize(
    ("keep_aspect", "crop", "processor"),
    [(True, 0.875, "CLIP"), (True, 1.0, "CLIP"), (False, 0.8, "DeiT"), (False, 1.0, "ViT")],
)
def test_their_processor_prepares_as_we_do(
    keep_aspect: bool, crop: float, processor: str, tmp_path: Path
) -> None:
    preparation = Preprocessing(
        size=(40, 40),
        crop=crop,
        interpolation="bilinear",
        mean=(0.1, 0.2, 0.3),
        std=(0.4, 0.5, 0.6),
        keep_aspect=keep_aspect,
    )
    classifier().save_pretrained(tmp_path / "theirs")
    model = vitlab.load_weights(tmp_path / "theirs", preprocessing=preparation)
    vitlab.save_weights(model, tmp_path / "ours", format="huggingface")
    written = json.loads((tmp_path / "ours" / "preprocessor_config.json").read_text())
    assert written["image_processor_type"] == f"{processor}ImageProcessor"
    content = getattr(transformers, f"{processor}ImageProcessorPil").from_pretrained(
        tmp_path / "ours"
    )
    photo = Image.effect_mandelbrot((83, 61), (-2, -1.5, 1, 1.5), 60).convert("RGB")
    theirs = content(photo, return_tensors="np")["pixel_values"][0]
    ours = preparation.normalise(preparation.fit(preparation.read(photo))[None])[0]
    assert theirs.shape == (3, 40, 40)
    # Half a grey level: both resize with Pillow and round to 8 bits.
    assert abs(theirs - ours).max() < 0.5 / 255 / 0.4


def test_a_processor_that_transformers_does_not_have(tmp_path: Path) -> None:
    preparation = Preprocessing(size=(40, 56), mean=(0.5,) * 3, std=(0.5,) * 3, keep_aspect=True)
    classifier(image_size=[40, 56]).save_pretrained(tmp_path / "theirs")
    model = vitlab.load_weights(tmp_path / "theirs", preprocessing=preparation)
    with pytest.raises(WeightsError, match="keeps proportions for 56 x 40"):
        vitlab.save_weights(model, tmp_path / "ours", format="huggingface")
    assert not (tmp_path / "ours").exists()


def test_classifier_with_an_mlp_head_is_inexpressible(tmp_path: Path) -> None:
    base: dict[str, Any] = {"width": 32, "depth": 1, "heads": 2, "mlp_width": 48, "patch_size": 8}
    config = vitlab.ViTConfig(image_size=16, classes=3, head="mlp", **base)
    with pytest.raises(
        WeightsError, match=r"head='mlp' with classes=3.*vitlab convert --set head=linear"
    ):
        vitlab.save_weights(vitlab.VisionTransformer(config), tmp_path / "a", format="huggingface")


def test_config_of_another_model_is_left_alone(tmp_path: Path) -> None:
    theirs = classifier()
    theirs.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"hidden_size": 64}))
    ours = vitlab.load_weights(tmp_path, heads=3)
    assert any("of another model" in note for note in ours.source.assumed)


def test_keyword_against_the_config_file(tmp_path: Path) -> None:
    classifier().save_pretrained(tmp_path)
    with pytest.raises(WeightsError, match="heads=4 contradicts the weights, which say 3"):
        vitlab.load_weights(tmp_path, heads=4)


def test_back_is_exact_in_both_containers(tmp_path: Path) -> None:
    theirs = classifier()
    ours = converted(theirs, tmp_path, format="huggingface", heads=3)
    for name in ("b.bin", "b.safetensors"):
        vitlab.save_weights(ours, tmp_path / name, format="huggingface")
        again = vitlab.load_weights(tmp_path / name, heads=3)
        for key, tensor in ours.state_dict().items():
            assert torch.equal(again.state_dict()[key], tensor), key

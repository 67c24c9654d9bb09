"""Names of classes: from the origin of the weights, from the user, or numbers."""

import json
from pathlib import Path

import pytest
import torch

import vitlab
from vitlab.errors import WeightsError
from vitlab.weights.bundle import save_bundle
from vitlab.weights.labels import imagenet_labels, matching, read_labels, wordnet_ids
from weights.published import small_model

LABELS = imagenet_labels()


@pytest.mark.parametrize(
    ("name", "format"),
    [
        ("deit_tiny_patch16_224.safetensors", "timm"),
        ("deit_tiny_patch16_224-a1311bcf.pth", "timm"),
        ("imagenet21k+imagenet2012_ViT-B_16.npz", "google"),
        ("vit_b_16-c867db91.pth", "torchvision"),
    ],
)
def test_published_files_of_a_thousand_classes_have_imagenets(
    tmp_path: Path, name: str, format: str
) -> None:
    model = small_model(format, width=128)
    vitlab.save_weights(model, tmp_path / name, format=format)
    assert vitlab.load_weights(tmp_path / name).source.labels == LABELS
    assert vitlab.load_weights(tmp_path / name, classes=5).source.labels is None


def test_another_number_of_classes_has_other_names(tmp_path: Path) -> None:
    path = tmp_path / "deit_tiny_patch16_224.pth"
    vitlab.save_weights(small_model(width=128, classes=999), path, format="timm")
    assert vitlab.load_weights(path).source.labels is None
    assert vitlab.load_weights(path, classes=1000).source.labels is None


def test_a_thousand_classes_of_unknown_origin_keep_numbers(tmp_path: Path) -> None:
    path = tmp_path / "mine.safetensors"
    vitlab.save_weights(small_model(), path)
    assert vitlab.load_weights(path).source.labels is None
    assert vitlab.load(path).labels[285] == "285"
    assert vitlab.load(path, labels="imagenet-1k").labels == LABELS
    assert vitlab.load_weights(path, labels=LABELS[::-1]).source.labels == LABELS[::-1]


@pytest.mark.parametrize(
    ("tag", "expected"),
    [("augreg_in21k_ft_in1k", LABELS), ("fb_in1k", LABELS), ("augreg_in21k", None), (None, None)],
)
def test_timms_config_tells_the_origin(
    tmp_path: Path, tag: str | None, expected: tuple[str, ...] | None
) -> None:
    vitlab.save_weights(small_model(width=128), tmp_path / "pytorch_model.bin", format="timm")
    hub = {
        "architecture": "vit_tiny_patch16_224",
        "num_classes": 1000,
        "model_args": {"img_size": 32},
        "pretrained_cfg": {"tag": tag, "input_size": [3, 32, 32]},
    }
    (tmp_path / "config.json").write_text(json.dumps(hub))
    assert vitlab.load_weights(tmp_path).source.labels == expected


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("labels.txt", "a\nb b\nc\n\n"),
        ("labels.txt", "\ufeffa\r\nb b\r\nc"),
        ("labels.json", '["a", "b b", "c"]'),
        ("labels.json", '{"0": "a", "2": "c", "1": "b b"}'),
    ],
)
def test_files_of_labels(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text, encoding="utf-8", newline="")
    assert read_labels(tmp_path / name, 3) == ("a", "b b", "c")


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("labels.txt", "a\nb\n", "2 labels for a model of 3 classes"),
        ("labels.txt", "a\n\nb\n", "label 2 is empty"),
        ("labels.json", "[1, 2, 3]", "not a file of labels"),
        ("labels.json", '{"0": "a", "1": "b", "3": "c"}', "not a file of labels"),
        ("labels.json", "[", "not a file of labels"),
    ],
)
def test_wrong_files_of_labels(tmp_path: Path, name: str, text: str, message: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(WeightsError, match=message):
        read_labels(tmp_path / name, 3)


def test_bytes_are_no_labels(tmp_path: Path) -> None:
    (tmp_path / "labels.txt").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(WeightsError, match="not a file of labels"):
        read_labels(tmp_path / "labels.txt", 3)


def test_an_unknown_set_of_labels() -> None:
    with pytest.raises(WeightsError, match=r"imagenet1k: no such file .* did you mean imagenet-1k"):
        read_labels("imagenet1k", 1000)


def test_known_labels_of_another_length_are_told() -> None:
    with pytest.raises(WeightsError, match="imagenet-1k: 1000 labels for a model of 3 classes"):
        read_labels("imagenet-1k", 3)


def test_a_bundle_takes_other_labels(tmp_path: Path) -> None:
    save_bundle(
        tmp_path,
        small_model(classes=3),
        preprocessing=vitlab.Preprocessing(size=(32, 32), mean=(0.5,) * 3, std=(0.5,) * 3),
        labels=("a", "b", "c"),
        metrics={},
        provenance={},
    )
    assert vitlab.load(tmp_path).labels == ("a", "b", "c")
    assert vitlab.load(tmp_path, labels=("x", "y", "z")).labels == ("x", "y", "z")
    with pytest.raises(WeightsError, match="1 labels for a model of 3 classes"):
        vitlab.load(tmp_path, labels=("x",))


def test_real_weights_name_real_images(shared: Path) -> None:
    """A few Imagenette images: every name is ImageNet's, and most are the right one."""
    weights = shared / "weights" / "deit_tiny_patch16_224.safetensors"
    folder = shared / "data" / "imagenette-mini" / "val"
    if not (weights.is_file() and folder.is_dir()):
        pytest.skip("no DeiT weights or no Imagenette in VITLAB_TEST_DATA")
    names = dict(zip(wordnet_ids(), LABELS, strict=True))
    images = [sorted(kind.iterdir())[0] for kind in sorted(folder.iterdir())]
    predictions = vitlab.load(weights).predict(images, top=5)
    assert all(label in LABELS for found in predictions for label, _ in found.top)
    expected = [names[image.parent.name] for image in images]
    right = [name in dict(found.top) for name, found in zip(expected, predictions, strict=True)]
    assert sum(right) >= 0.8 * len(images)


def test_classes_are_matched_by_name_and_by_wordnet_id() -> None:
    stored = ("red fox", "Grey-Wolf", "bear", "Bear", "cat")
    wanted = ("grey wolf", "RED_FOX", "dog", "bear")
    assert matching(stored, wanted) == (1, 0, None, None)
    assert matching(LABELS, ("n02124075", "egyptian_cat", "tench")) == (285, 285, 0)
    assert matching(LABELS[:9], ("n01440764",)) == (None,)  # not all of ImageNet


def test_a_head_keeps_the_classes_that_it_knows(tmp_path: Path) -> None:
    path = tmp_path / "deit_tiny_patch16_224.safetensors"
    model = small_model("timm", width=128)
    vitlab.save_weights(model, path, format="timm")
    wanted = ("n02124075", "my dog", "tench")
    found = vitlab.load_weights(path, keep_classes=wanted)
    assert found.source.known_classes == ("n02124075", "tench")
    before, after = model.state_dict(), found.state_dict()
    for name in ("head.weight", "head.bias"):
        stored = before[name]
        expected = torch.stack([stored[285], torch.zeros_like(stored[0]), stored[0]])
        assert torch.equal(after[name], expected)
    assert not found.source.zero_head
    strangers = vitlab.load_weights(path, keep_classes=("my dog", "my cat"))
    assert strangers.source.zero_head
    assert strangers.source.known_classes == ()

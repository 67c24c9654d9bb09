"""Preprocessing that cannot be forgotten: from the file to the bundle, through every format."""

from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image

import vitlab
from vitlab.cli.main import run
from vitlab.errors import PreprocessingUnknown
from vitlab.weights.bundle import save_bundle
from weights.published import GELU, small_model

SIZE = 32
AUGREG = "B_16-i21k-300ep-lr_0.001-aug_medium1-wd_0.1-do_0.0-sd_0.0.npz"
DEIT = "deit_tiny_patch16_224-a1311bcf.pth"
ORIGINS = {"google": AUGREG, "timm": DEIT}
STEPS = [
    *(
        (origin, format, name)
        for origin in ORIGINS
        for format, name in (
            ("vitlab", "a.safetensors"),
            ("vitlab", "a.pth"),
            ("timm", "a.safetensors"),
            ("timm", "a.pth"),
            ("huggingface", "folder"),
            ("huggingface", "a.bin"),
        )
    ),
    # Google's GELU is the tanh form, torchvision's is not.
    ("google", "google", "a.npz"),
    ("timm", "torchvision", "a.pth"),
]


@pytest.fixture
def jpeg(tmp_path: Path) -> Path:
    """A photograph's shape, with something in every part of it."""
    pixels = np.random.default_rng(0).integers(0, 256, (11, 17, 3), dtype=np.uint8)
    Image.fromarray(pixels).resize((85, 55), Image.Resampling.BICUBIC).save(tmp_path / "a.jpg")
    return tmp_path / "a.jpg"


def plain_augreg(path: Path) -> NDArray[np.float64]:
    """The whole image squeezed to size, bilinear, in [-1, 1]."""
    image = Image.open(path).resize((SIZE, SIZE), Image.Resampling.BILINEAR)
    return (np.asarray(image) / 127.5 - 1.0).transpose(2, 0, 1)


def plain_deit(path: Path) -> NDArray[np.float64]:
    """The shorter side to 256/224 of the size, bicubic, the centre, ImageNet's statistics."""
    image = Image.open(path)
    short = int(SIZE * 256 / 224)
    width, height = image.size
    assert width > height
    resized = image.resize((int(short * width / height), short), Image.Resampling.BICUBIC)
    left, top = (round((side - SIZE) / 2) for side in resized.size)
    pixels = np.asarray(resized.crop((left, top, left + SIZE, top + SIZE))) / 255
    return ((pixels - [0.485, 0.456, 0.406]) / [0.229, 0.224, 0.225]).transpose(2, 0, 1)


REFERENCES = {"google": plain_augreg, "timm": plain_deit}


def published(folder: Path, format: str) -> Path:
    """Small weights under a published name, which is all that tells their preprocessing."""
    path = folder / ORIGINS[format]
    vitlab.save_weights(small_model(format, width=128), path, format=format)
    return path


def test_bundles_of_two_publishers_prepare_differently_and_rightly(
    tmp_path: Path, jpeg: Path
) -> None:
    prepared = {}
    for format, reference in REFERENCES.items():
        model = vitlab.load_weights(published(tmp_path, format))
        save_bundle(
            tmp_path / format,
            model,
            preprocessing=model.source.require_preprocessing(),
            labels=model.source.labels or (),
            metrics={},
            provenance={},
        )
        prepared[format] = vitlab.load(tmp_path / format).preprocessing.apply(jpeg)
        np.testing.assert_allclose(prepared[format], reference(jpeg), atol=1e-6)
    assert np.abs(prepared["google"] - prepared["timm"]).max() > 0.5


@pytest.mark.parametrize(("origin", "format", "name"), STEPS)
def test_converting_keeps_it(
    tmp_path: Path, jpeg: Path, origin: str, format: str, name: str
) -> None:
    source, target = published(tmp_path, origin), tmp_path / "to" / name
    target.parent.mkdir()
    if name == "folder":
        target.mkdir()
    options = ["--force"] if name == "folder" else []
    assert run(["convert", str(source), str(target), "--format", format, *options]) == 0
    loaded = vitlab.load(target)
    np.testing.assert_allclose(
        loaded.preprocessing.apply(jpeg), REFERENCES[origin](jpeg), atol=1e-6
    )
    assert loaded.labels[285] == "Egyptian cat"
    again = tmp_path / f"back{source.suffix}"
    reread = vitlab.load_weights(target, gelu=GELU.get(origin, "erf"), norm_eps=1e-6)
    vitlab.save_weights(reread, again, format=origin)
    assert vitlab.load(again).preprocessing == loaded.preprocessing


@pytest.mark.parametrize(("format", "name"), [("google", "a.npz"), ("timm", "a.pth")])
def test_what_nobody_said_is_asked_for(tmp_path: Path, jpeg: Path, format: str, name: str) -> None:
    vitlab.save_weights(small_model(format, width=128), tmp_path / name, format=format)
    with pytest.raises(PreprocessingUnknown, match="nothing says how images must be prepared"):
        vitlab.load(tmp_path / name).predict(jpeg)
    given = vitlab.Preprocessing(size=(SIZE, SIZE), mean=(0.5,) * 3, std=(0.25,) * 3)
    vitlab.save_weights(
        vitlab.load_weights(tmp_path / name, preprocessing=given), tmp_path / name, format=format
    )
    assert vitlab.load(tmp_path / name).preprocessing == given


@pytest.mark.parametrize(("format", "name"), [("google", "a.npz"), ("timm", "a.pth")])
def test_other_readers_do_not_see_the_note(tmp_path: Path, format: str, name: str) -> None:
    source = vitlab.load_weights(published(tmp_path, format))
    vitlab.save_weights(source, tmp_path / name, format=format)
    assert b'"Egyptian cat"' in (tmp_path / name).read_bytes()
    for options in ({}, {"mmap": True}) if format == "timm" else ():
        read = torch.load(tmp_path / name, weights_only=True, **options)
        assert torch.equal(read["head.weight"], source.head.weight)
    if format == "google":
        with np.load(tmp_path / name) as arrays:
            assert np.array_equal(arrays["head/kernel"].T, source.head.weight.detach().numpy())


def test_labels_that_do_not_fit_a_note_stay_out(tmp_path: Path) -> None:
    model = vitlab.load_weights(published(tmp_path, "google"), labels=["long" * 20] * 1000)
    vitlab.save_weights(model, tmp_path / "a.npz", format="google")
    loaded = vitlab.load_weights(tmp_path / "a.npz").source
    assert loaded.labels is None
    assert loaded.preprocessing == model.source.preprocessing

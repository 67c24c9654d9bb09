"""`vitlab features`: the model's features in a file, whatever the images come from."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from command import Command
from data.colours import COLOURS, saved_model, write_colours
from vitlab import Preprocessing, create_model, load
from vitlab.weights.bundle import save_bundle


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return saved_model(tmp_path / "model.safetensors")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_colours(tmp_path / "colours", {"train": 5, "test": 2})


@pytest.mark.parametrize(
    "arguments", [[], ["--kind", "cls", "--layer", "0"], ["--kind", "patches"]]
)
def test_a_folder_becomes_arrays(
    command: Command, model: Path, folder: Path, tmp_path: Path, arguments: list[str]
) -> None:
    output = tmp_path / "f.npz"
    outcome = command("features", model, folder, "--output", output, "--batch-size", 4, *arguments)
    assert outcome.code == 0, outcome.err
    files = sorted(folder.rglob("*.png"))
    settings = dict(zip(arguments[::2], arguments[1::2], strict=True))
    kind = settings.get("--kind", "pooled")
    layer = int(settings["--layer"]) if "--layer" in settings else None
    expected = load(model).features(files, kind=kind, layer=layer)
    with np.load(output, allow_pickle=False) as arrays:
        # Batches of another size sum in another order.
        np.testing.assert_allclose(arrays["features"], expected, atol=1e-5)
        assert arrays["paths"].tolist() == list(map(str, files))
        assert arrays["labels"].tolist() == [path.parent.name for path in files]
        metadata = json.loads(str(arrays["metadata"]))
    assert metadata["model"] == str(model)
    assert (metadata["kind"], metadata["layer"]) == (kind, layer)
    assert metadata["shape"] == list(expected.shape[1:])
    assert metadata["preprocessing"] == load(model).preprocessing.to_json()
    assert len(metadata["weights"]) == 64
    assert "21 (21 with a label)" in outcome.out


def test_json_tells_what_was_written(
    command: Command, model: Path, folder: Path, tmp_path: Path
) -> None:
    output = tmp_path / "f.npz"
    found = json.loads(command("features", model, folder, "--output", output, "--json").out)
    assert (found["images"], found["labelled"], found["broken"]) == (21, 21, {})
    assert (found["output"], found["shape"]) == (str(output), [32])


def test_parquet(command: Command, model: Path, folder: Path, tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    for name in ("f.parquet", "f.npz"):
        assert command("features", model, folder, "--output", tmp_path / name).code == 0
    table = parquet.read_table(tmp_path / "f.parquet")
    with np.load(tmp_path / "f.npz") as arrays:
        np.testing.assert_array_equal(
            np.array(table["features"].to_pylist(), np.float32), arrays["features"]
        )
        assert table["path"].to_pylist() == arrays["paths"].tolist()


def test_data_by_name(command: Command, model: Path, tmp_path: Path) -> None:
    output = tmp_path / "f.npz"
    assert command("features", model, "digits", "--split", "test", "--output", output).code == 0
    with np.load(output) as arrays:
        assert arrays["paths"][3] == "digits/test/3"
        assert set(arrays["labels"].tolist()) == set("0123456789")
        assert len(arrays["features"]) == len(arrays["paths"]) == len(arrays["labels"])


def test_broken_images_are_listed_and_left_out(
    command: Command, model: Path, folder: Path, tmp_path: Path
) -> None:
    broken = folder / "test" / "red" / "0.png"
    broken.write_bytes(b"no image")
    outcome = command("features", model, folder, "--output", tmp_path / "f.npz")
    assert outcome.code == 0
    assert "not readable  1 (left out)" in outcome.out
    assert f"left out: {broken}: not an image of a known format" in outcome.err
    with np.load(tmp_path / "f.npz") as arrays:
        assert len(arrays["features"]) == 20
        assert str(broken) not in arrays["paths"].tolist()


def test_nothing_readable_writes_nothing(command: Command, model: Path, tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(b"no image")
    (tmp_path / "f.npz").write_bytes(b"what was there")
    outcome = command("features", model, tmp_path / "a.png", "--output", tmp_path / "f.npz")
    assert (outcome.code, outcome.out) == (2, "")
    assert "none of 1 images can be read; one is" in outcome.err
    assert (tmp_path / "f.npz").read_bytes() == b"what was there"


def test_a_cnn_has_pooled_features(command: Command, folder: Path, tmp_path: Path) -> None:
    torch.manual_seed(0)
    save_bundle(
        tmp_path / "bundle",
        create_model("cnn_tutorial", classes=3),
        preprocessing=Preprocessing(size=(32, 32), mean=(0.5,) * 3, std=(0.5,) * 3),
        labels=COLOURS,
        metrics={},
        provenance={},
    )
    output = tmp_path / "f.npz"
    assert command("features", tmp_path / "bundle", folder, "--output", output).code == 0
    with np.load(output) as arrays:
        assert arrays["features"].shape == (21, 84)
    asked = ("features", tmp_path / "bundle", folder, "--output", output, "--kind", "cls")
    assert "which is no Vision Transformer; valid: pooled" in command(*asked).mistake
    other = (*asked[:-2], "--image-size", "64")
    assert "which is no Vision Transformer; valid: its own, 32x32" in command(*other).mistake


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--kind", "clss"], "unknown kind of features 'clss'; did you mean cls"),
        (["--layer", "2"], "layer 2 does not exist; valid: -2 to 1"),
        (["--split", "test"], "split 'test' is for a dataset by name"),
        (["--output", "f.csv"], "ending '.csv'; valid: .npz, .parquet"),
        (["--output", "no/where/f.npz"], "cannot be written (No such file or directory)"),
        (["--batch-size", "0"], "--batch-size"),
    ],
)
def test_mistakes_are_one_line_and_write_nothing(
    command: Command,
    model: Path,
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.iterdir())
    given = arguments if "--output" in arguments else [*arguments, "--output", "f.npz"]
    assert message in command("features", model, folder, *given).mistake
    assert sorted(tmp_path.iterdir()) == before


def test_another_size_of_the_images(
    command: Command, model: Path, folder: Path, tmp_path: Path
) -> None:
    output, own = tmp_path / "f.npz", tmp_path / "own.npz"
    asked = ("features", model, folder, "--output", output, "--kind", "patches")
    outcome = command(*asked, "--image-size", "24x48", "--json")
    assert outcome.code == 0, outcome.err
    expected = load(model, image_size=(24, 48)).features(
        sorted(folder.rglob("*.png")), kind="patches"
    )
    with np.load(output) as arrays:
        np.testing.assert_allclose(arrays["features"], expected, atol=1e-5)
        metadata = json.loads(str(arrays["metadata"]))
    assert metadata["preprocessing"]["size"] == [24, 48]
    rows, columns, _ = json.loads(outcome.out)["shape"]
    assert columns == 2 * rows
    # The model's own size changes nothing, and leaves it the same model.
    for path, size in ((output, ["--image-size", "32"]), (own, [])):
        assert command("features", model, folder, "--output", path, *size).code == 0
    with np.load(output) as arrays, np.load(own) as others:
        assert arrays["metadata"] == others["metadata"]
    before = sorted(tmp_path.iterdir())
    wrong = ("features", model, folder, "--output", tmp_path / "g.npz", "--image-size")
    assert "neither N nor HEIGHTxWIDTH" in command(*wrong, "1x2x3").mistake
    assert "multiple" in command(*wrong, "33").mistake
    assert sorted(tmp_path.iterdir()) == before

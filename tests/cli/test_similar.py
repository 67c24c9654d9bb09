"""`vitlab similar`: the nearest images, and no comparison of what means something else."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from command import Command
from data.colours import saved_model, write_colours
from vitlab import load


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return saved_model(tmp_path / "model.safetensors")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_colours(tmp_path / "colours", {".": 5})


@pytest.fixture(params=["npz", "parquet"])
def features(
    request: pytest.FixtureRequest, command: Command, model: Path, folder: Path, tmp_path: Path
) -> Path:
    if request.param == "parquet":
        pytest.importorskip("pyarrow")
    path = tmp_path / f"f.{request.param}"
    outcome = command("features", model, folder, "--output", path)
    assert outcome.code == 0, outcome.err
    return path


@pytest.fixture
def image(folder: Path) -> Path:
    return folder / "green" / "3.png"


def test_the_nearest_are_those_of_brute_force(
    command: Command, features: Path, image: Path, model: Path, folder: Path
) -> None:
    outcome = command("similar", features, image, "--top", 4, "--json")
    assert outcome.code == 0, outcome.err
    found = json.loads(outcome.out)
    files = sorted(folder.rglob("*.png"))
    x = load(model).features([*files, image]).astype(np.float64)
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    cosine = x[:-1] @ x[-1]
    expected = np.argsort(-cosine)[:4]
    assert found["searched"] == 15
    assert [match["path"] for match in found["matches"]] == [str(files[i]) for i in expected]
    assert [match["label"] for match in found["matches"]] == [
        files[i].parent.name for i in expected
    ]
    similarity = [match["similarity"] for match in found["matches"]]
    np.testing.assert_allclose(similarity, cosine[expected], atol=1e-6)
    assert found["matches"][0]["path"] == str(image)


def test_people_see_a_table(command: Command, features: Path, image: Path) -> None:
    lines = command("similar", features, image, "--top", 2).out.splitlines()
    assert lines[0].split() == ["image", "label", "similarity"]
    assert lines[2].split() == [str(image), "green", "1.0000"]
    assert len(lines) == 4


def test_a_contact_sheet(
    command: Command,
    features: Path,
    image: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir("/")
    sheet = tmp_path / "sheet.png"
    outcome = command("similar", features, image, "--contact-sheet", sheet)
    assert outcome.code == 0, outcome.err
    assert outcome.out.endswith(f"contact sheet: {sheet}\n")
    with Image.open(sheet) as picture:
        assert picture.format == "PNG"


def test_images_of_a_dataset_are_shown(
    command: Command, model: Path, image: Path, tmp_path: Path
) -> None:
    path, sheet = tmp_path / "f.npz", tmp_path / "sheet.png"
    assert command("features", model, "digits", "--split", "test", "--output", path).code == 0
    outcome = command("similar", path, image, "--contact-sheet", sheet, "--json")
    assert outcome.code == 0, outcome.err
    assert json.loads(outcome.out)["matches"][0]["path"].startswith("digits/test/")
    assert sheet.is_file()


def test_a_model_that_moved(
    command: Command, features: Path, image: Path, model: Path, tmp_path: Path
) -> None:
    moved = tmp_path / "moved.safetensors"
    model.rename(moved)
    mistake = command("similar", features, image).mistake
    assert f"{model}: no such file" in mistake
    assert "--model names another place" in mistake
    assert command("similar", features, image, "--model", moved).code == 0


def test_another_model_is_refused(
    command: Command, features: Path, image: Path, tmp_path: Path
) -> None:
    other = saved_model(tmp_path / "other.safetensors", seed=1)
    mistake = command("similar", features, image, "--model", other).mistake
    assert mistake.startswith(f"{features} holds features of ")
    assert "valid: the model that made them" in mistake


def test_a_model_that_was_trained_on_is_refused(
    command: Command, features: Path, image: Path, model: Path, tmp_path: Path
) -> None:
    shutil.copy(saved_model(tmp_path / "other.safetensors", seed=1), model)
    assert "valid: the model that made them" in command("similar", features, image).mistake


def test_patches_are_refused(
    command: Command, model: Path, folder: Path, image: Path, tmp_path: Path
) -> None:
    path = tmp_path / "f.npz"
    assert command("features", model, folder, "--output", path, "--kind", "patches").code == 0
    assert "holds grids of patches" in command("similar", path, image).mistake


def test_wrong_files(command: Command, features: Path, image: Path, tmp_path: Path) -> None:
    assert "no such file" in command("similar", tmp_path / "none.npz", image).mistake
    assert "ending '.png'; valid: .npz, .parquet" in command("similar", image, image).mistake
    assert "; valid: JPEG, PNG, " in command("similar", features, features).mistake
    asked = ("similar", features, image, "--contact-sheet", tmp_path / "a.jpg")
    assert "a name that ends in .png" in command(*asked).mistake
    np.savez(tmp_path / "foreign.npz", features=np.zeros((2, 3)))
    mistake = command("similar", tmp_path / "foreign.npz", image).mistake
    assert mistake == (
        f"{tmp_path / 'foreign.npz'}: no array 'metadata'; valid: a file that vitlab features wrote"
    )


def test_the_image_is_of_the_size_of_the_features(
    command: Command, model: Path, folder: Path, image: Path, tmp_path: Path
) -> None:
    path = tmp_path / "f.npz"
    assert command("features", model, folder, "--output", path, "--image-size", "24x48").code == 0
    found = command("similar", path, image, "--json").out
    assert command("similar", path, image, "--json", "--image-size", "24x48").out == found
    best = json.loads(found)["matches"][0]
    assert best["path"] == str(image)
    assert best["similarity"] == pytest.approx(1, abs=1e-5)
    mistake = command("similar", path, image, "--image-size", 32).mistake
    assert mistake == f"{path} holds features at 24x48 pixels, not at 32x32; valid: 24x48"

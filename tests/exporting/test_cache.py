"""Weight files that are exported once, and the folder that keeps the exports."""

import logging
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from numpy.testing import assert_allclose
from PIL import Image
from safetensors.torch import save_file

import vitlab
from vitlab.errors import VitlabError, WeightsError
from vitlab.exporting import cache as module
from vitlab.exporting.cache import cached_export
from vitlab.jobs.export import export
from vitlab.jobs.predict import predict
from vitlab.weights.bundle import record_file
from vitlab.weights.resolve import bundled_folder

pytest.importorskip("onnxscript")
pytestmark = pytest.mark.usefixtures("no_type_checks")


@pytest.fixture
def weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A weight file with what is needed beside it, and an empty cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("VITLAB_ONNX", raising=False)
    monkeypatch.setattr(module, "may_have_accelerator", lambda: False)
    inside = bundled_folder("cifar10")
    assert inside is not None
    for name in ("model.safetensors", "config.json"):
        shutil.copy(inside / name, tmp_path)
    return tmp_path / "model.safetensors"


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    folder = tmp_path / "photos"
    folder.mkdir()
    for number in range(3):
        Image.effect_noise((37, 41), 60 + number).convert("RGB").save(folder / f"{number}.png")
    return folder


def kept(tmp_path: Path) -> list[Path]:
    return sorted((tmp_path / "cache" / "vitlab" / "exports").glob("*.onnx"))


def kept_export(model: str | Path, *, engine: str, images: Any) -> Path | None:
    """As `vitlab predict` calls it."""
    return cached_export(
        model, engine=engine, images=images, export=lambda path, place: export(path, output=place)
    )


def answers(model: Path, photos: Path, **options: Any) -> list[float]:
    found: list[float] = []
    predict(model, [photos], each=lambda told: found.append(told.top[0][1]), **options)
    return found


def test_few_images_are_torchs_and_many_are_exported_once(
    weights: Path, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    wanted = answers(weights, photos)
    assert not kept(tmp_path)
    monkeypatch.setattr(module, "MANY", 3)
    with caplog.at_level(logging.WARNING):
        found = answers(weights, photos)
    assert "exported once" in caplog.text
    assert_allclose(found, wanted, atol=1e-5)
    (file,) = kept(tmp_path)
    written = file.stat().st_mtime_ns
    monkeypatch.setattr(module, "MANY", 1000)
    assert_allclose(answers(weights, photos), wanted, atol=1e-5)  # it is there: used for few, too
    assert (kept(tmp_path), file.stat().st_mtime_ns) == ([file], written)


def test_an_engine_that_is_asked_for_gets_its_file(
    weights: Path, photos: Path, tmp_path: Path
) -> None:
    wanted = answers(weights, photos, engine="torch")
    assert not kept(tmp_path)
    assert_allclose(answers(weights, photos, engine="onnxruntime"), wanted, atol=1e-5)
    assert len(kept(tmp_path)) == 1


def test_a_file_that_cannot_be_read_gives_way_to_the_weights(
    weights: Path, photos: Path, tmp_path: Path, caplog: Any
) -> None:
    wanted = answers(weights, photos, engine="onnxruntime")
    (file,) = kept(tmp_path)
    file.write_bytes(file.read_bytes()[:1000])
    with caplog.at_level(logging.WARNING):
        assert_allclose(answers(weights, photos), wanted, atol=1e-5)
    assert f"{weights} itself is used" in caplog.text
    with pytest.raises(VitlabError, match=file.name):  # it was asked for
        answers(weights, photos, engine="onnxruntime")


@pytest.mark.slow
def test_other_weights_are_another_file(weights: Path, tmp_path: Path) -> None:
    first = kept_export(weights, engine="onnxruntime", images=lambda most: 1)
    model = vitlab.load(weights).model
    state = {name: tensor.contiguous() for name, tensor in model.state_dict().items()}
    bias = next(name for name in state if name.startswith("head") and name.endswith("bias"))
    save_file(state | {bias: state[bias] + 1}, weights)
    record_file(weights.parent, weights.name)
    assert kept_export(weights, engine="onnxruntime", images=lambda most: 1) != first
    assert len(kept(tmp_path)) == 2


def test_exports_used_longest_ago_make_room(
    weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write() -> Path:
        found = cached_export(
            weights,
            engine="onnxruntime",
            images=lambda most: 1,
            export=lambda path, place: place.write_bytes(bytes(1000)),
        )
        assert found is not None
        return found

    folder = tmp_path / "cache" / "vitlab" / "exports"
    folder.mkdir(parents=True)
    for name, used in (("old", 1_000), ("older", 500), ("recent", 2_000)):
        (folder / f"{name}.onnx").write_bytes(bytes(100))
        (folder / f"{name}{module.NOTE}").write_text("a note")
        os.utime(folder / f"{name}.onnx", (used, 3_000))
    monkeypatch.setattr(module, "MOST_BYTES", 1300)
    first = write()
    assert len(kept(tmp_path)) == 4  # all of them fit
    for most, left in ((1250, ["old", "recent"]), (1100, ["recent"]), (1, [])):
        monkeypatch.setattr(module, "MOST_BYTES", most)
        first.unlink()
        assert write() == first  # the newest one stays, however large
        assert kept(tmp_path) == sorted([first, *(folder / f"{name}.onnx" for name in left)])
        assert len(list(folder.glob(f"*{module.NOTE}"))) == len(left)
    os.utime(first, (1, 3_000))
    assert write() == first
    assert first.stat().st_atime > 1_000_000 > first.stat().st_mtime  # its use is noted


def test_where_it_cannot_be_the_weights_themselves_are_used(
    weights: Path, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    def many(most: int) -> int:
        return most

    assert kept_export("cifar10", engine="auto", images=many) is None
    assert kept_export(weights, engine="torch", images=many) is None
    monkeypatch.setenv("VITLAB_ONNX", "0")
    assert kept_export(weights, engine="auto", images=many) is None
    monkeypatch.delenv("VITLAB_ONNX")
    monkeypatch.setattr(module, "may_have_accelerator", lambda: True)
    assert kept_export(weights, engine="auto", images=many) is None
    monkeypatch.setattr(module, "may_have_accelerator", lambda: False)

    def fail(*_: Any, **__: Any) -> None:
        raise RuntimeError("an operator\nis missing")

    monkeypatch.setattr("vitlab.jobs.export.export", fail)
    monkeypatch.setattr(module, "MANY", 1)
    assert len(answers(weights, photos)) == 3
    assert "cannot be exported (an operator is missing)" in caplog.text
    assert not kept(tmp_path)


def test_no_folder_to_keep_it_in_is_no_reason_to_fail(
    weights: Path, photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(Path, "home", homeless)
    assert len(answers(weights, photos)) == 3


def test_weights_that_cannot_predict_are_not_exported(
    weights: Path, photos: Path, tmp_path: Path
) -> None:
    (tmp_path / "config.json").unlink()
    model = vitlab.create_model("vit_test")
    vitlab.save_weights(model, weights, format="timm")
    with pytest.raises(
        WeightsError, match=r"^model\.safetensors: every weight of the head is zero"
    ):
        answers(weights, photos, engine="onnxruntime")
    assert not kept(tmp_path)


def test_a_job_goes_on_with_the_engine_that_began_it(
    weights: Path, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = tmp_path / "found.csv"
    predict(weights, [photos], output=output)
    Image.effect_noise((37, 41), 90).convert("RGB").save(photos / "9.png")
    monkeypatch.setattr(module, "MANY", 4)  # by itself it would be exported now
    done = predict(weights, [photos], output=output)
    assert (done.images, done.done_before) == (4, 3)
    assert not kept(tmp_path)

"""Exported models: the answers of the model, in other runtimes, or no file at all."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from torch import nn

import vitlab
from exporting.exported import expected, made, random_pixels, run_alone
from vitlab.classify.engines.runtimes import run_onnx
from vitlab.errors import ConfigError, Disagrees, FileError, InputError, UnknownName, VitlabError
from vitlab.exporting import onnx as onnx_export
from vitlab.exporting.program import quiet
from vitlab.exporting.verify import Comparison, compare
from vitlab.jobs import export as export_task
from vitlab.models.config import ViTConfig
from vitlab.models.variants import create_model, variant, variants
from vitlab.weights.exported import read_export_metadata, read_metadata

pytest.importorskip("onnxscript")
pytestmark = pytest.mark.usefixtures("no_type_checks")

# Float32 against float64, of logits of about one.
CLOSE: dict[str, Any] = {"atol": 1e-5, "rtol": 1e-5}
UNUSUAL: dict[str, dict[str, Any]] = {
    "registers": {
        "patch_size": 8,
        "image_size": (96, 160),
        "channels": 4,
        "registers": 4,
        "pool": "mean",
    },
    "hybrid": {
        "stem": "resnet",
        "resnet_width": 32,
        "resnet_layers": (1,),
        "patch_size": 2,
        "image_size": (96, 160),
        "channels": 4,
        "registers": 4,
        "pool": "mean",
    },
}


@pytest.mark.parametrize(("kind", "inside"), [("registers", False), ("hybrid", True)])
def test_onnx_runtime_alone_gives_the_answers(kind: str, inside: bool, tmp_path: Path) -> None:
    model = made(depth=1, classes=7, **UNUSUAL[kind])
    file = tmp_path / "model.onnx"
    found = vitlab.export(model, output=file, preprocess_inside=inside)
    assert found.files == (file,)
    assert 0 < found.comparison.largest < 1e-4
    pixels = random_pixels(model, 3)
    assert_allclose(run_alone(file, pixels, tmp_path), expected(model, pixels), **CLOSE)
    told = json.loads(read_metadata(file)["vitlab"])
    assert told["model"]["image_size"] == [96, 160]
    assert told["labels"] == [str(number) for number in range(7)]
    assert str(Path(vitlab.__file__).parent).encode() not in file.read_bytes()
    assert b"stack_trace" not in file.read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        *("logits.npy", "model.onnx", "pixels.npy")
    ]


def test_the_zeros_around_a_pool_stay_zeros(tmp_path: Path) -> None:
    """BiT's pool sees zeros beyond the border; ONNX Runtime would take its own -inf for them."""
    model = made("resnet50_bit", layers=(1,), image_size=32, classes=7)
    assert (model.root(torch.zeros(1, 3, 32, 32) - 1) >= 0)[..., 0, :].all()
    found = vitlab.export(model, output=tmp_path / "a.onnx")
    assert found.comparison.largest < 1e-4


def test_a_program_of_torch_takes_any_number_of_images(tmp_path: Path) -> None:
    model = made(pool="map", attention="axial", position="rope", depth=2, image_size=(40, 48))
    file = tmp_path / "model.pt2"
    found = vitlab.export(model, output=file, format="torch-export", image_size=(56, 40))
    extra = {"vitlab": "", "vitlab_export": ""}
    with quiet():
        program = torch.export.load(str(file), extra_files=extra)
    assert json.loads(extra["vitlab"])["model"]["image_size"] == [56, 40]
    images = torch.randn(5, 3, 56, 40)
    # The model itself may take images of other sizes, and then resizes positions as it goes.
    wanted = create_model(replace(model.config, dynamic_size=True))
    wanted.load_state_dict(model.state_dict())
    with torch.inference_mode():
        eager = wanted.eval()(images)
    assert_allclose(program.module()(images).detach(), eager, **CLOSE)
    assert found.described.facts.batch is None


def test_a_file_for_one_image(tmp_path: Path) -> None:
    file, model = tmp_path / "one.onnx", made("cnn_tutorial")
    found = vitlab.export(model, output=file, dynamic_batch=False)
    assert found.described.facts.batch == 1
    pixels = random_pixels(model, 1)
    assert_allclose(run_alone(file, pixels, tmp_path), expected(model, pixels), **CLOSE)


def test_a_model_that_disagrees_leaves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def wrong(path: Path) -> Any:
        right = run_onnx(path)
        return lambda images: 1.001 * right(images)

    monkeypatch.setitem(export_task.RUNNERS, "onnx", wrong)
    with pytest.raises(Disagrees, match=r"differs from the model by .* nothing was written"):
        vitlab.export(made("cnn_tutorial"), output=tmp_path / "model.onnx")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("largest", "passes"), [(1e-5, True), (2e-3, False), (float("nan"), False)]
)
def test_what_may_differ_grows_with_the_logits(largest: float, passes: bool) -> None:
    compared = Comparison(largest=largest, scale=10.0, tolerance=1e-4, images=1)
    assert compared.allowed == pytest.approx(1e-3)
    if passes:
        compared.check()
    else:
        with pytest.raises(Disagrees):
            compared.check()


def test_a_missing_number_is_no_agreement() -> None:
    model = made(depth=1)
    found = compare(
        model,
        lambda images: np.full((len(images), 10), np.nan, np.float32),
        preprocessing=model.source.preprocessing,
        inside=False,
        batches=(1,),
        tolerance=1e-4,
    )
    assert np.isnan(found.largest)


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"format": "onxx"}, UnknownName, "unknown format 'onxx'; did you mean onnx"),
        ({"output": "a.bin"}, FileError, r"a.bin: onnx is written as a file that ends in \.onnx"),
        ({"output": "no/a.onnx"}, FileError, "there is no folder .*no$"),
        ({"quantize": "int4"}, UnknownName, "unknown quantisation 'int4'"),
        (
            {"quantize": "int8", "format": "torch-export", "output": "a.pt2"},
            ConfigError,
            "--quantize int8 is for --format onnx, not torch-export",
        ),
        ({"calibrate": "."}, ConfigError, "--calibrate is for --quantize int8"),
        ({"image_size": 33}, VitlabError, "image_size 33: height is not a multiple of patch_size"),
        ({"model": create_model("cnn_tutorial"), "image_size": 64}, InputError, "no Vision Tra"),
        ({"model": "vit_tset"}, UnknownName, "unknown model or file 'vit_tset'"),
        ({"model": nn.Linear(2, 3)}, ConfigError, "Linear has no config that gives the size"),
        (
            {"compact": True, "format": "torch-export", "output": "a.pt2"},
            ConfigError,
            "compact and format torch-export; valid: ONNX files alone",
        ),
    ],
)
def test_mistakes_are_one_line_and_leave_nothing(
    changes: dict[str, Any],
    error: type[Exception],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(error, match=message) as caught:
        vitlab.export(**{"model": "vit_test", "output": "a.onnx"} | changes)
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.iterdir())


def test_a_file_that_exists_stays(tmp_path: Path) -> None:
    (tmp_path / "a.onnx").write_text("mine")
    with pytest.raises(FileError, match="exists; --force overwrites it"):
        vitlab.export("vit_test", output=tmp_path / "a.onnx")
    assert (tmp_path / "a.onnx").read_text() == "mine"


def test_weights_beside_the_old_file_go_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, data = tmp_path / "a.onnx", tmp_path / "a.onnx.data"
    with monkeypatch.context() as patch:
        patch.setattr(onnx_export, "LARGEST", 1)
        assert vitlab.export("vit_test", output=file).files == (data, file)
    assert vitlab.export("vit_test", output=file, force=True).files == (file,)
    assert not data.exists()


def test_without_the_extra_one_line_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(onnx_export, "NEEDED", ("onnx", "no_such_package"))
    with pytest.raises(VitlabError, match=r"pip install 'vitlab\[export\]'"):
        vitlab.export("vit_test", output=tmp_path / "a.onnx")


def test_without_a_compiler_one_line_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings: Any = pytest.importorskip("torch._inductor.config")
    with (
        settings.patch({"cpp.cxx": (None, "/nowhere/g++")}),
        pytest.raises(ConfigError, match="needs a C\\+\\+ compiler, and none works") as caught,
    ):
        vitlab.export("vit_test", output=tmp_path / "a.pt2", format="aoti")
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.iterdir())


def shrunk(name: str) -> Any:
    """The variant in its own size, with as few blocks as it can have."""
    config = variant(name)
    if not isinstance(config, ViTConfig):
        return made(name)
    return made(
        name, depth=min(config.depth, 1 if config.pool_after is None else config.pool_after + 1)
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", variants())
def test_every_variant_agrees(name: str, tmp_path: Path) -> None:
    model = shrunk(name)
    for format, file in (("onnx", "a.onnx"), ("torch-export", "a.pt2")):
        found = vitlab.export(model, output=tmp_path / file, format=format)
        assert found.comparison.largest <= 1e-4
        assert found.comparison.scale > 1e-2
        (tmp_path / file).unlink()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["vit_test", "vit_cifar", "vit_r_ti16"])
def test_compiled_packages_agree(name: str, tmp_path: Path) -> None:
    found = vitlab.export(shrunk(name), output=tmp_path / "a.pt2", format="aoti")
    assert found.comparison.largest <= 1e-4


@pytest.mark.slow
def test_the_bundled_model_agrees(tmp_path: Path) -> None:
    for format, file in (("onnx", "a.onnx"), ("torch-export", "a.pt2")):
        found = vitlab.export("cifar10", output=tmp_path / file, format=format)
        assert found.comparison.largest <= 1e-4
    told = read_export_metadata(read_metadata(tmp_path / "a.onnx"), "a.onnx")
    assert told.config["labels"][0] == "airplane"

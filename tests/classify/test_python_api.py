"""The Python interface: types, devices, state dicts, pickling, and names that do not collide."""

import pickle
import pkgutil
import random
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import vitlab
from vitlab.errors import InputError, WeightsError

ROOT = Path(__file__).resolve().parents[2]
SHAPE: dict[str, Any] = {"width": 32, "depth": 2, "heads": 2, "mlp_width": 64, "patch_size": 8}
SHAPE["image_size"] = 32
"""What the tensors of `vit_test` do not say."""
PAGES = ("README.md", "docs/models.md", "docs/weights.md", "docs/python.md")


@pytest.fixture
def image() -> np.ndarray:
    return np.random.default_rng(random.randrange(99)).integers(0, 256, (40, 50, 3), np.uint8)


def test_examples_pass_a_strict_type_checker(tmp_path: Path) -> None:
    files = []
    for page in PAGES:
        blocks = re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), flags=re.DOTALL)
        for number, block in enumerate(blocks):
            files.append(tmp_path / f"{Path(page).stem}_{number}.py")
            files[-1].write_text(block)
    wrong = tmp_path / "wrong.py"
    wrong.write_text("import vitlab\n\nvitlab.create_model('vit_b16').features(1)\n")
    settings = tmp_path / "mypy.ini"
    settings.write_text("[mypy]\n")
    checked = subprocess.run(
        [
            *(sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent"),
            *(f"--config-file={settings}", f"--cache-dir={tmp_path / 'cache'}"),
            *map(str, files),
            str(wrong),
        ],
        cwd=ROOT / "src",
        capture_output=True,
        text=True,
        check=False,
    )
    errors = [line for line in checked.stdout.splitlines() if ": error: " in line]
    assert len(errors) == 1, checked.stdout + checked.stderr
    assert "wrong.py" in errors[0]
    assert '"features" of "VisionTransformer"' in errors[0]


def test_no_public_name_is_a_module_too() -> None:
    modules = {module.name for module in pkgutil.iter_modules(vitlab.__path__)}
    assert modules.isdisjoint(vitlab.__all__)


def test_modules_and_functions_coexist() -> None:
    code = (
        "import vitlab.training.muon, vitlab.exporting.onnx, vitlab.evaluation.metrics\n"
        "import vitlab.explain.methods, vitlab.experiments.run\n"
        "print(*(callable(getattr(vitlab, n)) for n in ('train', 'export', 'evaluate')))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT / "src", capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["True"] * 3


def test_a_state_dict_is_loaded_and_copied() -> None:
    torch.manual_seed(random.randrange(99))
    model = vitlab.create_model("vit_test", classes=3)
    torch.nn.init.normal_(model.head.weight)
    state = model.state_dict()
    loaded = vitlab.load_weights(state, **SHAPE, classes=3)
    images = torch.randn(2, 3, 32, 32)
    torch.testing.assert_close(loaded(images), model.eval()(images), rtol=0, atol=0)
    before = state["head.weight"].clone()
    with torch.no_grad():
        loaded.head.weight.add_(1)
    assert torch.equal(state["head.weight"], before)


def test_a_state_dict_is_checked() -> None:
    state = vitlab.create_model("vit_test").state_dict()
    with pytest.raises(WeightsError, match="state dict: 'model' is a OrderedDict; valid: tensors"):
        vitlab.load_weights({"model": state})
    state.pop("encoder.norm.weight")
    with pytest.raises(WeightsError, match=re.escape("encoder.norm.weight")):
        vitlab.load_weights(state, **SHAPE, classes=10)


def test_a_state_dict_reads_no_config_beside_the_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "config.json").write_text('{"architecture": "resnet50"}')
    monkeypatch.chdir(tmp_path)
    model = vitlab.create_model("vit_test")
    assert vitlab.load_weights(model.state_dict(), **SHAPE, classes=10).source.labels is None


@pytest.mark.parametrize("make", [vitlab.load_weights, vitlab.load])
def test_the_device_is_chosen_where_a_model_is_loaded(make: object, tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    vitlab.save_weights(vitlab.create_model("vit_test", classes=2), path)
    found = make(path, device="meta")
    model = found.model if isinstance(found, vitlab.Classifier) else found
    assert {p.device.type for p in model.parameters()} == {"meta"}
    with pytest.raises(InputError, match="device 'tpu9' cannot be used here; valid: auto, cpu"):
        make(path, device="tpu9")


def test_create_model_takes_a_device() -> None:
    assert vitlab.create_model("vit_test", device="meta").head.weight.is_meta
    assert vitlab.create_model("cnn_tutorial", device="meta").config.classes


def test_an_engine_without_devices_says_so() -> None:
    pytest.importorskip("onnxruntime")
    with pytest.raises(InputError, match="the engine onnxruntime computes on the CPU"):
        vitlab.load("cifar10", engine="onnxruntime", device="cpu")


@pytest.mark.parametrize("engine", ["torch", "onnxruntime", "openvino"])
def test_a_classifier_survives_pickling(engine: str, image: np.ndarray) -> None:
    pytest.importorskip(engine)
    classifier = vitlab.load("cifar10", engine=engine)
    wanted = classifier.predict(image)
    copy = pickle.loads(pickle.dumps(classifier))
    assert copy.engine == engine
    assert copy.predict(image) == wanted


def test_a_bundle_of_ones_own_model(tmp_path: Path, image: np.ndarray) -> None:
    model = vitlab.create_model("vit_test", classes=3)
    torch.nn.init.normal_(model.head.weight)
    prepared = vitlab.Preprocessing(size=(32, 32), mean=(0.5,) * 3, std=(0.5,) * 3)
    vitlab.save_bundle(str(tmp_path / "b"), model, preprocessing=prepared, labels=["x", "y", "z"])
    found = vitlab.load(tmp_path / "b")
    assert isinstance(found, vitlab.Classifier)
    assert found.labels == ("x", "y", "z")
    assert found.predict(image)[0].label in found.labels

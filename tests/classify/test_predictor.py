"""The core that predicts: order, batches, threads, and the answers of timm."""

import importlib
import io
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image

from data.picture_files import encoded, picture
from jobs.classifiers import colours, saved_model
from reference.torchvision_ops import declare
from vitlab import create_model, load
from vitlab.classify.predictor import Predictor
from vitlab.errors import InputError, WeightsError
from vitlab.images.open import VALID
from vitlab.images.pixels import read_image
from vitlab.images.preprocessing import Preprocessing
from vitlab.machine.device import CACHE, MOST, fitting
from vitlab.models.cost import largest_output

PLAIN = Preprocessing(size=(4, 4), mean=(0.0,) * 3, std=(1.0,) * 3)


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    return saved_model(tmp_path / "model.safetensors")


@pytest.fixture(autouse=True)
def three_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


class Brightness:
    """An engine that takes the longer the brighter an image is, and answers with that."""

    batch_size, workers = 2, 3

    def __init__(self) -> None:
        self.started: list[int] = []
        self.threads: set[int] = set()
        self.sizes: list[int] = []
        self.closed = 0

    def start_worker(self) -> None:
        self.started.append(threading.get_ident())

    def predict(self, pixels: NDArray[Any]) -> NDArray[np.float32]:
        self.threads.add(threading.get_ident())
        self.sizes.append(len(pixels))
        level = pixels.reshape(len(pixels), -1).mean(axis=1) / 255
        threading.Event().wait(0.02 * float(level.max()))
        return np.stack([level, 1 - level], axis=1).astype(np.float32)

    def close(self) -> None:
        self.closed += 1


def grey(level: int) -> Image.Image:
    return Image.new("RGB", (5, 7), (level,) * 3)


def test_predictions_keep_the_order_of_the_pictures() -> None:
    engine = Brightness()
    predictor = Predictor(engine=engine, preprocessing=PLAIN, labels=("light", "dark"))
    levels = [255, 0, 200, 1, 100, 50, 0, 255, 30]
    batches = list(predictor.stream(map(grey, levels), top=1))
    assert [len(batch) for batch in batches] == [2, 2, 2, 2, 1]
    found = [prediction for batch in batches for prediction in batch]
    assert [p.label for p in found] == ["light" if v > 127 else "dark" for v in levels]
    assert [p.probability for p in found] == pytest.approx(
        [max(v, 255 - v) / 255 for v in levels], abs=1e-6
    )
    assert engine.threads <= set(engine.started)
    assert threading.get_ident() not in engine.threads
    assert engine.closed == 1


def test_a_lone_batch_is_computed_by_the_caller() -> None:
    for continued in (False, True):
        engine = Brightness()
        predictor = Predictor(engine=engine, preprocessing=PLAIN, labels=("light", "dark"))
        list(predictor.stream([grey(3), grey(5)], top=1, continued=continued))
        assert (threading.get_ident() in engine.threads) is not continued
        assert engine.closed == 1


def test_broken_pictures_do_not_reach_the_engine() -> None:
    engine = Brightness()
    predictor = Predictor(engine=engine, preprocessing=PLAIN, labels=("light", "dark"))
    pictures = ["gone.png", "gone.png", grey(9), "gone.png", io.BytesIO(b"nothing")]
    found = [p for batch in predictor.stream(pictures, top=2) for p in batch]
    assert [p.error for p in found] == [
        "No such file or directory",
        "No such file or directory",
        None,
        "No such file or directory",
        f"not an image of a known format; {VALID}",
    ]
    assert [p.path for p in found] == ["gone.png", "gone.png", None, "gone.png", "-"]
    assert engine.sizes == [1]


def test_a_multi_label_model_tells_what_is_likely() -> None:
    predictor = Predictor(
        engine=Brightness(),
        preprocessing=PLAIN,
        labels=("light", "dark"),
        task="multi-label",
        threshold=0.25,
    )
    (found,) = predictor.stream([grey(255), grey(153)], top=1)
    assert [[label for label, _ in p.top] for p in found] == [["light"], ["light", "dark"]]
    assert [p.label for p in found] == ["light", "light"]
    strict = replace(predictor, threshold=0.9)
    (found,) = strict.stream([grey(153)], top=1)
    assert (found[0].label, found[0].probability, found[0].top) == (None, None, ())


def test_a_regression_tells_values_in_order() -> None:
    predictor = Predictor(
        engine=Brightness(), preprocessing=PLAIN, labels=("light", "dark"), task="regression"
    )
    (found,) = predictor.stream([grey(51)], top=1)
    assert found[0].label is None
    assert found[0].value == pytest.approx(0.2, abs=1e-6)
    assert [label for label, _ in found[0].top] == ["light", "dark"]


def test_a_failing_engine_is_no_failing_picture() -> None:
    class Broken(Brightness):
        def predict(self, pixels: NDArray[Any]) -> NDArray[np.float32]:
            raise RuntimeError("out of memory")

    engine = Broken()
    predictor = Predictor(engine=engine, preprocessing=PLAIN, labels=("light", "dark"))
    for number, images in enumerate((99, 1), start=1):
        with pytest.raises(RuntimeError, match="out of memory"):
            list(predictor.stream(map(grey, range(images)), top=1))
        assert engine.closed == number


def test_torch_has_its_threads_back(weights: Path, tmp_path: Path) -> None:
    paths = sorted(colours(tmp_path / "photos", 9).iterdir())
    seen: list[int] = []
    classifier = load(weights)
    answer = classifier.probabilities

    def watched(images: torch.Tensor) -> torch.Tensor:
        seen.append(torch.get_num_threads())
        return answer(images)

    classifier.probabilities = watched  # type: ignore[method-assign]
    classifier.predict(paths, batch_size=2)
    assert set(seen) == {1}
    assert torch.get_num_threads() == 3
    started: list[int] = []
    thread = threading.Thread(target=lambda: started.append(torch.get_num_threads()))
    thread.start()
    thread.join()
    assert started == [3]
    classifier.predict(paths, batch_size=9)
    assert seen[-1] == 3
    lone = classifier.predictor(batch_size=9)
    torch.set_num_threads(2)  # meanwhile, by whoever wants it so
    list(lone.stream(paths, top=1))
    assert torch.get_num_threads() == 2


def test_engines_at_once_have_the_threads_of_a_lone_one(weights: Path) -> None:
    classifier = load(weights)
    first = classifier.predictor(batch_size=2).engine
    found: list[int] = []

    def second() -> None:
        engine = classifier.predictor(batch_size=2).engine
        found.append(engine.workers)
        engine.start_worker()
        engine.close()
        found.append(torch.get_num_threads())

    for work in (first.start_worker, second):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    assert found == [3, 1]  # the first still shares its threads out
    first.close()
    thread = threading.Thread(target=lambda: found.append(torch.get_num_threads()))
    thread.start()
    thread.join()
    assert found[-1] == 3


def test_batches_do_not_change_the_answer(weights: Path, tmp_path: Path) -> None:
    paths = sorted(colours(tmp_path / "photos", 7).iterdir())
    classifier = load(weights)
    expected = classifier.predict(paths, batch_size=1)
    for batch_size in (2, 7, None):
        found = classifier.predict(paths, batch_size=batch_size)
        assert [p.label for p in found] == [p.label for p in expected]
        # Sums in another order: the last digits of float32.
        assert [p.probability for p in found] == pytest.approx(
            [p.probability for p in expected], rel=1e-5
        )


def test_an_engine_takes_normalised_images_too(weights: Path) -> None:
    classifier = load(weights)
    engine = classifier.predictor().engine
    source = picture(0)
    pixels = read_image(source, classifier.preprocessing)[None]
    normalised = classifier.preprocessing.apply(source)[None]
    np.testing.assert_array_equal(engine.predict(pixels), engine.predict(normalised))


@pytest.mark.parametrize(
    ("name", "largest"),
    [("vit_ti16", 197 * 768 * 4), ("vit_b16", 197 * 3072 * 4)],
)
def test_batches_fit_the_cache(name: str, largest: int) -> None:
    with torch.device("meta"):
        model = create_model(name, depth=1)
    assert fitting(largest_output(model)) == min(MOST, max(1, CACHE // largest))
    assert not any(module._forward_hooks for module in model.modules())


def test_convolutional_models_have_batches_too() -> None:
    with torch.device("meta"):
        model = create_model("resnet18_cifar")
    assert 1 <= fitting(largest_output(model)) < MOST


def test_wrong_wishes(weights: Path) -> None:
    classifier = load(weights)
    with pytest.raises(InputError, match="top 0 must be at least 1"):
        classifier.predict(picture(0), top=0)
    with pytest.raises(InputError, match="batch_size 0 must be at least 1"):
        classifier.predict(picture(0), batch_size=0)
    with pytest.raises(WeightsError, match="has no head"):
        load(weights, classes=0).predict(picture(0))


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (encoded(picture(0), "GIF", save_all=True, append_images=[picture(1)]), "animated"),
        (encoded(picture(0), "PNG", save_all=True, append_images=[picture(1)]), "animated"),
        (encoded(picture(0, 1, 1), "PNG"), "1 x 1 pixels"),
        (b"%PDF-1.4 ", "a PDF document"),
    ],
)
def test_what_is_no_single_picture_is_refused(content: bytes, reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        read_image(io.BytesIO(content), PLAIN)


def test_a_cameras_second_picture_is_no_animation() -> None:
    content = encoded(picture(0), "MPO", save_all=True, append_images=[picture(1)])
    expected = PLAIN.pixels(Image.open(io.BytesIO(encoded(picture(0), "JPEG"))))
    found = read_image(io.BytesIO(content), PLAIN)
    np.testing.assert_array_equal(found, expected)


def test_reading_imports_no_torch() -> None:
    modules = "vitlab.classify.predictor, vitlab.images.find"
    code = f"import sys, {modules}; sys.exit('torch' in sys.modules)"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    assert subprocess.run([sys.executable, "-c", code], env=environment).returncode == 0


def test_the_answers_are_timms(shared: Path) -> None:
    declare()
    timm, data = importlib.import_module("timm"), importlib.import_module("timm.data")
    file = shared / "weights" / "deit_tiny_patch16_224.safetensors"
    theirs = timm.create_model("deit_tiny_patch16_224", checkpoint_path=str(file)).eval()
    settings = data.resolve_data_config({"crop_pct": 224 / 256}, model=theirs)  # as DeiT's authors
    transform = data.create_transform(**settings)
    paths = sorted((shared / "data" / "imagenette-mini" / "val").rglob("*.JPEG"))[::83]
    images = torch.stack([transform(Image.open(path).convert("RGB")) for path in paths])
    with torch.inference_mode():
        values, classes = theirs(images).softmax(dim=-1).topk(5)
    classifier = load(file)
    found = classifier.predict(paths, batch_size=4)
    labels = [[classifier.labels[number] for number in row] for row in classes.tolist()]
    assert [[label for label, _ in p.top] for p in found] == labels
    # The same pixels bit for bit; twelve layers of float32 in another order lose 1e-6.
    ours = np.array([[value for _, value in p.top] for p in found])
    np.testing.assert_allclose(ours, values.numpy(), atol=1e-5)

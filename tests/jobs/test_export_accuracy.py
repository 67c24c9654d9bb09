"""What an export costs in accuracy, and an exported model where torch's is asked for."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch

import vitlab
from vitlab.classify.classifier import open_classifier
from vitlab.errors import InputError
from vitlab.evaluation.classification import Outcome
from vitlab.jobs.evaluate import ExportedNet, described, evaluate
from vitlab.jobs.export import compared
from vitlab.weights.resolve import bundled_folder


def outcome(answers: list[int], labels: list[int]) -> Outcome:
    return Outcome(
        logits=torch.eye(3)[answers], labels=torch.tensor(labels), index=torch.arange(len(labels))
    )


def test_accuracy_is_compared_image_by_image() -> None:
    truth = [0, 1, 2, 0, 1, 2, 0]
    before = outcome([0, 1, 2, 0, 1, 0, 1], truth)  # 5 of 7 right
    after = outcome([0, 1, 0, 1, 1, 2, 2], truth)  # loses two, wins one, errs differently once
    found = compared(before, after, "x")
    assert (found.images, found.before, found.after) == (7, 5 / 7, 4 / 7)
    assert found.agreement == 3 / 7
    # The spread of the differences, with half an image more that wins and half a one that loses,
    # and as many that stay right and stay wrong.
    weights = np.array([1] * 7 + [0.5] * 4)
    values = np.array([0, 0, -1, -1, 0, 1, 0, 0, 0, 1, -1])
    mean = np.average(values, weights=weights)
    half = 1.959964 * math.sqrt(np.average((values - mean) ** 2, weights=weights) / 9)
    assert found.interval == pytest.approx((mean - half, mean + half))
    same = compared(before, before, "x")
    assert same.interval[0] < -0.1 < 0.1 < same.interval[1]  # seven images are no proof


def test_an_exported_model_computes_the_logits_of_the_model() -> None:
    pytest.importorskip("onnxruntime")
    opened = open_classifier("cifar10", engine="onnxruntime")
    images = torch.randn(5, 3, 32, 32)
    classifier = vitlab.load("cifar10")
    with torch.inference_mode():
        torch.testing.assert_close(
            ExportedNet(opened)(images), classifier.model(images), atol=1e-4, rtol=1e-4
        )
    assert described(opened).labels == classifier.labels


def test_an_exported_file_is_evaluated(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    folder = bundled_folder("cifar10")
    assert folder is not None
    data = tmp_path / "digits"
    from PIL import Image

    for number, label in enumerate(("cat", "dog", "cat", "dog", "ship", "ship")):
        place = data / "test" / label
        place.mkdir(parents=True, exist_ok=True)
        pixels = np.random.default_rng(number).integers(0, 256, (32, 32, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(place / f"{number}.png")
        (data / "train" / label).mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels[::-1].copy()).save(data / "train" / label / f"{number}.png")
    one = evaluate("cifar10", data)
    two = evaluate(folder / "model.onnx", data)
    torch.testing.assert_close(two.outcome.logits, one.outcome.logits, atol=1e-4, rtol=1e-4)
    with pytest.raises(InputError, match="is not for the engine torch"):
        open_classifier(folder / "model.onnx", engine="torch")

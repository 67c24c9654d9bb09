"""Token merging as an option of a loaded classifier and of the commands."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from command import Command
from jobs.classifiers import colours, saved_model
from vitlab import create_model, load, save_weights
from vitlab.classify.classifier import Classifier
from vitlab.errors import FileError, InputError
from vitlab.jobs.predict import predict
from vitlab.models.merging import merging
from vitlab.weights.load import load_weights


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved_model(tmp_path_factory.mktemp("model") / "model.safetensors")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return colours(tmp_path_factory.mktemp("photos"), 7)


def tops(classifier: Classifier, folder: Path) -> list[tuple[tuple[str, float], ...]]:
    return [found.top for found in classifier.predict(sorted(folder.glob("*")), batch_size=3)]


def test_a_loaded_classifier_merges(weights: Path, folder: Path) -> None:
    classifier = load(weights, merge_tokens=3)
    assert classifier.merge_tokens == 3
    model = merging(load_weights(weights), 3)
    pixels = np.stack([classifier.preprocessing.apply(path) for path in sorted(folder.glob("*"))])
    with torch.inference_mode():
        expected = model(torch.from_numpy(pixels)).softmax(dim=-1)
        torch.testing.assert_close(classifier.probabilities(torch.from_numpy(pixels)), expected)
    for top, row in zip(tops(classifier, folder), expected, strict=True):
        # Batches of other sizes sum in another order.
        assert [value for _, value in top] == pytest.approx(sorted(row.tolist())[::-1], abs=1e-6)


def test_none_is_the_plain_model_and_many_are_another(weights: Path, folder: Path) -> None:
    plain = tops(load(weights), folder)
    assert tops(load(weights, merge_tokens=0), folder) == plain
    assert tops(load(weights, merge_tokens=1000), folder) != plain


def test_what_needs_every_token_is_refused(weights: Path, folder: Path) -> None:
    classifier = load(weights, merge_tokens=3)
    picture = folder / "00.png"
    with pytest.raises(InputError, match=r"features of a model that merges tokens \(merge_tok"):
        classifier.features(picture)
    with pytest.raises(InputError, match="rollout of a model that merges tokens"):
        classifier.explain(picture, method="rollout")


def test_the_commands_merge(command: Command, weights: Path, folder: Path) -> None:
    picture = folder / "00.png"
    expected = load(weights, merge_tokens=5).predict(picture)[0]
    found = json.loads(command("predict", weights, picture, "--merge-tokens", 5, "--json").out)
    assert found[0]["top"] == [list(pair) for pair in expected.top]


def test_evaluate_merges_and_says_so(
    command: Command, weights: Path, folder: Path, tmp_path: Path
) -> None:
    for label, number in (("blue", 2), ("green", 1), ("red", 0)):
        (tmp_path / "val" / label).mkdir(parents=True)
        for path in sorted(folder.glob("*"))[number::3]:
            (tmp_path / "val" / label / path.name).symlink_to(path)
    files = sorted((tmp_path / "val").glob("*/*"))
    told = load(weights, merge_tokens=7).predict(files)
    right = sum(found.label == path.parent.name for found, path in zip(told, files, strict=True))
    asked = ("evaluate", weights, "--data", tmp_path / "val", "--split", "all")
    found = json.loads(command(*asked, "--merge-tokens", 7, "--json").out)
    assert (found["accuracy"], found["merge_tokens"]) == (right / len(files), 7)
    page = tmp_path / "page.html"
    shown = command(*asked, "--merge-tokens", 7, "--output", page)
    assert "merged tokens" in shown.out
    assert "--merge-tokens 7" in page.read_text()
    assert json.loads(command(*asked, "--json").out)["merge_tokens"] == 0


def test_predictions_are_not_continued_with_another_number(
    weights: Path, folder: Path, tmp_path: Path
) -> None:
    output = tmp_path / "found.csv"
    predict(weights, [folder], output=output, merge_tokens=2)
    before = output.read_bytes()
    with pytest.raises(FileError, match=r"another number of merged tokens \(2, now 3\)"):
        predict(weights, [folder], output=output, merge_tokens=3)
    with pytest.raises(FileError, match=r"another number of merged tokens \(2, now 0\)"):
        predict(weights, [folder], output=output)
    assert predict(weights, [folder], output=output, merge_tokens=2).done_before == 7
    assert output.read_bytes() == before


def test_a_model_that_cannot_merge_is_one_line(
    command: Command, folder: Path, tmp_path: Path
) -> None:
    model = tmp_path / "model.safetensors"
    save_weights(create_model("vit_test", attention="lsa"), model)
    mistake = command("predict", model, folder / "00.png", "--merge-tokens", 2).mistake
    assert mistake.startswith("merge_tokens 2: attention 'lsa' does not treat all tokens alike;")
    assert "'--merge-tokens'" in command("predict", "x", "y", "--merge-tokens", -1).mistake

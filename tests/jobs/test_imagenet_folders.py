"""ImageNet's folders are called by WordNet ids, its classes by names: evaluation knows both."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import vitlab
from vitlab.jobs.evaluate import _find
from vitlab.weights.labels import imagenet_labels, matching, wordnet_ids
from vitlab.wordnet import names_of, shown_class
from weights.published import small_model

IDS = ("n01440764", "n02124075", "n02979186")
NAMES = ("tench", "Egyptian cat", "cassette player")


@pytest.mark.parametrize("by_name", [False, True])
def test_folders_by_id_or_name(tmp_path: Path, by_name: bool) -> None:
    names = dict(zip(wordnet_ids(), imagenet_labels(), strict=True))
    weights = tmp_path / "model.safetensors"
    model = small_model()
    vitlab.save_weights(model, weights)
    preparation = vitlab.Preprocessing(size=(32, 32), mean=(0.5,) * 3, std=(0.5,) * 3)
    known = vitlab.load_weights(weights, labels="imagenet-1k", preprocessing=preparation)
    vitlab.save_weights(known, weights)
    random = np.random.default_rng(0)
    for split in ("train", "val"):
        for wordnet in IDS:
            folder = tmp_path / "data" / split / (names[wordnet] if by_name else wordnet)
            folder.mkdir(parents=True)
            for number in range(2):
                pixels = random.integers(0, 256, (33, 35, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(folder / f"{number}.png")
    found = vitlab.evaluate(weights, tmp_path / "data")
    assert set(found.outcome.labels.tolist()) == {wordnet_ids().index(wordnet) for wordnet in IDS}


def test_classes_are_called_by_their_names(tmp_path: Path) -> None:
    random = np.random.default_rng(1)
    for wordnet in IDS:
        (tmp_path / "data" / wordnet).mkdir(parents=True)
        for number in range(6):
            pixels = random.integers(0, 256, (33, 35, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / "data" / wordnet / f"{number}.png")
    out = tmp_path / "run"
    changes = {"model": "vit_test", "budget_in": "steps", "budget": 1.0}
    vitlab.train(data=tmp_path / "data", out=out, changes=changes)
    shown = tuple(f"{name} ({wordnet})" for wordnet, name in zip(IDS, NAMES, strict=True))
    assert vitlab.load(out).labels == shown
    assert "tench (n01440764)" in (out / "report.html").read_text()
    image = tmp_path / "data" / IDS[0] / "0.png"
    classifier = vitlab.load(out, engine="torch")
    assert classifier.predict(image)[0].label in shown
    for name in ("tench", "n01440764", "tench (n01440764)"):
        found = classifier.explain(image, target=name, method="gradcam")
        assert found.target == "tench (n01440764)"
    assert vitlab.evaluate(out, tmp_path / "data").evaluation.images > 0
    assert matching(shown, ("Tench", IDS[1], "cassette player")) == (0, 1, 2)


@pytest.mark.parametrize("labels", [IDS, tuple(reversed(IDS))])
def test_models_that_know_only_ids_are_evaluated(labels: tuple[str, ...]) -> None:
    own = [shown_class(label) for label in labels]
    assert [_find(label, labels, "data") for label in own] == [0, 1, 2]
    assert [_find(label, own, "data") for label in labels] == [0, 1, 2]


@pytest.mark.parametrize("name", ["n99999999", "cat", "tench"])
def test_other_folders_keep_their_names(name: str) -> None:
    assert shown_class(name) == name
    assert names_of(name) == (name,)

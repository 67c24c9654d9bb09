"""Zero-shot scores of random CLIP and SigLIP models equal those of transformers."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import vitlab
from data.colours import saved_model, write_colours
from vitlab.errors import InputError, WeightsError
from vitlab.images.pixels import read_image
from weights.whole_models import WHOLE, tokenizer_of

LABELS = ["cat", "a dog", "红色的汽车", "🐱", "nothing at all"]
TEMPLATE = "a photo of a {}."
Made = tuple[str, Path, nn.Module]


@pytest.fixture(scope="module", params=WHOLE)
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Made:
    folder = tmp_path_factory.mktemp(request.param)
    return request.param, folder, WHOLE[request.param](folder)


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return sorted(write_colours(tmp_path_factory.mktemp("colours"), {".": 2}).rglob("*.png"))


def their_scores(
    made: Made, classifier: vitlab.Classifier, images: list[Path], texts: list[str]
) -> torch.Tensor:
    """Probabilities of transformers' model, of pixels that our preprocessing has prepared."""
    family, folder, theirs = made
    pixels = np.stack([read_image(path, classifier.preprocessing) for path in images])
    length = theirs.config.text_config.max_position_embeddings
    tokens = tokenizer_of(family, folder)(
        texts, padding="max_length", max_length=length, truncation=True, return_tensors="pt"
    )
    given = torch.from_numpy(pixels)
    if given.dtype == torch.uint8:
        mean, std = (
            torch.tensor(values)[:, None, None]
            for values in (classifier.preprocessing.mean, classifier.preprocessing.std)
        )
        given = (given / 255 - mean) / std
    with torch.no_grad():
        logits = theirs(input_ids=tokens["input_ids"], pixel_values=given).logits_per_image
    return logits.softmax(dim=1) if family == "clip" else logits.sigmoid()


def scores(found: list[Any], labels: list[str]) -> torch.Tensor:
    return torch.tensor([[dict(prediction.top)[label] for label in labels] for prediction in found])


def test_scores_equal_those_of_transformers(made: Made, images: list[Path]) -> None:
    classifier = vitlab.load(made[1])
    found = classifier.zeroshot(images, LABELS, templates=TEMPLATE, top=5)
    expected = their_scores(made, classifier, images, [TEMPLATE.format(each) for each in LABELS])
    assert expected.std() > 1e-2, "equal probabilities prove nothing"
    torch.testing.assert_close(scores(found, LABELS), expected, rtol=0, atol=2e-5)
    for prediction, row in zip(found, expected, strict=True):
        assert prediction.label == LABELS[int(row.argmax())]
        values = [value for _, value in prediction.top]
        assert values == sorted(values, reverse=True)


def test_an_ensemble_averages_normalised_embeddings(made: Made, images: list[Path]) -> None:
    family, folder, theirs = made
    templates = ["a photo of a {}", "{}", "{} and {}"]
    classifier = vitlab.load(folder)
    head = classifier.for_labels(LABELS, templates=templates).model.head
    tokens = tokenizer_of(family, folder)
    rows = []
    for label in LABELS:
        texts = [template.replace("{}", label) for template in templates]
        given = tokens(
            texts, padding="max_length", max_length=17, truncation=True, return_tensors="pt"
        )
        with torch.no_grad():
            each = theirs.get_text_features(input_ids=given["input_ids"]).pooler_output
        rows.append(F.normalize(F.normalize(each, dim=1).mean(dim=0), dim=0))
    expected = torch.stack(rows) * theirs.logit_scale.exp()
    torch.testing.assert_close(head.weight.data, expected.detach(), rtol=0, atol=2e-4)
    bias = torch.zeros(5) if family == "clip" else theirs.logit_bias.data.expand(5)
    torch.testing.assert_close(head.bias.data, bias)


def test_top_and_threshold(made: Made, images: list[Path]) -> None:
    classifier = vitlab.load(made[1])
    two = classifier.zeroshot(images[0], LABELS, top=2)[0]
    everything = classifier.zeroshot(images[0], LABELS, top=9)[0]
    assert two.top == everything.top[:2]
    assert len(everything.top) == len(LABELS)
    if made[0] == "clip":
        with pytest.raises(InputError, match=r"threshold 0.5 is for multi-label models"):
            classifier.zeroshot(images[0], LABELS, threshold=0.5)
        return
    value = everything.top[2][1]
    assert len(classifier.zeroshot(images[0], LABELS, threshold=value)[0].top) == 3


def test_merged_tokens_are_kept(made: Made, images: list[Path]) -> None:
    merged = vitlab.load(made[1], merge_tokens=2)
    found = merged.zeroshot(images, LABELS)
    assert merged.for_labels(LABELS).merge_tokens == 2
    plain = vitlab.load(made[1]).zeroshot(images, LABELS)
    assert [p.top for p in found] != [p.top for p in plain]


@pytest.mark.parametrize(
    ("labels", "templates", "message"),
    [
        ([], "{}", "no labels; valid: at least one name"),
        (["a", " "], "{}", "label 2 of 2 is empty"),
        (["a", "b", " a"], "{}", "label 'a' is given 2 times; valid: each label once"),
        ("a,b", "{}", r"labels 'a,b'; valid: a list of names"),
        (["a"], "a photo", "template 'a photo' has no place for the label; valid: a text with {}"),
        (["a"], [], "no templates; valid: at least one"),
    ],
)
def test_labels_and_templates_that_cannot_be(
    labels: Any, templates: Any, message: str, made: Made, images: list[Path]
) -> None:
    with pytest.raises(InputError, match=message):
        vitlab.load(made[1]).zeroshot(images, labels, templates=templates)


def test_models_without_a_text_tower(made: Made, images: list[Path], tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is a classifier, which has no text tower; valid"):
        vitlab.load(saved_model(tmp_path / "a.safetensors")).zeroshot(images, ["a"])
    tower = vitlab.load_weights(made[1])
    tower.save_pretrained(tmp_path / "bundle")
    with pytest.raises(WeightsError, match="no text tower in it; valid: the weights of a whole"):
        vitlab.load(tmp_path / "bundle").zeroshot(images, ["a"])


def test_without_a_tokenizer(made: Made, images: list[Path], tmp_path: Path) -> None:
    for path in made[1].iterdir():
        if path.name in ("config.json", "model.safetensors", "preprocessor_config.json"):
            (tmp_path / path.name).symlink_to(path)
    with pytest.raises(WeightsError, match="no tokenizer beside the weights; valid: the publisher"):
        vitlab.load(tmp_path).zeroshot(images, ["a"])

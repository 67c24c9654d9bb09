"""A model over a data set: every image once, in order, whatever the batches."""

import json
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

from vitlab.errors import InputError
from vitlab.evaluation.calibration import Temperature
from vitlab.evaluation.classification import (
    Evaluator,
    Outcome,
    collect,
    collect_flipped,
    confident_mistakes,
    evaluate,
)

IMAGES, CHANNELS, HEIGHT, WIDTH, CLASSES = 103, 2, 3, 5, 7
LABELS = tuple("abcdefg")


class Probe(nn.Module):
    """A linear model that notes how it was used; its dropout must be off."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(CHANNELS * HEIGHT * WIDTH, CLASSES)
        self.dropout = nn.Dropout(0.9)
        self.sizes: list[int] = []

    def forward(self, images: Tensor) -> Tensor:
        self.sizes.append(len(images))
        return self.head(self.dropout(images.flatten(1)))


@pytest.fixture
def model() -> Probe:
    torch.manual_seed(0)
    return Probe()


@pytest.fixture
def images() -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(IMAGES, CHANNELS, HEIGHT, WIDTH, generator=generator)


@pytest.fixture
def labels() -> Tensor:
    return torch.arange(IMAGES) % CLASSES


def batches(
    images: Tensor, labels: Tensor, order: Tensor | None = None, size: int = 10
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    order = torch.arange(len(labels)) if order is None else order
    for rows in order.split(size):
        yield images[rows], labels[rows], rows


def test_the_last_partial_batch_is_included(model: Probe, images: Tensor, labels: Tensor) -> None:
    outcome = collect(model, batches(images, labels))
    assert model.sizes == [10] * 10 + [3]
    assert len(outcome) == IMAGES
    assert outcome.index.tolist() == list(range(IMAGES))
    assert torch.equal(outcome.labels, labels)
    torch.testing.assert_close(outcome.logits, model.head(images.flatten(1)).detach())


def test_order_and_padding_change_nothing(model: Probe, images: Tensor, labels: Tensor) -> None:
    plain = collect(model, batches(images, labels))
    shuffled = torch.randperm(IMAGES, generator=torch.Generator().manual_seed(1))
    padded = torch.cat([shuffled, shuffled[:7]])
    again = collect(model, batches(images, labels, padded))
    assert torch.equal(again.index, plain.index)
    assert torch.equal(again.labels, plain.labels)
    # A batch of another composition sums in another order.
    torch.testing.assert_close(again.logits, plain.logits)


@pytest.mark.parametrize("training", [True, False])
def test_the_model_is_left_as_it_was(
    model: Probe, images: Tensor, labels: Tensor, training: bool
) -> None:
    model.train(training)
    collect(model, batches(images, labels))
    assert model.training is training
    with pytest.raises(RuntimeError):
        collect(model, batches(images.flatten(1)[:, 1:, None, None], labels))
    assert model.training is training


def test_flips_are_averaged(model: Probe, images: Tensor, labels: Tensor) -> None:
    once = collect(model, batches(images, labels))
    mirrored = collect(model, batches(images.flip(-1), labels))
    plain, both = collect_flipped(model, batches(images, labels))
    torch.testing.assert_close(plain.logits, once.logits)
    torch.testing.assert_close(both.logits, (once.logits + mirrored.logits) / 2)
    assert not torch.allclose(both.logits, once.logits)
    for outcome in (plain, both):
        assert torch.equal(outcome.labels, labels)
        assert torch.equal(outcome.index, once.index)


def test_no_batches(model: Probe) -> None:
    with pytest.raises(InputError, match="no image to evaluate"):
        collect(model, iter(()))


def test_what_a_training_run_watches(model: Probe, images: Tensor, labels: Tensor) -> None:
    watched = dict(Evaluator(batches=lambda: batches(images, labels), classes=CLASSES).run(model))
    whole = evaluate(collect(model, batches(images, labels)), LABELS)
    assert list(watched) == ["loss", "accuracy", "top5"]
    assert watched["accuracy"] == whole.accuracy
    assert watched["top5"] == whole.top5
    assert watched["loss"] == pytest.approx(whole.loss, rel=1e-12)


def test_top_five_of_few_classes_is_not_watched(images: Tensor) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(CHANNELS * HEIGHT * WIDTH, 3))
    labels = torch.arange(IMAGES) % 3
    watched = dict(Evaluator(batches=lambda: batches(images, labels), classes=3).run(model))
    assert list(watched) == ["loss", "accuracy"]


def answers(logits: list[list[float]], labels: list[int]) -> Outcome:
    count = torch.arange(len(labels))
    return Outcome(logits=torch.tensor(logits), labels=torch.tensor(labels), index=count)


def test_an_evaluation_by_hand() -> None:
    outcome = answers([[2.0, 0], [0, 1], [1, 0], [3, 0]], [0, 1, 1, 0])
    found = evaluate(outcome, ["cat", "dog"])
    assert (found.images, found.accuracy, found.top, found.top5) == (4, 0.75, 2, 1.0)
    assert found.confusion.tolist() == [[2, 0], [1, 1]]
    assert found.balanced == 0.75
    assert found.macro_f1 == pytest.approx((4 / 5 + 2 / 3) / 2)
    assert found.interval[0] < 0.75 < found.interval[1]
    assert found.scaled is None


def test_an_evaluation_is_json(model: Probe, images: Tensor, labels: Tensor) -> None:
    outcome = collect(model, batches(images, labels))
    found = evaluate(outcome, LABELS, temperature=Temperature(value=1.5, images=11))
    data = json.loads(json.dumps(found.to_dict()))
    assert data["images"] == IMAGES
    assert data["confusion"] == found.confusion.tolist()
    assert [item["label"] for item in data["classes"]] == list(LABELS)
    assert data["scaled"]["temperature"] == {"value": 1.5, "images": 11}
    assert data["reliability"]["ece"] == found.reliability.ece
    assert len(data["reliability"]["bins"]) == 15


def test_a_temperature_changes_calibration_and_loss_alone(
    model: Probe, images: Tensor, labels: Tensor
) -> None:
    outcome = collect(model, batches(images, labels))
    plain = evaluate(outcome, LABELS)
    scaled = evaluate(outcome, LABELS, temperature=Temperature(value=2.0, images=1))
    assert scaled.accuracy == plain.accuracy
    assert scaled.loss == plain.loss
    assert scaled.scaled is not None
    halved = Outcome(logits=outcome.logits / 2, labels=outcome.labels, index=outcome.index)
    assert scaled.scaled.loss == pytest.approx(evaluate(halved, LABELS).loss, rel=1e-6)
    assert scaled.scaled.reliability.ece == pytest.approx(
        evaluate(halved, LABELS).reliability.ece, rel=1e-6
    )


def test_labels_and_classes_must_agree() -> None:
    with pytest.raises(InputError, match="3 labels for logits of 2 classes"):
        evaluate(answers([[1.0, 0]], [0]), ["a", "b", "c"])


def test_the_surest_mistakes_come_first() -> None:
    outcome = answers([[1.0, 0], [0, 9], [0, 3], [5, 0], [0, 4]], [1, 0, 0, 0, 0])
    assert confident_mistakes(outcome, 3).tolist() == [1, 4, 2]
    assert confident_mistakes(outcome, 99).tolist() == [1, 4, 2, 0]

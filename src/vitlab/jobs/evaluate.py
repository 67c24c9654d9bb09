"""`vitlab evaluate`: a model on a data source, every image once."""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from jaxtyping import Float
from torch import Tensor, nn

from vitlab.classify.classifier import FILES, Classifier, load, open_classifier
from vitlab.data.datasets import Data, DataSource, absent_classes, absolute, open_data
from vitlab.data.images import (
    ArraySet,
    ClassCounts,
    ImageSet,
    Survey,
    count_images,
    joined,
    one_of,
    survey_of,
)
from vitlab.data.loader import batches_for_evaluation
from vitlab.errors import DataError, InputError, UnknownName, WeightsError
from vitlab.evaluation.calibration import NO_TEMPERATURE, Temperature, helpful_temperature
from vitlab.evaluation.classification import Batches, Outcome, collect, collect_flipped
from vitlab.evaluation.distributed import DistributedBatches
from vitlab.jobs.plan import read_plan, read_survey
from vitlab.jobs.processes import check_same, survey_once
from vitlab.jobs.training_run import divided
from vitlab.machine.device import best_device
from vitlab.machine.world import ALONE, World, open_world
from vitlab.models.variants import create_model
from vitlab.objectives.objective import Metrics, objective_of
from vitlab.report.run import Report, describe_data, describe_model
from vitlab.training.config import TrainConfig
from vitlab.weights.bundle import config_of, find_bundle, is_bundle, read_bundle_config
from vitlab.weights.resolve import bundled_folder
from vitlab.wordnet import imagenet_labels, wordnet_id, wordnet_ids

# An exported model as a module of torch: from images to logits.


class ExportedNet(nn.Module):
    """Logits of an exported file, in any runtime."""

    def __init__(self, classifier: Classifier) -> None:
        super().__init__()
        model = classifier.exported
        assert model is not None
        if model.metadata.facts.preprocess_inside:
            raise InputError(
                f"{model.file} takes 8-bit pixels, but the request needs normalised images; "
                f"valid: a file that was exported without --preprocess-inside"
            )
        self._session = model.session(classifier.source)

    def forward(self, images: Float[Tensor, "B C H W"]) -> Float[Tensor, "B classes"]:
        return torch.from_numpy(self._session.logits(images.cpu().numpy()))


def described(exported: Classifier) -> Classifier:
    """The classifier that was exported, without its weights: for descriptions."""
    model, merged = exported.exported, exported.merge_tokens
    assert model is not None
    config = config_of(model.metadata.config, str(model.file))
    with torch.device("meta"):
        return Classifier(create_model(config), exported.source, merge_tokens=merged)


Split = Literal["test", "train", "validation", "all"]
METRICS = "metrics.jsonl"
"""File by which a folder is recognised as a run."""
Watch = Callable[[int, int], None]
"""Progress callback: number of images done, and total."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Evaluated:
    """Result of an evaluation, with all that a report needs."""

    model: str
    classifier: Classifier
    source: DataSource
    split: str
    data: ImageSet
    outcome: Outcome
    evaluation: Metrics
    flipped: Metrics | None
    """Metrics of outputs averaged over each image and its mirror image; None: not requested."""
    temperature: bool
    """True if a temperature was requested."""
    broken: dict[str, str]
    """Images that could not be read, with the reason; they are not counted."""

    @property
    def counts(self) -> ClassCounts:
        """Evaluated images, by the classes of the data."""
        return count_images(self.data.labels[self.outcome.index], self.source.labels)

    @property
    def absent(self) -> tuple[str, ...]:
        """Sentences naming the classes of the data without an image in the split."""
        return absent_classes(self.source, {self.split: self.counts})


def evaluate(
    model: str | os.PathLike[str],
    data: Data,
    *,
    split: str = "test",
    flip: bool = False,
    temperature: bool = False,
    batch_size: int = 64,
    merge_tokens: int = 0,
    workers: int = 0,
    download: bool = False,
    engine: str = "auto",
    watch: Watch | None = None,
    **changes: Any,
) -> Evaluated:
    """Evaluate a model on the images of a split; `validation` is held out from `train`.

    `all` is for data that the model was not trained on.
    `flip` also evaluates the mean of the logits of each image and its mirror image.
    `temperature` fits one on the validation images, never on the evaluated ones.
    `merge_tokens` and `changes` as in `open_classifier`.
    `workers` are processes that decode files; 0: decode in this one.
    `engine` computes; `auto`: torch, or for an exported file its runtime.
    """
    world = open_world()
    check_split(split)
    if temperature and split != "test":
        raise InputError(
            f"a temperature is fitted on a part of the training images and says nothing about "
            f"split {split!r}; valid: split 'test'"
        )
    classifier, net = _open_model(model, engine, merge_tokens, changes)
    # Of a run's own files the same ones are held out as in training, or none are evaluated.
    place = bundled_folder(model) or Path(model)
    if isinstance(data, str | os.PathLike):
        known = _survey_of(place, data)
        source = open_data(
            data,
            download=download,
            channels=_channels(classifier),
            survey=survey_once(world, known=known, watch=watch),
        )
    else:
        source = _in_memory(data, classifier)
        split = "all" if split == "test" and source.open_test is None else split
    _check_task(classifier, source, temperature)
    numbers, labels = match_classes(classifier, source)
    job = _Job(
        classifier=classifier,
        net=net,
        numbers=numbers,
        batch_size=batch_size,
        workers=workers,
        world=world,
    )
    images = _open(source, split, place)
    check_same(images, world)
    held_out = _open(source, "validation", place) if temperature else None
    outcome, broken, mirrored = job.collect(images, watch, flip=flip)
    fitted = None if held_out is None else job.fit(held_out)
    objective = objective_of(source.task)
    return Evaluated(
        model=os.fspath(model),
        classifier=classifier,
        source=source,
        split=split,
        data=images,
        outcome=outcome,
        evaluation=objective.metrics(outcome, labels, fitted),
        flipped=None if mirrored is None else objective.metrics(mirrored, labels),
        temperature=temperature,
        broken=broken,
    )


def _in_memory(data: Data, classifier: Classifier) -> DataSource:
    """Open the data; number labels of images in memory mean the model's classes."""
    from vitlab.data.sources.memory import open_memory

    channels, names = _channels(classifier), classifier.source.labels
    return open_memory(data, channels=channels, names=names, whole=True)


def check_split(split: str) -> None:
    """Raise if there is no split of this name."""
    if split not in get_args(Split):
        raise UnknownName("split", split, get_args(Split))


def report_of(found: Evaluated, command: str | None = None) -> Report:
    """Content of the HTML report of an evaluation."""
    return Report(
        title=f"{Path(found.model).name} on {found.source.name}",
        evaluation=found.evaluation,
        split=found.split,
        mistakes=objective_of(found.source.task).report.mistakes(
            found.outcome, found.data, found.evaluation.labels
        ),
        model=describe_model(Path(found.model).name, found.classifier.model),
        data=describe_data(found.source, {found.split: found.counts}),
        broken=found.broken,
        command=command,
        notes=(*(f"{sentence}." for sentence in found.absent), *_flips(found), *_unscaled(found)),
    )


def _unscaled(found: Evaluated) -> tuple[str, ...]:
    """Note on a temperature that was fitted but is not reported."""
    scaled = getattr(found.evaluation, "scaled", None)
    return (f"Temperature: {NO_TEMPERATURE}.",) if found.temperature and scaled is None else ()


def _flips(found: Evaluated) -> tuple[str, ...]:
    """Notes on outputs averaged with those of mirror images."""
    if found.flipped is None:
        return ()
    figures = found.flipped.figures
    told = ", ".join(f"{name} {value:.4g}" for name, value in figures.items())
    return (f"Averaged over each image and its mirror image: {told}.",)


def _open_model(
    model: str | os.PathLike[str], engine: str, merge_tokens: int, changes: dict[str, Any]
) -> tuple[Classifier, nn.Module]:
    """The classifier, and the module that computes its logits."""
    usual = "auto" if Path(model).suffix in FILES else "torch"
    if (usual if engine == "auto" else engine) == "torch":
        classifier = load(model, merge_tokens=merge_tokens, **changes)
        return classifier, classifier.model
    opened = open_classifier(model, engine=engine, merge_tokens=merge_tokens, **changes)
    return described(opened), ExportedNet(opened)


def match_classes(classifier: Classifier, source: DataSource) -> tuple[Tensor, tuple[str, ...]]:
    """The model's class of each label number of the data, and the names of the model's classes."""
    classes, own = classifier.model.config.classes, classifier.source.labels
    if not classes:
        raise WeightsError(f"{classifier.source.path.name} has no head; valid: a classifier")
    numbered = own == tuple(map(str, range(classes)))  # what exported files without names have
    if own is None or own == source.labels or (numbered and not set(own) & set(source.labels)):
        if classes != len(source.labels):
            raise DataError(
                f"{source.name} has {len(source.labels)} classes, the model {classes} without "
                f"names; valid: data of {classes} classes, or a model that knows its labels"
            )
        return torch.arange(classes), source.labels
    numbers = [_find(label, own, source.name) for label in source.labels]
    missing = sorted(set(own) - set(source.labels))
    if objective_of(source.task).has_values and missing:
        raise DataError(
            f"{source.name} has no value {missing[0]!r}, which the model predicts; valid: data "
            f"with all of {', '.join(own)}"
        )
    return torch.tensor(numbers), own


def _find(label: str, own: Sequence[str], data: str) -> int:
    ids = wordnet_ids() if own == imagenet_labels() else tuple(map(wordnet_id, own))
    if (known := wordnet_id(label)) is not None and ids.count(known) == 1:
        return ids.index(known)
    if own.count(label) != 1:
        known = ", ".join([*own[:5], *(["…"] if len(own) > 5 else [])])
        times = "more than one" if label in own else "no"
        raise DataError(
            f"{data} has the class {label!r}, for which the model has {times} class; "
            f"valid: classes of the model ({known})"
        )
    return own.index(label)


@dataclass(frozen=True, kw_only=True)
class _Job:
    """A classifier and the settings of its evaluation."""

    classifier: Classifier
    net: nn.Module
    """Module that computes the logits: the classifier's own model, or its exported file."""
    numbers: Tensor
    batch_size: int
    workers: int
    world: World

    def collect(
        self, data: ImageSet, watch: Watch | None, *, flip: bool = False
    ) -> tuple[Outcome, dict[str, str], Outcome | None]:
        """Outputs, unreadable files, and with `flip` outputs averaged with the mirror image's."""
        self.classifier.source.require_head()
        broken = dict(_left_out(data))
        model, batches = self.net, self._divided(data, broken, watch)
        if self.world.size == 1:
            answers = iter(batches)
            first = list(islice(answers, 1))
            if not first and broken:
                raise DataError(f"none of {len(data)} images can be read; {one_of(broken)}")
            batches = chain(first, answers)
        outcome, mirrored = (
            collect_flipped(model, batches) if flip else (collect(model, batches), None)
        )
        return outcome, {str(path): reason for path, reason in broken.items()}, mirrored

    def fit(self, held_out: ImageSet) -> Temperature | None:
        outcome = self.collect(held_out, None)[0]
        return helpful_temperature(outcome.logits, outcome.labels)

    def _divided(self, data: ImageSet, broken: dict[Path, str], watch: Watch | None) -> Batches:
        """Batches of all images, of which each process computes some."""
        if self.world.size == 1:
            return self._batches(data, broken, watch, ALONE)
        return DistributedBatches(
            every=lambda: self._batches(data, broken, watch, ALONE),
            own=lambda: self._batches(data, broken, watch, self.world),
            count=-(-len(data) // self.batch_size),
            world=self.world,
            broken=broken,
        )

    def _batches(
        self, data: ImageSet, broken: dict[Path, str], watch: Watch | None, world: World
    ) -> Batches:
        preprocessing = self.classifier.preprocessing
        device = best_device()
        self.net.to(device)
        done = 0
        for images, labels, index in batches_for_evaluation(
            data,
            batch_size=self.batch_size,
            preprocessing=preprocessing,
            device=device,
            workers=self.workers,
            broken=broken,
            world=world,
        ):
            yield images, self._in_order(labels.cpu()), index
            done += len(index) * world.size
            if watch is not None:
                watch(min(done, len(data)), len(data))

    def _in_order(self, labels: Tensor) -> Tensor:
        """Labels by the model's class numbers; classes that are not in the data are left out."""
        if labels.ndim == 1:
            return self.numbers[labels]
        placed = labels.new_zeros(len(labels), self.classifier.model.config.classes)
        placed[:, self.numbers] = labels
        return placed


def _channels(classifier: Classifier) -> int | None:
    """Number of channels that the model reads; known without opening the data."""
    found = classifier.source.preprocessing
    return None if found is None else found.channels


def _check_task(classifier: Classifier, source: DataSource, temperature: bool) -> None:
    task = classifier.source.task
    if task != source.task:
        raise DataError(
            f"{source.name} is {source.task} data, the model a {task} one; valid: {task}"
        )
    if temperature and not objective_of(source.task).calibrated:
        raise InputError(f"a temperature says nothing about a {task} model; valid: single-label")


def _open(source: DataSource, split: str, model: Path) -> ImageSet:
    if split == "train":
        return source.open_train()
    if split == "all":
        train = source.open_train()
        return train if source.open_test is None else joined(train, source.open_test())
    if split == "validation":
        return _held_out(source, model)
    if source.open_test is None:
        raise DataError(f"{source.name} has no test split; valid: train, validation")
    return source.open_test()


def _held_out(source: DataSource, model: Path) -> ImageSet:
    """Images that the run of this model held out, or the usual share of data new to it."""
    run = _run_of(model)
    config = TrainConfig() if run is None else read_plan(run).train
    if not config.hold_out:
        raise DataError(f"the run {run} held no images out; valid: a run with hold_out > 0")
    if run is None and _learnt_from(model) == source.name:
        raise DataError(
            f"{model} was trained on {source.name}, and its run, which lists the held-out images, "
            f"is not here; valid: its run, or without split 'validation' and temperature"
        )
    images = source.open_train()
    readable = images if isinstance(images, ArraySet) else source.survey(images)
    held_out = divided(readable, config)[1]
    assert held_out is not None
    return held_out


def _learnt_from(model: Path) -> str | None:
    """Training data by the provenance of a bundle."""
    place = find_bundle(model)
    if not is_bundle(place):
        return None
    data = read_bundle_config(place).get("provenance", {}).get("data")
    return None if data is None else Path(str(data)).name


def _survey_of(model: Path, data: str | os.PathLike[str]) -> Survey | None:
    """Survey of the files by the run of this model, if it was trained on these."""
    run = _run_of(model)
    known = None if run is None else read_survey(run)
    if run is None or known is None:
        return None
    return known if read_plan(run).data == absolute(data) else None


def _left_out(data: ImageSet) -> Mapping[Path, str]:
    """Unreadable files of a folder that vitlab split; they are in no part."""
    survey = survey_of(data)
    return {} if survey is None else survey.broken_paths


def _run_of(model: Path) -> Path | None:
    """Folder of the run that trained a model: of the path itself, its bundle or its file."""
    runs = (folder for folder in (model, *model.parents[:2]) if (folder / METRICS).is_file())
    return next(runs, None)

"""`vitlab benchmark`: models and engines in isolated, interleaved processes, with intervals."""

import logging
import platform
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitlab.data.datasets import open_data
from vitlab.errors import InputError
from vitlab.evaluation.classification import Evaluation
from vitlab.evaluation.metrics import bootstrap_interval
from vitlab.jobs.any_model import stated
from vitlab.jobs.benchmark.plan import Plan, Watch
from vitlab.jobs.benchmark.prepare import MERGING, Prepared, place_name, prepared, titles
from vitlab.jobs.benchmark.result import Accuracy, Benchmark, Cell, Entry
from vitlab.jobs.evaluate import Evaluated, check_split, evaluate
from vitlab.timing.referee import MACHINE, Contestant, Process, compete, machine

# Accuracy of models for each number of merged tokens, on the same images.


def accuracies(
    plan: Plan, models: Sequence[Prepared], data: str, split: str, watch: Watch | None
) -> Iterator[Accuracy]:
    """Accuracies, and how they change from the first of the same weights, image by image."""
    known: dict[str, NDArray[np.float64]] = {}
    for model in models:
        for count in (model.merge_tokens,) if model.exported else plan.merge_tokens:
            what = f"accuracy of {model.name}" + (f", R={count}" if count else "")
            progress = None if watch is None else partial(watch, what)
            found = evaluate(
                model.evaluated,
                data,
                split=split,
                merge_tokens=count,
                watch=progress,
                **stated(plan.preprocessing),
            )
            assert isinstance(found.evaluation, Evaluation)  # `check_data` has checked it
            right = _right(found)
            change, bounds = changed(right - known.setdefault(model.network or model.name, right))
            yield Accuracy(
                model=model.name,
                merge_tokens=count,
                images=found.evaluation.images,
                accuracy=found.evaluation.accuracy,
                interval=found.evaluation.interval,
                change=change,
                change_interval=bounds,
            )


def check_data(data: str, split: str, *, download: bool = False) -> None:
    """Raise for data that no model can be evaluated on, before anything is timed."""
    check_split(split)
    source = open_data(data, download=download)
    if source.task != "single-label":
        raise InputError(f"{data} is {source.task} data; valid: single-label")


def _right(found: Evaluated) -> NDArray[np.float64]:
    """One for each correctly classified image, in the order of the data, else zero."""
    outcome = found.outcome
    right: NDArray[np.float64] = (outcome.logits.argmax(dim=1) == outcome.labels).double().numpy()
    return right


def changed(changes: NDArray[np.float64]) -> tuple[float, tuple[float, float]]:
    """The mean over the images and its 95 % interval."""
    return float(changes.mean()), bootstrap_interval(
        lambda rows: float(changes[rows].mean()), len(changes)
    )


TOLERANCE = 1e-3
"""Difference of a logit; float32 loses about a hundredth of it in a deep model."""
SURE = 6.0
"""Logit of a label beyond which a probability in 32 bits is too coarse."""
LEAST = 1e-37
"""Probability below which 32 bits have no number left."""
FACTORIES = "vitlab.jobs.benchmark.prepare"

log = logging.getLogger(__name__)


def benchmark(
    plan: Plan,
    *,
    data: str | None = None,
    split: str = "test",
    download: bool = False,
    watch: Watch | None = None,
) -> Benchmark:
    """Measure every contestant at every batch size; with `data`, also the accuracy of the models.

    Contestants that should agree and do not are refused before anything is timed.
    """
    with tempfile.TemporaryDirectory() as folder:
        models = _with_unique_names(plan, list(_prepare(plan, Path(folder))))
        if data is not None:
            _check_evaluable(models)
            check_data(data, split, download=download)
        entries = tuple(_entries(plan, models))
        cells = tuple(_measure(plan, batch, entries, models, watch) for batch in plan.batches)
    return Benchmark(
        cells=cells,
        machine={"processor": _processor(), "system": platform.platform()},
        threads=plan.cores,
        accuracies=() if data is None else tuple(accuracies(plan, models, data, split, watch)),
        settings={"rounds": plan.rounds, "seconds": plan.seconds, "seed": plan.seed},
    )


def _check_evaluable(models: Sequence[Prepared]) -> None:
    """Raise for models that cannot be evaluated, before anything is timed."""
    for model in models:
        if model.fresh:
            raise InputError(f"{model.name} has random weights, whose accuracy says nothing")
        if not model.judgeable:
            raise InputError(
                f"{model.name}: its head was not trained, or nothing says how images are prepared "
                f"for it; its accuracy cannot be measured"
            )
        if model.pixels:
            raise InputError(
                f"{model.name} takes 8-bit pixels; accuracy is for models that take normalised "
                f"images, exported without --preprocess-inside"
            )


def _with_unique_names(plan: Plan, models: Sequence[Prepared]) -> list[Prepared]:
    """The models; those that share a name are named as they were given."""
    names = [model.name for model in models]
    return [
        model if names.count(model.name) == 1 else replace(model, name=given)
        for given, model in zip(plan.models, models, strict=True)
    ]


def _prepare(plan: Plan, folder: Path) -> Iterator[Prepared]:
    """Prepare each model in a process of its own."""
    called = titles(plan.models)
    for number, model in enumerate(plan.models):
        asked = {
            "model": model,
            "folder": str(folder / str(number)),
            "engines": plan.runs_in,
            "batch": max(plan.batches),
        }
        if model in called:
            asked |= {"title": called[model]}
            factory = f"{FACTORIES}:prepare_exported"
        else:
            asked |= {"merge_tokens": plan.merge_tokens, "preprocessing": plan.preprocessing}
            factory = f"{FACTORIES}:prepare"
        contestant = Contestant(name=model, factory=factory, arguments=asked)
        with Process(contestant, threads=plan.cores) as process:
            found = prepared(process.result())
        if found.warning is not None:
            log.warning("%s", found.warning)
        yield found


def _entries(plan: Plan, models: Sequence[Prepared]) -> Iterator[Entry]:
    """Each model with each engine and number of merged tokens."""
    first: str | None = None
    known: dict[tuple[Any, ...], str] = {}
    for model in models:
        network = (model.network or model.name, model.pixels)
        for engine, count, flops in _runs(plan, model):
            name = _name(model.name, engine, count)
            first = first or name
            form = (*network, model.quantize, count)
            same = known.setdefault(form, name)
            near = known.setdefault(network, name)
            alike = same != name or near == name
            yield _entry(
                model,
                engine,
                merge_tokens=count,
                reference=first,
                original=same if alike else near,
                # Two patches that are equal but for rounding may be merged otherwise.
                exact=alike and not count and model.quantize is None,
                by_design=not alike,
                flops=flops,
            )


def _runs(plan: Plan, model: Prepared) -> Iterator[tuple[str, int, int | None]]:
    """Engine, merged tokens and FLOPs of each contestant of a model."""
    if model.exported:
        yield from ((engine, model.merge_tokens, model.flops[0]) for engine in model.places)
        return
    for engine in plan.runs_in:
        for count, flops in zip(plan.merge_tokens, model.flops, strict=True):
            if not count or engine in MERGING:
                yield engine, count, flops


def _entry(model: Prepared, runs: str, *, merge_tokens: int, **fields: Any) -> Entry:
    return Entry(
        name=_name(model.name, runs, merge_tokens),
        model=model.name,
        runs=runs,
        merge_tokens=merge_tokens,
        parameters=model.parameters,
        bytes=model.bytes,
        fresh=model.fresh,
        **fields,
    )


def _name(model: str, runs: str, merge_tokens: int) -> str:
    return f"{model} {place_name(runs, merge_tokens)}"


def _measure(
    plan: Plan,
    batch: int,
    entries: Sequence[Entry],
    models: Sequence[Prepared],
    watch: Watch | None,
) -> Cell:
    by_name = {model.name: model for model in models}
    differences: dict[str, float] = {}
    rounds, memory = compete(
        [*(_contestant(entry, by_name[entry.model], batch) for entry in entries), machine()],
        rounds=plan.rounds,
        threads=plan.cores,
        seconds=plan.seconds,
        seed=plan.seed,
        check=lambda results: differences.update(compared(results, entries, by_name)),
        progress=lambda done, total: watch(f"batch {batch}", done, total) if watch else None,
    )
    return Cell(
        batch=batch,
        entries=tuple(entries),
        rounds=rounds,
        memory={name: used for name, used in memory.items() if name != MACHINE},
        differences=differences,
    )


def _contestant(entry: Entry, model: Prepared, batch: int) -> Contestant:
    arguments: dict[str, Any] = {
        "place": model.place(entry.runs, entry.merge_tokens),
        "folder": model.folder,
        "engine": entry.runs,
        "merge_tokens": entry.merge_tokens,
        "batch": batch,
    }
    return Contestant(name=entry.name, factory=f"{FACTORIES}:engine", arguments=arguments)


def compared(
    results: Mapping[str, Any], entries: Sequence[Entry], models: Mapping[str, Prepared]
) -> dict[str, float]:
    """Difference of each entry's logits from its original's; raise where they must agree."""
    found = {}
    for entry in entries:
        model = models[entry.model]
        ours = _logits(results[entry.original], model.task, probabilities=True)
        theirs = _logits(results[entry.name], model.task, probabilities=entry.ours)
        difference = float(np.abs(ours - theirs).max())
        if entry.exact and not difference <= TOLERANCE:  # NaN is not agreement
            raise InputError(
                f"{entry.name}: results differ from {entry.original} by {difference:.2g}, which "
                f"is more than {TOLERANCE}; nothing was timed"
            )
        found[entry.name] = difference
    return found


def _logits(values: Any, task: str, *, probabilities: bool) -> NDArray[np.float64]:
    """Logits; for single labels less their mean, which probabilities do not determine."""
    found = np.asarray(values, dtype=np.float64)
    if task == "multi-label":
        likely = np.clip(found, LEAST, 1 - 1e-9)  # larger ones are clipped
        found = np.log(likely) - np.log1p(-likely) if probabilities else found
        return np.clip(found, -SURE, SURE)
    if task == "single-label":
        found = np.log(np.maximum(found, LEAST)) if probabilities else found
        found = found - found.mean(axis=1, keepdims=True)
    return found


def _processor() -> str:
    """Name of the processor."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())

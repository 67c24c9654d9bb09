"""The end of a training run: choose weights, evaluate the test images once, write the result."""

import logging
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from vitlab.config import parse_json
from vitlab.data.datasets import absent_classes, split_counts
from vitlab.data.images import ClassCounts, ImageSet, count_images, warn_unreadable
from vitlab.errors import WeightsError
from vitlab.evaluation.calibration import NO_TEMPERATURE, Temperature, helpful_temperature
from vitlab.evaluation.classification import Evaluation, Outcome, collect
from vitlab.io.files import write_json
from vitlab.jobs.export import write_onnx_beside
from vitlab.jobs.plan import model_config
from vitlab.jobs.training_run import TrainingRun
from vitlab.machine.device import onnx_wanted
from vitlab.objectives.objective import Metrics, objective_of
from vitlab.report.run import Compute, Report, describe_data, describe_model, write_report
from vitlab.training.checkpoint import read_checkpoint, restore_weights, share_checkpoint
from vitlab.training.state import averaged
from vitlab.weights.bundle import save_bundle

EXPORT_SECONDS, REPORT_SECONDS, FIGURE_SECONDS = (10.0, 0.5), 3.0, 5.0
"""Estimates for the end of a run: writing an ONNX file, and more for each block; the report; and
the figures of a run without labels."""
REPORT, BROKEN = "report.html", "broken.json"
"""Files with the report of a run, and with the images that could not be read, and the reasons."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class RunResult:
    """Result of a training run."""

    folder: Path
    evaluation: Metrics | None
    """Metrics of the test split, or of the held-out images if there is no test split.

    None for a run without labels.
    """
    split: str
    metrics: dict[str, float]
    report: Path
    compute: Compute
    """Cost of the training."""
    right: tuple[bool, ...] | None
    """Per-image correctness of the top prediction; None if images do not have one class each."""
    counts: Mapping[str, ClassCounts] = field(default_factory=dict)
    """Images by split, with the fewest and the most of a class."""
    absent: tuple[str, ...] = ()
    """Sentences naming the classes without an image in a split."""

    @property
    def bundle(self) -> Path:
        """Folder that `vitlab.load` reads."""
        return self.folder / "bundle"

    def __repr__(self) -> str:
        """One line: folder, split and main metric."""
        found = "" if self.evaluation is None else f", {self.split} {self.evaluation.headline}"
        return f"RunResult({str(self.folder)!r}{found})"


@dataclass(frozen=True, kw_only=True)
class Tested:
    """Outputs and metrics of the evaluated split."""

    split: str
    images: ImageSet
    outcome: Outcome
    evaluation: Metrics


def choose_weights(run: TrainingRun) -> Literal["raw", "ema"]:
    """Give the model its best weights, by the held-out images alone, and return their kind."""
    state, goal = run.state, run.learning.goal
    evaluate_raw = run.evaluator("evaluating trained weights")
    evaluate_average = run.evaluator("evaluating averaged weights")
    if evaluate_raw is None or evaluate_average is None:
        if state.ema is not None:
            state.model.load_state_dict(state.ema.state)
        return "raw" if state.ema is None else "ema"
    if state.chosen and state.best_step != state.step:
        _restore_best(run)
    if state.ema is None or (state.chosen and not state.best_step):
        return "raw"
    raw = dict(evaluate_raw(state.model))
    with averaged(state.model, state.ema) as model:
        average = dict(evaluate_average(model))
    value = raw[goal.chosen_by]
    kept = raw if average[goal.chosen_by] < value - goal.noise(value) else average
    state.best, state.best_loss = kept[goal.chosen_by], kept.get("loss", math.inf)
    if kept is raw:
        return "raw"
    state.model.load_state_dict(state.ema.state)
    return "ema"


def _restore_best(run: TrainingRun) -> None:
    """Restore the weights of the best evaluation, or keep the last ones if that fails."""
    state, path = run.state, run.files.best
    checkpoint = None
    try:
        checkpoint = read_checkpoint(path) if state.world.rank == 0 else None
        step = state.best_step if checkpoint is None else checkpoint.numbers["step"]
        if step != state.best_step:
            checkpoint = None
            raise WeightsError(f"{path}: from step {step}; valid: step {state.best_step}")
    except WeightsError as error:
        log.warning("%s; the last weights take the place of the best", error)
    checkpoint = share_checkpoint(checkpoint, state.world)
    if checkpoint is None:
        state.best, state.best_step = -math.inf, 0
    else:
        restore_weights(state, checkpoint)


def finish(run: TrainingRun) -> RunResult:
    """Evaluate the test images once, and write bundle and report."""
    tested = _test(run)
    metrics = _metrics(run, tested)
    counts = split_counts(run.source, run.train, run.validation)
    counts[tested.split] = count_images(tested.outcome.labels, run.source.labels)
    absent = absent_classes(run.source, counts)
    if run.world.rank == 0:
        _save_bundle(run, metrics)
        run.watcher.stage("exporting", 0, 1)
        write_onnx_beside(run.folder / "bundle")
        run.watcher.stage("exporting", 1, 1)
        write_json(run.folder / BROKEN, broken_files(run))
        run.watcher.stage("writing the report", 0, 1)
        write_report(run.folder, _report(run, tested, counts, absent))
        run.watcher.stage("writing the report", 1, 1)
    run.world.wait()
    return RunResult(
        folder=run.folder,
        evaluation=tested.evaluation,
        split=tested.split,
        metrics=metrics,
        report=run.folder / REPORT,
        compute=compute(run),
        right=tested.outcome.right,
        counts=counts,
        absent=absent,
    )


def _test(run: TrainingRun) -> Tested:
    """Evaluate the test images, opened here for the first time."""
    split, images = _evaluated_split(run)
    known = set(run.broken)
    outcome = collect(run.model, run.batches(images, "testing"))
    new = {path: reason for path, reason in run.broken.items() if path not in known}
    if new:
        warn_unreadable(new, f"{len(images)} {split} images")
    objective = objective_of(run.source.task)
    evaluation = objective.metrics(outcome, run.source.labels, _temperature(run))
    return Tested(split=split, images=images, outcome=outcome, evaluation=evaluation)


def tested_images(run: TrainingRun) -> int:
    """Number of test images, without opening them; estimated where the data does not give it."""
    if _open_test(run) is None or run.plan.train.objective is not None:
        return 0
    if run.source.tested is not None:
        return run.source.tested
    learnt = len(run.train) + (0 if run.validation is None else len(run.validation))
    return learnt // 4  # of a split of our own, exact


def ending_seconds(run: TrainingRun) -> float:
    """Estimated time for export and report, or for the figures of a run without labels."""
    if run.plan.train.objective is not None:
        return REPORT_SECONDS + FIGURE_SECONDS
    first, block = EXPORT_SECONDS
    blocks = getattr(model_config(run.plan), "depth", 0)
    exporting = first + block * blocks if onnx_wanted() else 0.0
    return REPORT_SECONDS + exporting


def _open_test(run: TrainingRun) -> Callable[[], ImageSet] | None:
    """Opener of the test images; None if there are none or the run must not open them."""
    return run.source.open_test if run.plan.train.judged_on == "test" else None


def _evaluated_split(run: TrainingRun) -> tuple[str, ImageSet]:
    open_test = _open_test(run)
    if open_test is not None:
        return "test", open_test()
    return ("train", run.train) if run.validation is None else ("validation", run.validation)


def _temperature(run: TrainingRun) -> Temperature | None:
    """Temperature fitted to the held-out images; None if there are none, or it does not help."""
    calibrated = objective_of(run.source.task).calibrated
    if run.validation is None or _open_test(run) is None or not calibrated:
        return None
    held_out = collect(run.model, run.batches(run.validation, "calibrating"))
    return helpful_temperature(held_out.logits, held_out.labels)


def _metrics(run: TrainingRun, tested: Tested) -> dict[str, float]:
    figures = {"images": tested.evaluation.images, **tested.evaluation.figures}
    metrics = {f"{tested.split}_{name}": value for name, value in figures.items()}
    if run.state.chosen:
        metrics[f"validation_{run.learning.goal.chosen_by}"] = run.state.best
    return metrics


def _save_bundle(run: TrainingRun, metrics: Mapping[str, float]) -> None:
    save_bundle(
        run.folder / "bundle",
        run.model,
        preprocessing=run.preprocessing,
        labels=run.source.labels,
        task=run.source.task,
        targets=run.learning.targets,
        metrics=metrics,
        provenance=provenance(run),
    )


def _report(
    run: TrainingRun, tested: Tested, counts: Mapping[str, ClassCounts], absent: tuple[str, ...]
) -> Report:
    config, source = run.plan.train, run.source
    mistakes = objective_of(source.task).report.mistakes
    return Report(
        title=f"{config.model} on {source.name}",
        evaluation=tested.evaluation,
        split=tested.split,
        mistakes=mistakes(tested.outcome, tested.images, source.labels),
        model=describe_model(config.model, run.model, {"optimizer": config.optimizer.name}),
        data=describe_data(source, counts, augment=config.augment),
        compute=compute(run),
        broken=broken_files(run),
        command=run.plan.command,
        notes=(*notes(run), *(f"{sentence}." for sentence in absent), *_unscaled(run, tested)),
    )


def _unscaled(run: TrainingRun, tested: Tested) -> tuple[str, ...]:
    """Note on a temperature that was fitted but is not reported, since it does not help."""
    evaluation = tested.evaluation
    fitted = run.validation is not None and _open_test(run) is not None
    if not fitted or not isinstance(evaluation, Evaluation) or evaluation.scaled is not None:
        return ()
    return (f"Temperature: {NO_TEMPERATURE}.",)


# Parts of the result that runs with and without labels share.


def provenance(run: TrainingRun) -> dict[str, Any]:
    """Origin of the weights, for the bundle."""
    plan = run.plan
    return {
        "model": plan.train.model,
        "recipe": plan.recipe,
        "data": plan.data,
        "seed": plan.train.seed,
        "commit": plan.commit,
        "command": plan.command,
        "weights": run.weights,
        "licence": plan.licence,
        "vitlab": plan.version,
        **compute(run).to_dict(),
        **({} if plan.start is None else {"from": plan.start.weights}),
    }


def compute(run: TrainingRun) -> Compute:
    """Cost of the training."""
    return Compute(
        flops=run.state.flops,
        seconds=run.state.seconds,
        images=run.state.images,
        steps=run.state.step,
        device=str(next(run.model.parameters()).device),
    )


def broken_files(run: TrainingRun) -> dict[str, str]:
    """Images that could not be read, by path, with the reason."""
    found = run.broken
    return {str(path): found[path] for path in sorted(found)}


def helped(run: TrainingRun) -> str | None:
    """Held-out metrics before and after fine-tuning; None if step 0 was not evaluated."""
    state, name = run.state, run.learning.goal.chosen_by
    first = _before_step_1(run)
    if name not in first or not state.chosen:
        return None
    before = f"{name} {first[name]:.1%}, loss {first['loss']:.3f}"
    if not state.best_step:
        return (
            f"nothing beat the weights before step 1 on held-out images ({before}): they are kept"
        )
    after = f"{name} {state.best:.1%}, loss {state.best_loss:.3f}"
    return f"on held-out images {before} before fine-tuning, {after} with the weights that are kept"


def _before_step_1(run: TrainingRun) -> dict[str, float]:
    """Held-out metrics of step 0; none if it was not evaluated."""
    metrics = map(parse_json, run.files.metrics.read_text().splitlines())
    return {m["name"]: m["value"] for m in metrics if not m["step"] and m["split"] == "validation"}


def stopped_early(run: TrainingRun) -> str | None:
    """Reason why the run made fewer steps than planned; None if it made them all."""
    state, steps = run.state, run.plan.steps
    if state.step >= steps:
        return None
    return (
        f"stopped after step {state.step:,} of {steps:,}: {state.since_best} evaluations at a low "
        f"learning rate were worse than step {state.best_step:,} by more than chance "
        f"(patience {run.plan.train.patience})"
    )


def notes(run: TrainingRun) -> tuple[str, ...]:
    """Notes for the reader of the report."""
    found = [f"{note}." for note in run.source.all_notes]
    if run.plan.train.judged_on == "held-out":
        found.append("A trial: the test images were not opened.")
    sentences = (helped(run), stopped_early(run))
    if run.state.best_step or not run.state.chosen:
        kind = "averaged" if run.weights == "ema" else "trained"
        found.append(f"The {kind} weights were kept.")
    found += [f"{text[0].upper()}{text[1:]}." for text in sentences if text is not None]
    if run.state.best_step:
        found.append(f"Chosen on the held-out images after step {run.state.best_step}.")
    return tuple(found)

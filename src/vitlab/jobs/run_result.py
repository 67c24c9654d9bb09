"""The end of a run: what the trained model is worth, its bundle and its report."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import nn

from vitlab.data.class_counts import ClassCounts, count_images
from vitlab.data.datasets import DataSource
from vitlab.data.images import ImageSet
from vitlab.evaluation.calibration import NO_TEMPERATURE, Temperature, helpful_temperature
from vitlab.evaluation.classification import Batches, Evaluation, Outcome, collect
from vitlab.images.preprocessing import Preprocessing
from vitlab.io.files import write_json
from vitlab.jobs.export import write_onnx_beside
from vitlab.jobs.objective import JUDGES, Aim, Judge
from vitlab.jobs.run_data import absent_classes, split_counts, tell_broken
from vitlab.jobs.run_folder import Plan
from vitlab.report.run import (
    Compute,
    Judged,
    Report,
    describe_data,
    describe_model,
    write_report,
)
from vitlab.training.state import TrainState
from vitlab.weights.bundle import save_bundle

BROKEN = "broken.json"
"""The images of a run that could not be read, with the reason."""


@dataclass(frozen=True, kw_only=True)
class Run:
    """What came of a run."""

    folder: Path
    evaluation: Judged | None
    """Of the test split, or of the held-out images where there is no test split.

    None of a run that learnt without labels.
    """
    split: str
    metrics: dict[str, float]
    report: Path
    compute: Compute
    """What the training cost."""
    right: tuple[bool, ...] | None
    """Whether the first guess was right, image by image; None where images have no one class."""
    counts: Mapping[str, ClassCounts] = field(default_factory=dict)
    """Images by split, with the fewest and the most of a class."""
    absent: tuple[str, ...] = ()
    """Sentences naming the classes without an image in a split."""

    @property
    def bundle(self) -> Path:
        """The folder that `vitlab.load` reads."""
        return self.folder / "bundle"


@dataclass(frozen=True, kw_only=True)
class Trained:
    """A run whose model has its final weights, before the test images are opened."""

    plan: Plan
    folder: Path
    source: DataSource
    train: ImageSet
    validation: ImageSet | None
    preprocessing: Preprocessing
    aim: Aim
    state: TrainState
    weights: str
    """Which were kept: `raw` or `ema`."""
    batches: Callable[[ImageSet], Batches]
    broken: Callable[[], Mapping[Path, str]]
    """Every image that could not be read so far, with the reason."""

    @property
    def model(self) -> nn.Module:
        """With its final weights."""
        return self.state.model

    def finish(self) -> Run:
        """Look at the test images once, and write bundle and report."""
        labels = self.source.labels
        split, images = self._judged_split()
        known = set(self.broken())
        outcome = collect(self.model, self.batches(images))
        new = {path: reason for path, reason in self.broken().items() if path not in known}
        if new:
            tell_broken(new, f"{len(images)} {split} images")
        evaluation = self._judge.worth(outcome, labels, self._temperature())
        metrics = self._metrics(split, evaluation)
        self._save_bundle(metrics)
        write_onnx_beside(self.folder / "bundle")
        write_json(self.folder / BROKEN, self.all_broken())
        counts = split_counts(self.source, self.train, self.validation)
        counts[split] = count_images(outcome.labels, labels)
        absent = absent_classes(self.source, counts)
        page = self._report(split, images, outcome, evaluation, counts, absent)
        report = write_report(self.folder, page)
        return Run(
            folder=self.folder,
            evaluation=evaluation,
            split=split,
            metrics=metrics,
            report=report,
            compute=self.compute(),
            right=outcome.right,
            counts=counts,
            absent=absent,
        )

    @property
    def _judge(self) -> Judge:
        return JUDGES[self.source.task]

    @property
    def _open_test(self) -> Callable[[], ImageSet] | None:
        """Opens the test images, where there are any and they are to judge."""
        return self.source.open_test if self.plan.train.judged_on == "test" else None

    def _judged_split(self) -> tuple[str, ImageSet]:
        """The test images, opened here for the first time."""
        if self._open_test is not None:
            return "test", self._open_test()
        if self.validation is not None:
            return "validation", self.validation
        return "train", self.train

    def _unscaled(self, evaluation: Judged) -> tuple[str, ...]:
        """Note of a temperature that was fitted and is not reported."""
        fitted = self.validation is not None and self._open_test is not None
        if not fitted or not isinstance(evaluation, Evaluation) or evaluation.scaled is not None:
            return ()
        return (f"Temperature: {NO_TEMPERATURE}.",)

    def _temperature(self) -> Temperature | None:
        if self.validation is None or self._open_test is None or not self._judge.calibrated:
            return None
        held_out = collect(self.model, self.batches(self.validation))
        return helpful_temperature(held_out.logits, held_out.labels)

    def _metrics(self, split: str, evaluation: Judged) -> dict[str, float]:
        figures = {"images": evaluation.images, **self._judge.figures(evaluation)}
        metrics = {f"{split}_{name}": value for name, value in figures.items()}
        if self.state.best_step:
            metrics[f"validation_{self.aim.goal.chosen_by}"] = self.state.best
        return metrics

    def _save_bundle(self, metrics: Mapping[str, float]) -> None:
        save_bundle(
            self.folder / "bundle",
            self.model,
            preprocessing=self.preprocessing,
            labels=self.source.labels,
            task=self.source.task,
            targets=self.aim.targets,
            metrics=metrics,
            provenance=self.provenance(),
        )

    def provenance(self) -> dict[str, Any]:
        """Where the weights come from, for the bundle."""
        plan = self.plan
        return {
            "model": plan.train.model,
            "recipe": plan.recipe,
            "data": plan.data,
            "seed": plan.train.seed,
            "commit": plan.commit,
            "command": plan.command,
            "weights": self.weights,
            "licence": plan.licence,
            "vitlab": plan.version,
            **self.compute().to_dict(),
            **({} if plan.start is None else {"from": plan.start.weights}),
        }

    def all_broken(self) -> dict[str, str]:
        """The same by name, for a file."""
        found = self.broken()
        return {str(path): found[path] for path in sorted(found)}

    def _report(
        self,
        split: str,
        images: ImageSet,
        outcome: Outcome,
        evaluation: Judged,
        counts: Mapping[str, ClassCounts],
        absent: Sequence[str],
    ) -> Report:
        config, source = self.plan.train, self.source
        return Report(
            title=f"{config.model} on {source.name}",
            evaluation=evaluation,
            split=split,
            mistakes=self._judge.mistakes(outcome, images, source.labels),
            model=describe_model(config.model, self.model, {"optimizer": config.optimizer.name}),
            data=describe_data(source, counts, augment=config.augment),
            compute=self.compute(),
            broken=self.all_broken(),
            command=self.plan.command,
            notes=(
                *self.notes(),
                *(f"{sentence}." for sentence in absent),
                *self._unscaled(evaluation),
            ),
        )

    def compute(self) -> Compute:
        """What the training cost."""
        return Compute(
            flops=self.state.flops,
            seconds=self.state.seconds,
            images=self.state.images,
            steps=self.state.step,
            device=str(next(self.model.parameters()).device),
        )

    def notes(self) -> tuple[str, ...]:
        """What the reader of the report should know."""
        notes = [f"{note}." for note in self.source.told]
        if self.plan.train.judged_on == "held-out":
            notes.append("A trial: the test images were not opened.")
        notes.append(f"The {'averaged' if self.weights == 'ema' else 'trained'} weights were kept.")
        if self.state.best_step:
            notes.append(f"Chosen on the held-out images after step {self.state.best_step}.")
        return tuple(notes)

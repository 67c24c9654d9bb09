"""The end of a run without labels: the encoder as a bundle, figures and report."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from vitlab.config import from_dict, to_dict
from vitlab.data.images import ImageSet
from vitlab.data.order import seed_for
from vitlab.images.preprocessing import Preprocessing
from vitlab.io.files import write_files, write_json
from vitlab.jobs.run_result import (
    BROKEN,
    REPORT,
    RunResult,
    broken_files,
    compute,
    notes,
    provenance,
)
from vitlab.jobs.training_run import TrainingRun
from vitlab.models.config import ViTConfig
from vitlab.models.cost import cost
from vitlab.models.pretraining import PretrainingModel
from vitlab.models.variants import create_model
from vitlab.report.figures.table import KINDS
from vitlab.report.numbers import short
from vitlab.report.plots import BLUE, FAINT, ORANGE, PAGE, new_figure, rendered, styled
from vitlab.report.run import Report, describe_data, describe_model, write_report
from vitlab.report.run.content import Data, Drawing, Model, Point
from vitlab.report.run.curves import curves_of
from vitlab.report.run.page import read_metrics
from vitlab.training.pretraining import HiddenWatch, hide_alike, with_objective
from vitlab.weights.bundle import save_bundle

# Images with the hidden patches as the model predicts them, before and after training.

GAP = 0.12
"""Gap between two images, as a share of their side."""
LABELS = 1.3
"""Width of the row titles in inches."""
ROWS = {
    "mae": {
        "original": "original",
        "seen": "visible patches",
        "before": "drawn before training",
        "after": "drawn after training",
    },
    "masked-patch": {
        "original": "original",
        "seen": "corrupted",
        "before": "predicted before training",
        "after": "predicted after training",
        "true": "true mean colours",
    },
}
CAPTIONS = {
    "mae": (
        "Grey patches were left out. A drawn patch is shown in the mean and contrast of the true "
        "one, which the model does not predict."
    ),
    "masked-patch": (
        "Grey patches have the mask's embedding, others that of another patch, and some are kept. "
        "In the rows below, every corrupted patch has the mean colour that the model predicts, or "
        "the true one, each channel in eight steps."
    ),
}


@torch.inference_mode()
def image_rows(
    images: Float[Tensor, "B C H W"], fresh: PretrainingModel, learnt: PretrainingModel
) -> dict[str, Float[Tensor, "B C H W"]]:
    """Rows of images by name; the same patches are hidden from both models."""
    shown = []
    for model in (fresh, learnt):
        hide_alike()
        shown.append(model.eval().show(images))
    before, after = shown
    rest = {name: rows for name, rows in after.items() if name != "predicted"}
    return {"original": images, **rest, "before": before["predicted"], "after": after["predicted"]}


def as_pixels(
    images: Float[Tensor, "B C H W"], preprocessing: Preprocessing
) -> Float[np.ndarray, "B H W 3"]:
    """Values from 0 to 1 in three channels: of others the first, or the first three."""
    mean, std = (
        torch.tensor(values, device=images.device)[:, None, None]
        for values in (preprocessing.mean, preprocessing.std)
    )
    pixels = (images * std + mean).clamp(0, 1)
    colours = pixels[:, :3] if pixels.shape[1] >= 3 else pixels[:, :1].expand(-1, 3, -1, -1)
    return colours.permute(0, 2, 3, 1).float().cpu().numpy()


def draw_rows(rows: Mapping[str, Float[np.ndarray, "B H W 3"]], titles: Mapping[str, str]) -> Any:
    """Figure with one row of images for each name that has a title."""
    names = [name for name in titles if name in rows]
    count, height, width, _ = rows[names[0]].shape
    gap = max(1, round(GAP * min(height, width)))
    sheet = np.ones((len(names) * (height + gap) - gap, count * (width + gap) - gap, 3))
    for line, name in enumerate(names):
        for column, image in enumerate(rows[name]):
            top, left = line * (height + gap), column * (width + gap)
            sheet[top : top + height, left : left + width] = image
    figure = new_figure(PAGE, 0.1 + (PAGE - LABELS) * sheet.shape[0] / sheet.shape[1])
    axes = figure.subplots()
    axes.imshow(sheet, interpolation="nearest")
    axes.set_anchor("E")  # what is left of the width is for the names
    axes.set_xticks([])
    places = [line * (height + gap) + (height - 1) / 2 for line in range(len(names))]
    axes.set_yticks(places, [titles[name].replace(" ", "\n", 1) for name in names])
    axes.tick_params(left=False)
    axes.spines[:].set_visible(False)
    return figure


def draw_loss(points: Sequence[Point], unit: str) -> Any:
    """The loss over the steps, of batches and of held-out images."""
    figure = new_figure(0.6 * PAGE, 2.8)
    axes = figure.subplots()
    for curve in curves_of(points, "loss"):
        held_out = curve.split == "validation"
        colour = ORANGE if held_out else BLUE
        if curve.noisy:
            axes.fill_between(
                curve.steps, curve.lows, curve.highs, color=colour, alpha=0.16, linewidth=0
            )
        axes.plot(
            curve.steps,
            curve.values,
            "o-" if held_out else "-",
            color=colour,
            linewidth=1.6,
            markersize=4,
            label="held-out images" if held_out else "training",
        )
    axes.set_xlabel("step")
    axes.set_ylabel(f"loss: {unit}")
    axes.grid(axis="y", color=FAINT, linewidth=0.7)
    if axes.lines:
        axes.legend()
    return figure


SHOWN = 8
"""Images that are shown."""
RENAMED = {"accuracy": "colours_right"}
"""Names of metrics in a bundle, where an accuracy is one of classes."""
UNITS = {"mae": "squared error by the variance", "masked-patch": "cross-entropy, nats"}


def finish_pretraining(run: TrainingRun) -> RunResult:
    """Evaluate the held-out images once more, and write bundle, figures and report."""
    model = run.model
    assert isinstance(model, PretrainingModel)
    metrics = _metrics(run)
    if run.world.rank == 0:
        save_bundle(
            run.folder / "bundle",
            model.vit,
            preprocessing=run.preprocessing,
            labels=(),
            metrics=metrics,
            provenance={**provenance(run), "objective": model.name},
        )
        write_json(run.folder / BROKEN, broken_files(run))
        run.watcher.stage("drawing figures", 0, 1)
        drawings = _draw(run, model)
        run.watcher.stage("drawing figures", 1, 1)
        run.watcher.stage("writing the report", 0, 1)
        write_report(run.folder, _report(run, model, drawings))
        run.watcher.stage("writing the report", 1, 1)
    run.world.wait()
    return RunResult(
        folder=run.folder,
        evaluation=None,
        split="train" if run.validation is None else "validation",
        metrics=metrics,
        report=run.folder / REPORT,
        compute=compute(run),
        right=None,
    )


def _metrics(run: TrainingRun) -> dict[str, float]:
    """Of the images held out; without any, nothing was measured."""
    held_out = run.validation
    if held_out is None:
        return {}
    watch = HiddenWatch(batches=lambda: run.batches(held_out, "evaluating held-out images"))
    figures: dict[str, float] = {"images": len(held_out), **dict(watch.run(run.model))}
    return {f"validation_{RENAMED.get(name, name)}": value for name, value in figures.items()}


def _draw(run: TrainingRun, model: PretrainingModel) -> tuple[Drawing, ...]:
    """Write the figures; those that the page shows are returned."""
    with styled():
        rows = image_rows(_some_images(run), _fresh(run), model)
        pixels = {name: as_pixels(row, run.preprocessing) for name, row in rows.items()}
        points = read_metrics(run.folder / "metrics.jsonl")
        figures = {
            "hidden-patches": draw_rows(pixels, ROWS[model.name]),
            "loss": draw_loss(points, UNITS[model.name]),
        }
        files = {
            f"{name}.{kind}": rendered(figure, kind)
            for name, figure in figures.items()
            for kind in KINDS
        }
    write_files(run.folder, files)
    kind = "training" if run.validation is None else "held-out"
    return (
        Drawing(
            title="Predictions of hidden patches",
            svg=files["hidden-patches.svg"],
            caption=f"{len(rows['original'])} {kind} images. {CAPTIONS[model.name]}",
        ),
    )


def _some_images(run: TrainingRun) -> torch.Tensor:
    images: ImageSet = run.train if run.validation is None else run.validation
    index = torch.linspace(0, len(images) - 1, min(SHOWN, len(images))).round().long()
    batch = next(iter(run.batches(images.subset(index))))
    return batch[0]


def _fresh(run: TrainingRun) -> PretrainingModel:
    """The model as it was before the first step: its weights follow from the seed."""
    config = run.plan.train
    torch.manual_seed(seed_for(config.seed, "init"))
    model = create_model(from_dict(ViTConfig, run.plan.model))
    device = next(run.model.parameters()).device
    return with_objective(model, config, run.preprocessing).to(device)


def _report(run: TrainingRun, model: PretrainingModel, drawings: tuple[Drawing, ...]) -> Report:
    config = run.plan.train
    return Report(
        title=f"{config.model} on {run.source.name}, {model.name}",
        model=_described_model(run, model),
        data=_described_data(run),
        compute=compute(run),
        broken=broken_files(run),
        command=run.plan.command,
        notes=(*notes(run), "The encoder was trained without labels and has no head yet."),
        drawings=drawings,
    )


def _described_model(run: TrainingRun, model: PretrainingModel) -> Model:
    config, whole = run.plan.train, cost(model)
    settings = config.mae or config.masked_patch
    assert settings is not None
    more = whole.parameters - sum(p.numel() for p in model.vit.parameters())
    details = {
        "optimizer": config.optimizer.name,
        "objective": model.name,
        **{key.replace("_", " "): f"{value:g}" for key, value in to_dict(settings).items()},
        "trained besides the encoder": f"{more:,} parameters",
        "FLOPs per image, learning": f"3 × {short(whole.flops)}",
    }
    return describe_model(config.model, model.vit, details)


def _described_data(run: TrainingRun) -> Data:
    counts = {"train": len(run.train)}
    if run.validation is not None:
        counts["validation"] = len(run.validation)
    augment = run.plan.train.augment
    found = describe_data(run.source, counts, augment=augment, details={"labels": "not used"})
    return found

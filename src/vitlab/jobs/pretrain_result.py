"""The end of a run without labels: the encoder as a bundle, and what it tells as pictures."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from vitlab.config import from_dict, to_dict
from vitlab.data.images import ImageSet
from vitlab.data.random import seed_for
from vitlab.evaluation.classification import Batches
from vitlab.images.preprocessing import Preprocessing
from vitlab.io.files import write_files, write_json
from vitlab.jobs.objective import Aim
from vitlab.jobs.run_result import BROKEN, Run, Trained
from vitlab.models.build import create_model
from vitlab.models.config import ViTConfig
from vitlab.models.cost import cost
from vitlab.models.pretraining import MaskedAutoencoder, MaskedPatch, Objective
from vitlab.report.figures.table import KINDS
from vitlab.report.html import short
from vitlab.report.plots import BLUE, FAINT, ORANGE, PAGE, new_figure, rendered, styled
from vitlab.report.run import Report, describe_data, describe_model, write_report
from vitlab.report.run.content import Data, Drawing, Model, Point
from vitlab.report.run.curves import curves_of
from vitlab.report.run.page import read_metrics
from vitlab.training.config import TrainConfig
from vitlab.training.loss import Goal
from vitlab.training.pretraining import mean_loss, with_objective
from vitlab.weights.bundle import save_bundle

# What a run without labels is watched by: its loss, and how much it tells of hidden patches.

SCORES = {kind.name: kind.score for kind in (MaskedPatch, MaskedAutoencoder)}


def pretraining_aim(config: TrainConfig) -> Aim:
    """The aim of a run that needs no labels."""
    assert config.objective is not None
    return Aim(
        goal=Goal(loss=mean_loss, chosen_by=SCORES[config.objective]),
        watch=lambda batches: HiddenWatch(batches=batches).run,
    )


def hide_alike() -> None:
    """Let the patches that are hidden from now on be the same each time."""
    torch.manual_seed(seed_for(0, "hidden patches"))


@dataclass(frozen=True, kw_only=True)
class HiddenWatch:
    """Loss and score, with the same patches hidden each time."""

    batches: Callable[[], Batches]

    def run(self, model: nn.Module) -> Iterator[tuple[str, float]]:
        """Evaluate once, and yield `loss` and the score of the objective."""
        assert isinstance(model, Objective)
        hide_alike()
        model.eval()
        images, loss, told, asked = 0, 0.0, 0.0, 0.0
        with torch.inference_mode():
            for pixels, _, _ in self.batches():
                found = model.tell(pixels)
                images += len(pixels)
                loss += float(found.loss.cpu().double().sum())
                told += float(found.told.cpu().double().sum())
                asked += float(found.asked.cpu().double().sum())
        yield "loss", loss / max(images, 1)
        yield model.score, told / asked if asked else 0.0


# Pictures of what a model tells of hidden patches, before it has learnt and after.

GAP = 0.12
"""Of a picture's side, left free between two."""
LABELS = 1.3
"""Inches beside the pictures that their names take."""
ROWS = {
    "mae": {
        "original": "original",
        "seen": "visible patches",
        "before": "drawn before learning",
        "after": "drawn after learning",
    },
    "masked-patch": {
        "original": "original",
        "seen": "corrupted",
        "before": "told before learning",
        "after": "told after learning",
        "true": "true mean colours",
    },
}
CAPTIONS = {
    "mae": (
        "Grey patches were left out. A drawn patch is shown in the mean and contrast of the true "
        "one, which the model is not asked for."
    ),
    "masked-patch": (
        "Grey patches have the mask's embedding, others that of another patch, and some are kept. "
        "In the rows below, every corrupted patch has the mean colour that the model tells, or "
        "the true one, each channel in eight steps."
    ),
}


@torch.inference_mode()
def picture_rows(
    images: Float[Tensor, "B C H W"], fresh: Objective, learnt: Objective
) -> dict[str, Float[Tensor, "B C H W"]]:
    """Rows of pictures by name; the same patches are hidden from both models."""
    shown = []
    for model in (fresh, learnt):
        hide_alike()
        shown.append(model.eval().show(images))
    before, after = shown
    rest = {name: rows for name, rows in after.items() if name != "told"}
    return {"original": images, **rest, "before": before["told"], "after": after["told"]}


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
    """One line of pictures for each name that has a title."""
    names = [name for name in titles if name in rows]
    count, height, width, _ = rows[names[0]].shape
    gap = max(1, round(GAP * min(height, width)))
    sheet = np.ones((len(names) * (height + gap) - gap, count * (width + gap) - gap, 3))
    for line, name in enumerate(names):
        for column, picture in enumerate(rows[name]):
            top, left = line * (height + gap), column * (width + gap)
            sheet[top : top + height, left : left + width] = picture
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


PICTURES = 8
"""Images that are shown."""
RENAMED = {"accuracy": "colours_right"}
"""What a bundle calls a figure: an accuracy there is one of classes."""
UNITS = {"mae": "squared error by the variance", "masked-patch": "cross-entropy, nats"}


def finish_pretraining(trained: Trained) -> Run:
    """Judge the held-out images once more, and write bundle, figures and report."""
    model = trained.model
    assert isinstance(model, Objective)
    metrics = _metrics(trained)
    save_bundle(
        trained.folder / "bundle",
        model.vit,
        preprocessing=trained.preprocessing,
        labels=(),
        metrics=metrics,
        provenance={**trained.provenance(), "objective": model.name},
    )
    write_json(trained.folder / BROKEN, trained.all_broken())
    drawings = _draw(trained, model)
    return Run(
        folder=trained.folder,
        evaluation=None,
        split="train" if trained.validation is None else "validation",
        metrics=metrics,
        report=write_report(trained.folder, _report(trained, model, drawings)),
        compute=trained.compute(),
        right=None,
    )


def _metrics(trained: Trained) -> dict[str, float]:
    """Of the images held out; without any, nothing was measured."""
    held_out = trained.validation
    if held_out is None:
        return {}
    watch = HiddenWatch(batches=lambda: trained.batches(held_out))
    figures: dict[str, float] = {"images": len(held_out), **dict(watch.run(trained.model))}
    return {f"validation_{RENAMED.get(name, name)}": value for name, value in figures.items()}


def _draw(trained: Trained, model: Objective) -> tuple[Drawing, ...]:
    """Write the figures; those that the page shows are returned."""
    with styled():
        rows = picture_rows(_some_images(trained), _fresh(trained), model)
        pixels = {name: as_pixels(row, trained.preprocessing) for name, row in rows.items()}
        points = read_metrics(trained.folder / "metrics.jsonl")
        figures = {
            "hidden-patches": draw_rows(pixels, ROWS[model.name]),
            "loss": draw_loss(points, UNITS[model.name]),
        }
        files = {
            f"{name}.{kind}": rendered(figure, kind)
            for name, figure in figures.items()
            for kind in KINDS
        }
    write_files(trained.folder, files)
    kind = "training" if trained.validation is None else "held-out"
    return (
        Drawing(
            title="What it tells of hidden patches",
            svg=files["hidden-patches.svg"],
            caption=f"{len(rows['original'])} {kind} images. {CAPTIONS[model.name]}",
        ),
    )


def _some_images(trained: Trained) -> torch.Tensor:
    images: ImageSet = trained.train if trained.validation is None else trained.validation
    index = torch.linspace(0, len(images) - 1, min(PICTURES, len(images))).round().long()
    batch = next(iter(trained.batches(images.subset(index))))
    return batch[0]


def _fresh(trained: Trained) -> Objective:
    """The model as it was before the first step: its weights follow from the seed."""
    config = trained.plan.train
    torch.manual_seed(seed_for(config.seed, "init"))
    model = create_model(from_dict(ViTConfig, trained.plan.model))
    device = next(trained.model.parameters()).device
    return with_objective(model, config, trained.preprocessing).to(device)


def _report(trained: Trained, model: Objective, drawings: tuple[Drawing, ...]) -> Report:
    config = trained.plan.train
    return Report(
        title=f"{config.model} on {trained.source.name}, {model.name}",
        model=_described_model(trained, model),
        data=_described_data(trained),
        compute=trained.compute(),
        broken=trained.all_broken(),
        command=trained.plan.command,
        notes=(*trained.notes(), "The encoder was learnt without labels and has no head yet."),
        drawings=drawings,
    )


def _described_model(trained: Trained, model: Objective) -> Model:
    config, whole = trained.plan.train, cost(model)
    settings = config.mae or config.masked_patch
    assert settings is not None
    more = whole.parameters - sum(p.numel() for p in model.vit.parameters())
    details = {
        "optimizer": config.optimizer.name,
        "objective": model.name,
        **{key.replace("_", " "): f"{value:g}" for key, value in to_dict(settings).items()},
        "learnt besides the encoder": f"{more:,} parameters",
        "FLOPs per image, learning": f"3 × {short(whole.flops)}",
    }
    return describe_model(config.model, model.vit, details)


def _described_data(trained: Trained) -> Data:
    counts = {"train": len(trained.train)}
    if trained.validation is not None:
        counts["validation"] = len(trained.validation)
    augment = trained.plan.train.augment
    found = describe_data(trained.source, counts, augment=augment, details={"labels": "not used"})
    return found

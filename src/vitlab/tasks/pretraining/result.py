"""The end of a run without labels: the encoder as a bundle, and what it tells as pictures."""

import torch

from vitlab.config import from_dict, to_dict
from vitlab.data.images import ImageSet
from vitlab.data.random import seed_for
from vitlab.files import write_files, write_json
from vitlab.models.config import ViTConfig
from vitlab.models.flops import cost
from vitlab.models.pretraining.objective import Objective
from vitlab.models.registry import create_model
from vitlab.tasks.figures.style import rendered, styled
from vitlab.tasks.figures.write import KINDS
from vitlab.tasks.job_result import BROKEN, Run, Trained
from vitlab.tasks.pretraining.pictures import (
    CAPTIONS,
    ROWS,
    as_pixels,
    draw_loss,
    draw_rows,
    picture_rows,
)
from vitlab.tasks.pretraining.watch import HiddenWatch
from vitlab.tasks.report import Report, describe_data, describe_model, write_report
from vitlab.tasks.report.content import Data, Drawing, Model
from vitlab.tasks.report.numbers import short
from vitlab.tasks.report.write import read_metrics
from vitlab.train.pretraining import with_objective
from vitlab.weights.bundle import save_bundle

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

"""A CNN and a ViT side by side: cost, what a unit sees by depth, and accuracy by amount of data.

`python benchmarks/cnn_and_vit.py --out FOLDER` writes a JSON and a figure of both before training;
with `--runs RUN_OF_RESNET RUN_OF_VIT`, of what these runs trained. Accuracies and images a second
are those of the experiment `data-size` (docs/experiments).
"""

import argparse
import json
import math
import statistics
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from vitlab.classify.classifier import load
from vitlab.data.datasets import open_data
from vitlab.data.images import normalise
from vitlab.data.loader import Batch
from vitlab.explain.statistics import attention_distance
from vitlab.io.files import write_files, write_json
from vitlab.models.cnn import ResNet
from vitlab.models.cost import PeakMemory, cost
from vitlab.models.variants import create_model
from vitlab.models.vit import VisionTransformer
from vitlab.report.plots import BLUE, FAINT, ORANGE, PAGE, new_figure, rendered, styled
from vitlab.training.recipes.from_scratch import recipe
from vitlab.training.state import new_state
from vitlab.training.step import backward

RESULTS = Path(__file__).parents[1] / "docs" / "experiments" / "data-size" / "results.json"
IMAGES = 64
"""Test images that fields and distances are averaged over."""
SIDE = 32
BATCH = 100
EVENLY = (math.sqrt(2) + math.asinh(1)) / 6
"""Mean distance of the points of a square from its centre, as a part of its side."""
LOOKS = {"CNN": (ORANGE, "s"), "ViT": (BLUE, "o")}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", nargs=2, metavar=("RESNET", "VIT"))
    parser.add_argument("--data", default="cifar10")
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    known = json.loads(RESULTS.read_text())
    models = [load(run).model for run in arguments.runs] if arguments.runs else fresh()
    images = some_images(arguments.data)
    found = {
        family: measured(model.eval(), images) | told(known, arm)
        for family, model, arm in zip(LOOKS, models, ("cnn", "vit"), strict=True)
    }
    arguments.out.mkdir(parents=True, exist_ok=True)
    write_json(arguments.out / "cnn-and-vit.json", found)
    with styled():
        write_files(arguments.out, {"cnn-and-vit.png": rendered(draw(found), "png")})
    print(json.dumps(found, indent=1))


def fresh() -> list[nn.Module]:
    """The networks of the experiment, before training."""
    torch.manual_seed(0)
    vit = {"width": 96, "depth": 4, "heads": 3, "mlp_width": 384}
    return [create_model("resnet18_cifar", width=16), create_model("vit_cifar_pure", **vit)]


def some_images(data: str) -> Tensor:
    """The first test images of a dataset of 32 pixels, normalised."""
    source = open_data(data)
    assert source.open_test is not None
    pixels = source.open_test().subset(torch.arange(IMAGES)).images
    return normalise(pixels, source.mean, source.std)


def measured(model: nn.Module, images: Tensor) -> dict[str, Any]:
    """Cost of a model, and what its units see."""
    price = cost(model)
    found = {
        "parameters": price.parameters,
        "flops": price.flops,
        "bytes_of_an_update": update_bytes(model, images),
        "gradient_distance": [gradient_distance(images, part) for part in parts(model)],
    }
    if isinstance(model, ResNet):
        return found | {"field": fields(model)}
    assert isinstance(model, VisionTransformer)
    return found | {"attention_distance": attention_distances(model, images)}


def update_bytes(model: nn.Module, images: Tensor) -> int:
    """Most memory that the forward and backward pass of a batch hold at a time, in bfloat16."""
    config = replace(recipe("default"), precision="bfloat16")
    batch = images.repeat(math.ceil(BATCH / len(images)), 1, 1, 1)[:BATCH]
    labels = torch.zeros(BATCH, dtype=torch.long)
    with PeakMemory() as memory:
        backward(new_state(model, config), Batch(batch, labels, torch.arange(BATCH)), config)
    model.zero_grad(set_to_none=True)
    return memory.peak


class Part:
    """The model up to a block, as a map of features."""

    def __init__(self, model: nn.Module, number: int) -> None:
        self.model, self.number = model, number

    def __call__(self, images: Tensor) -> Tensor:
        """Features [B, h, w, D] behind the block."""
        if isinstance(self.model, VisionTransformer):
            return self.model.layer(images, self.number).patches
        assert isinstance(self.model, ResNet)
        x = self.model.root(images)
        for block in blocks(self.model)[: self.number + 1]:
            x = block(x)
        return x.permute(0, 2, 3, 1)


def blocks(model: ResNet) -> list[nn.Module]:
    return [block for stage in model.stages for block in stage.children()]


def parts(model: nn.Module) -> list[Part]:
    """The model up to each of its blocks."""
    count = len(blocks(model)) if isinstance(model, ResNet) else model.config.depth
    return [Part(model, number) for number in range(count)]


def fields(model: ResNet) -> list[int]:
    """Side in pixels of what a unit can see behind each block: 3x3 convolutions and strides."""
    side, jump, found = 3, 1, []
    for block in blocks(model):
        for layer in (block.conv1, block.conv2):
            side += (layer.kernel_size[0] - 1) * jump
            jump *= layer.stride[0]
        found.append(side)
    return found


def gradient_distance(images: Tensor, part: Part) -> float:
    """Mean distance in pixels of what moves a unit near the centre, weighted by the gradient.

    The gradient of the unit's features along a random direction, the same for all images.
    """
    images = images.clone().requires_grad_()
    found = part(images)
    rows, columns = found.shape[1:3]
    centre = found[:, rows // 2, columns // 2]
    direction = torch.randn(centre.shape[1], generator=torch.Generator().manual_seed(0))
    (gradient,) = torch.autograd.grad((centre @ direction).sum(), images)
    weight = gradient.abs().sum(dim=1)  # [B, H, W]
    height, width = weight.shape[1:]
    y = torch.arange(height) + 0.5 - (rows // 2 + 0.5) * height / rows
    x = torch.arange(width) + 0.5 - (columns // 2 + 0.5) * width / columns
    distance = torch.hypot(y[:, None], x)
    return float(((weight * distance).sum((1, 2)) / weight.sum((1, 2))).mean())


def attention_distances(model: VisionTransformer, images: Tensor) -> list[list[float]]:
    """Mean distance in pixels that each head of each block looks."""
    grid, prefix = model.config.grid, model.config.prefix
    stride = (images.shape[2] / grid[0], images.shape[3] / grid[1])
    with torch.inference_mode():
        weights = model.attention(images)
    return [
        attention_distance(found, grid, prefix=prefix, stride=stride).mean(dim=0).tolist()
        for found in weights.values()
    ]


def told(known: dict[str, Any], family: str) -> dict[str, Any]:
    """Accuracy by amount of data, and training speed, of the experiment."""
    arms = [arm for arm in known["arms"] if arm["arm"].startswith(f"{family}-")]
    runs = [run for run in known["trainings"] if run["arm"].startswith(f"{family}-")]
    speeds = [run["images_seen"] / (60 * run["minutes"]) for run in runs]
    return {
        "images_per_second": statistics.median(speeds),
        "accuracy": {arm["arm"].partition("-")[2]: [arm["mean"], arm["deviation"]] for arm in arms},
    }


def draw(found: dict[str, dict[str, Any]]) -> Any:
    """Left: what a unit sees by depth. Right: accuracy by amount of data."""
    figure = new_figure(PAGE, 3.2, gap=0.04)
    left, right = figure.subplots(1, 2)
    for family, values in found.items():
        colour, marker = LOOKS[family]
        seen = values["gradient_distance"]
        left.plot(places(seen), seen, color=colour, marker=marker, label=f"{family}, by gradient")
        shares = sorted(values["accuracy"], key=float)
        right.errorbar(
            [450 * float(share) for share in shares],
            [100 * values["accuracy"][share][0] for share in shares],
            yerr=[100 * values["accuracy"][share][1] for share in shares],
            color=colour,
            marker=marker,
            capsize=3,
            label=family,
        )
    can_see = [EVENLY * min(side, SIDE) for side in found["CNN"]["field"]]
    left.plot(places(can_see), can_see, color=ORANGE, linestyle=":", label="CNN, field evenly seen")
    for row, heads in zip(
        places(found["ViT"]["attention_distance"]), found["ViT"]["attention_distance"], strict=True
    ):
        label = "ViT, attention of a head" if row == 1 else None
        left.plot([row] * len(heads), heads, "o", color=BLUE, markerfacecolor="none", label=label)
    left.set_xlabel("block")
    left.set_ylabel("mean distance in pixels")
    left.set_ylim(0)
    right.set_xscale("log")
    right.set_xlabel("training images")
    right.set_ylabel("CIFAR-10 test accuracy in %")
    for axes in (left, right):
        axes.grid(axis="y", color=FAINT, linewidth=0.7)
        axes.legend(fontsize=7)
    return figure


def places(values: Sequence[Any]) -> range:
    return range(1, len(values) + 1)


if __name__ == "__main__":
    main()

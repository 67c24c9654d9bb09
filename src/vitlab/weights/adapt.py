"""Adapt tensors to a changed config: another image size, other channels, another head.

Positions are resized grid to grid; prefix rows stay. Fixed positions (sincos2d, rope) have no
tensors: the config keeps the grid that their coordinates span. Kernels of the first layer are
distributed over the new channels so that an image with equal channels keeps its response: fewer
channels sum the kernels they replace, more channels repeat them, each divided by its number of
copies. The ResNet of hybrids standardises its kernels, including the new ones: its response is
close, and fine-tuning does the rest. A new head starts at zero, as in the paper's fine-tuning,
except for classes known by name.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from einops import rearrange
from jaxtyping import Float, Shaped
from torch import Tensor

from vitlab.config import override
from vitlab.errors import WeightsError
from vitlab.images.preprocessing import Preprocessing
from vitlab.models.config import ViTConfig
from vitlab.nn.pos_embed import table_for
from vitlab.nn.resize import ResizeMethod, resize_grid, resize_offsets
from vitlab.weights.stored_config import ADAPTED, FREE

FIRST_LAYER = {
    "patch": "stem.proj.weight",
    "resnet": "stem.resnet.root.conv.weight",
    "conv": "stem.convs.0.conv.weight",
}


def adapted_config(
    stored: ViTConfig, changes: Mapping[str, Any], method: ResizeMethod
) -> ViTConfig:
    """Stored config with the changes that tensors or behaviour can follow."""
    wanted = {
        name: value
        for name, value in changes.items()
        if name in ADAPTED or name in FREE or name == "pool"
    }
    wanted.setdefault("position_resize", method)
    if wanted.get("head") == "linear":
        wanted.setdefault("representation_size", None)
    target = override(stored, wanted)
    if target.grid != stored.grid and (stored.rotary or stored.position == "sincos2d"):
        target = replace(target, position_grid=stored.position_grid or stored.grid)
    _check_head(stored, target)
    _check_channels(stored, target)
    return target


def _check_head(stored: ViTConfig, target: ViTConfig) -> None:
    if target.head != "linear" and (
        stored.head != target.head or stored.representation != target.representation
    ):
        raise WeightsError(
            f"head={target.head!r} with representation_size {target.representation} is not in the "
            f"file (head={stored.head!r}, {stored.representation} wide); valid: as it is, or "
            f"'linear'"
        )


def _check_channels(stored: ViTConfig, target: ViTConfig) -> None:
    if stored.channels == target.channels:
        return
    if stored.stem not in FIRST_LAYER or stored.patch_norm == "both":
        raise WeightsError(
            f"channels={target.channels}: the file has {stored.channels}, and its stem "
            f"({stored.stem!r}, patch_norm {stored.patch_norm!r}) normalises them together; "
            f"valid: {stored.channels}"
        )


def known_rows(tensor: Shaped[Tensor, "K ..."], rows: Sequence[int | None]) -> Tensor:
    """A head's weight or bias for other classes: the rows of known ones, zero for the others."""
    new = tensor.new_zeros(len(rows), *tensor.shape[1:])
    for place, row in enumerate(rows):
        if row is not None:
            new[place] = tensor[row]
    return new


def adapt(
    name: str, tensor: Tensor, stored: ViTConfig, target: ViTConfig, method: ResizeMethod
) -> Tensor | None:
    """Tensor adapted to the target; None if it starts fresh or is not used."""
    if name.startswith("pre_logits."):
        return tensor if target.head == stored.head else None
    if name.startswith("head."):
        same = (stored.classes, stored.head) == (target.classes, target.head)
        return tensor if same else None
    if name.endswith((".offsets", ".offset_bias.table")):
        grid = target.grid_at(int(name.split(".")[2]))  # of encoder.blocks.N
        if name.endswith(".table"):
            return table_for(tensor, grid)
        return resize_offsets(tensor, grid[0] * grid[1])
    if name.startswith("positions."):
        return _adapt_positions(name, tensor, stored, target, method)
    if name == FIRST_LAYER.get(stored.stem) and stored.channels != target.channels:
        return adapt_channels(tensor, target.channels)
    return tensor


def _adapt_positions(
    name: str, tensor: Tensor, stored: ViTConfig, target: ViTConfig, method: ResizeMethod
) -> Tensor:
    part = name.rpartition(".")[2]
    if part == "table":
        return resize_table(tensor, stored.grid, target.grid, method)
    if part in ("rows", "columns"):
        length = target.grid[0 if part == "rows" else 1]
        return resize_grid(tensor[:, None], (length, 1), method)[:, 0]
    return tensor


def resize_table(
    table: Float[Tensor, "N D"], old: tuple[int, int], new: tuple[int, int], method: ResizeMethod
) -> Float[Tensor, "M D"]:
    """Table for another grid; the rows before the patches are unchanged."""
    if old == new:
        return table
    prefix, patches = table.split([len(table) - old[0] * old[1], old[0] * old[1]])
    grid = resize_grid(rearrange(patches, "(h w) d -> h w d", h=old[0]), new, method)
    return torch.cat([prefix, rearrange(grid, "h w d -> (h w) d")])


def adapt_channels(kernel: Float[Tensor, "O C h w"], channels: int) -> Float[Tensor, "O C2 h w"]:
    """Kernels for another number of channels with the same sum over channels."""
    old = kernel.shape[1]
    share = torch.zeros(channels, old, dtype=torch.float64)
    for i in range(max(channels, old)):
        share[i % channels, i % old] = 1.0
    share /= share.sum(dim=0)
    return torch.einsum("nc,ochw->onhw", share, kernel.double()).to(kernel.dtype)


def adapt_preprocessing(
    preprocessing: Preprocessing | None, image_size: tuple[int, int], channels: int
) -> Preprocessing | None:
    """Preprocessing of the adapted model; new channels take the statistics of their sources."""
    if preprocessing is None:
        return None
    old = preprocessing.channels
    if old != channels:
        mean, std = (
            (sum(values) / old,)
            if channels == 1
            else tuple(values[i % old] for i in range(channels))
            for values in (preprocessing.mean, preprocessing.std)
        )
        preprocessing = replace(preprocessing, mean=mean, std=std)
    return preprocessing.resized(image_size)

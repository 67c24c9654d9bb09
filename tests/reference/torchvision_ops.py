"""Lets torchvision and timm import where torchvision's compiled operators do not fit this torch."""

import importlib

import torch

SCHEMA = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
_libraries: list[torch.library.Library] = []
"""A library's operators disappear with it: kept for as long as the process lives."""


def declare() -> None:
    """Import torchvision, its detection operators (which nothing here calls) stubs if need be."""
    try:
        importlib.import_module("torchvision")
    except RuntimeError:
        library = torch.library.Library("torchvision", "DEF")
        for operator in ("nms", "qnms"):
            library.define(operator + SCHEMA)
        _libraries.append(library)
        importlib.import_module("torchvision")

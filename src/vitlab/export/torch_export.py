"""`torch.export` files: the graph and its weights, for torch itself."""

from collections.abc import Mapping
from pathlib import Path

import torch
from torch.export import ExportedProgram

from vitlab.export.program import quiet
from vitlab.export.verify import Run


def write_program(program: ExportedProgram, path: Path, metadata: Mapping[str, str]) -> None:
    """Write the graph; `torch.export.load(path, extra_files=…)` gives the metadata back."""
    with quiet():
        torch.export.save(program, str(path), extra_files=dict(metadata))


def run_program(path: Path) -> Run:
    """What the file computes."""
    with quiet():
        module = torch.export.load(str(path)).module()
    return lambda images: module(torch.from_numpy(images)).detach().numpy()

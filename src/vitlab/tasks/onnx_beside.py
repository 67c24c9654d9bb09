"""The ONNX file of a bundle, beside the weights that it is made of."""

import logging
from pathlib import Path

from vitlab.export.onnx import LARGEST, can_export
from vitlab.runtime import onnx_wanted
from vitlab.tasks.export import export
from vitlab.weights.bundle_files import ONNX, WEIGHTS

log = logging.getLogger(__name__)


def exportable(weights: Path) -> bool:
    """Whether these weights can become one ONNX file here."""
    return can_export() and weights.stat().st_size <= LARGEST


def write_onnx_beside(folder: Path) -> Path | None:
    """The file, if it is wanted and can be; a model that cannot be exported is one all the same."""
    if not (onnx_wanted() and exportable(folder / WEIGHTS)):
        return None
    return try_export(folder, compact=True)


def try_export(folder: Path, *, compact: bool) -> Path | None:
    """The file; None, and a word of warning, where the model cannot be exported."""
    try:
        return export(folder, output=folder / ONNX, compact=compact, force=True).output
    except Exception as error:  # a part of somebody's own may not be exportable, in any way
        reason = " ".join(str(error).split())[:200]
        log.warning("no %s beside the weights: %s", ONNX, reason)
        return None

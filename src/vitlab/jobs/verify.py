"""`vitlab info --verify`: whether the files of a bundle are those that were written."""

import os

from vitlab.classify.exported_model import check_same_weights
from vitlab.errors import WeightsError
from vitlab.weights.bundle import verify_copy
from vitlab.weights.bundle_files import ONNX, WEIGHTS, find_bundle, is_bundle, verify_bundle
from vitlab.weights.published import locate


def verify(model: str | os.PathLike[str]) -> tuple[str, ...]:
    """Names of the files whose digests are right; WeightsError if any is not, or has none."""
    folder = find_bundle(locate(model))
    if not (folder.is_dir() and is_bundle(folder)):
        raise WeightsError(f"{os.fspath(model)}: not a bundle; valid: a bundle, or its run")
    files = verify_bundle(folder)
    if WEIGHTS not in files:
        raise WeightsError(
            f"{folder}: an older bundle, whose config.json has no digests to compare with"
        )
    verify_copy(folder)
    if (folder / ONNX).is_file():
        check_same_weights(folder)
    return files

"""`vitlab info --verify` and `vitlab push`: the files of a bundle, checked and published."""

import os
import tempfile
from pathlib import Path

from vitlab.classify.exported import check_same_weights
from vitlab.errors import FileError, WeightsError
from vitlab.jobs.card import markdown, read_card
from vitlab.models.vit import VisionTransformer
from vitlab.weights.bundle import (
    ONNX,
    WEIGHTS,
    find_bundle,
    is_bundle,
    save_model,
    verify_bundle,
    verify_copy,
)
from vitlab.weights.hub import CARD, Pushed, parse_address
from vitlab.weights.hub import push as upload
from vitlab.weights.resolve import locate


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


def push(
    bundle: str | os.PathLike[str], address: str, *, public: bool = False, progress: bool = False
) -> Pushed:
    """Publish the bundle of a folder or a run under `hf:OWNER/NAME`, for its owner's eyes only.

    A README.md of your own in the bundle's folder is sent instead of the card that is written.
    """
    parse_address(address)
    folder = find_bundle(locate(bundle))
    if not is_bundle(folder):
        raise WeightsError(
            f"{os.fspath(bundle)} is no bundle; valid: a folder with config.json and "
            f"model.safetensors, as `vitlab train` writes it, or its run"
        )
    card = read_card(folder)
    own = folder / CARD
    try:
        text = own.read_text(encoding="utf-8") if own.is_file() else markdown(card)
    except UnicodeDecodeError as error:
        raise FileError(f"{own}: not UTF-8 text (byte {error.start})") from error
    return upload(folder, address, card=text, public=public, progress=progress)


def push_model(model: VisionTransformer, address: str, *, public: bool = False) -> Pushed:
    """Publish a model in memory, with its card, under `OWNER/NAME` or `hf:OWNER/NAME`."""
    place = address if address.startswith("hf:") else f"hf:{address}"
    parse_address(place)
    with tempfile.TemporaryDirectory(prefix="vitlab-") as folder:
        save_model(folder, model)
        return push(Path(folder), place, public=public)

"""`vitlab push`: a bundle and its model card to the hub."""

import os

from vitlab.errors import FileError, WeightsError
from vitlab.jobs.card import markdown, read_card
from vitlab.weights.bundle_files import find_bundle, is_bundle
from vitlab.weights.hub import CARD, Pushed, parse_address
from vitlab.weights.hub import push as upload
from vitlab.weights.published import locate


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

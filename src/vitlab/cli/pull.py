"""`vitlab pull`: a bundle or a ViT from the Hugging Face hub."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from vitlab.cli.options import Json
from vitlab.cli.output import print_json, print_pairs
from vitlab.config import to_dict


def pull(
    address: Annotated[
        str, typer.Argument(metavar="hf:OWNER/NAME[@REVISION]", help="What to download.")
    ],
    output: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="A new folder; without it, the hub's cache."),
    ] = None,
    json: Json = False,
) -> None:
    """Download a bundle, or a ViT of timm or transformers; never code, never pickles."""
    from vitlab.weights.hub import pull as download

    got = download(address, output, progress=sys.stderr.isatty())
    if json:
        print_json({**to_dict(got), "folder": str(got.folder)})
        return
    print_pairs(
        [
            ("folder", str(got.folder)),
            ("holds", "a bundle" if got.kind == "bundle" else "weights of another library"),
            ("files", ", ".join(got.files)),
            ("left out", ", ".join(got.left_out) or "nothing"),
            ("commit", got.commit),
            ("licence", got.licence or "not stated"),
        ]
    )

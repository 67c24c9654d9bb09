"""`vitlab pull` and `vitlab push`: models from and to the Hugging Face hub."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from vitlab.cli.options import Json
from vitlab.cli.output import print_json, print_line, print_pairs
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
    """Download a bundle, or a ViT of timm or transformers; never code or pickles."""
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


def push(
    bundle: Annotated[str, typer.Argument(metavar="BUNDLE|RUN", help="A bundle, or its run.")],
    address: Annotated[
        str, typer.Argument(metavar="hf:OWNER/NAME", help="Repository to upload to.")
    ],
    public: Annotated[
        bool, typer.Option("--public", help="Make the repository public; default: private.")
    ] = False,
    json: Json = False,
) -> None:
    """Upload a bundle and its model card; the token is HF_TOKEN or from `hf auth login`."""
    from vitlab.jobs.bundle import push as upload

    done = upload(bundle, address, public=public, progress=sys.stderr.isatty())
    if json:
        print_json(to_dict(done))
    else:
        print_line(
            f"{done.url} ({'public' if done.public else 'private'}): {', '.join(done.files)}"
        )

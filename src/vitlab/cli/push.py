"""`vitlab push`: a bundle to the Hugging Face hub."""

import sys
from typing import Annotated

import typer

from vitlab.cli.options import Json
from vitlab.cli.output import print_json, print_line
from vitlab.config import to_dict


def push(
    bundle: Annotated[str, typer.Argument(metavar="BUNDLE|RUN", help="A bundle, or its run.")],
    address: Annotated[str, typer.Argument(metavar="hf:OWNER/NAME", help="Where it goes.")],
    public: Annotated[
        bool, typer.Option("--public", help="For everybody to see; without it, private.")
    ] = False,
    json: Json = False,
) -> None:
    """Upload a bundle and its model card; the token is HF_TOKEN or that of `hf auth login`."""
    from vitlab.tasks.push import push as upload

    done = upload(bundle, address, public=public, progress=sys.stderr.isatty())
    if json:
        print_json(to_dict(done))
    else:
        print_line(
            f"{done.url} ({'public' if done.public else 'private'}): {', '.join(done.files)}"
        )

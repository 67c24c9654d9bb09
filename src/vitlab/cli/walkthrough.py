"""`vitlab walkthrough`: one image through one head, as a page to read."""

from pathlib import Path
from typing import Annotated, Any

import typer

from vitlab.cli.options import Json
from vitlab.cli.output import print_json, print_pairs


def parse_token(text: str) -> tuple[int, int]:
    """Row and column of a patch from `3,4`."""
    parts = [part.strip() for part in text.split(",")]
    if len(parts) != 2 or not all(part.isdecimal() for part in parts):
        raise typer.BadParameter(f"{text!r} is not ROW,COLUMN of a patch, such as 3,4")
    return int(parts[0]), int(parts[1])


def walkthrough(
    image: Annotated[
        str, typer.Argument(metavar="IMAGE", help="A file, or one of a dataset: sample/test/17.")
    ],
    model: Annotated[
        str | None,
        typer.Option(help="A run, a bundle, a weight file, or a name (random weights)."),
    ] = None,
    output: Annotated[Path, typer.Option(metavar="PAGE.html", help="Where the page goes.")] = Path(
        "walkthrough.html"
    ),
    layer: Annotated[int, typer.Option(help="Block to follow, from 0; -1 is the last.")] = 0,
    head: Annotated[int, typer.Option(help="Head of that block, from 0.")] = 0,
    token: Annotated[
        Any,  # tuple[int, int] | None: Typer knows no unions
        typer.Option(
            metavar="ROW,COLUMN", parser=parse_token, help="Patch that asks; without: the middle."
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Follow the computation of one attention head with real numbers, from pixels to output."""
    from vitlab.jobs.walkthrough import DEFAULT_MODEL
    from vitlab.jobs.walkthrough import walkthrough as run

    chosen = DEFAULT_MODEL if model is None else model
    found = run(image, output, model=chosen, layer=layer, head=head, token=token)
    walk = found.walk
    row, column = divmod(walk.query - walk.prefix, walk.grid[1])
    facts = {
        "model": found.model,
        "random_weights": found.fresh,
        "layer": walk.layer,
        "head": walk.number,
        "token": [row, column],
        "tokens": len(walk.entering),
        "difference": walk.difference,
        "output": str(found.output),
    }
    if json:
        print_json(facts)
        return
    weights = " (random weights: nothing has been learned)" if found.fresh else ""
    print_pairs(
        [
            ("model", f"{found.model}{weights}"),
            ("followed", f"patch {row},{column} in head {walk.number} of block {walk.layer}"),
            ("checked", f"the model's own attention differs by {walk.difference:.1e} at most"),
            ("page", str(found.output)),
        ]
    )

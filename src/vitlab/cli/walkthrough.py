"""`vitlab walkthrough`: one image from pixels to probabilities, as a page."""

from pathlib import Path
from typing import Annotated

import typer

from vitlab.cli.options import Json, Language, Patch, Preparation, states_preprocessing
from vitlab.cli.output import print_json, print_pairs


@states_preprocessing
def walkthrough(
    image: Annotated[
        str, typer.Argument(metavar="IMAGE", help="A file, or one of a dataset: sample/test/17.")
    ],
    model: Annotated[
        str | None,
        typer.Option(help="A run, a bundle, a weight file, or a name; default: vit_plain.cifar10."),
    ] = None,
    output: Annotated[Path, typer.Option(metavar="PAGE.html", help="Page to write.")] = Path(
        "walkthrough.html"
    ),
    layer: Annotated[int, typer.Option(help="Block to follow, from 0; -1 is the last.")] = 0,
    head: Annotated[int, typer.Option(help="Head of that block, from 0.")] = 0,
    token: Patch = None,
    language: Language = "en",
    preprocessing: Preparation = None,
    json: Json = False,
) -> None:
    """Follow one image through a model with real numbers, from pixels to probabilities."""
    from vitlab.jobs.walkthrough import DEFAULT_MODEL
    from vitlab.jobs.walkthrough import walkthrough as run

    chosen = DEFAULT_MODEL if model is None else model
    found = run(
        image,
        output,
        model=chosen,
        layer=layer,
        head=head,
        token=token,
        preprocessing=preprocessing,
        language=language,
    )
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
    weights = " (random weights)" if found.fresh else ""
    print_pairs(
        [
            ("model", f"{found.model}{weights}"),
            ("followed", f"patch {row},{column} in head {walk.number} of block {walk.layer}"),
            ("checked", f"the model's own results differ by {walk.difference:.1e} at most"),
            ("page", str(found.output)),
        ]
    )

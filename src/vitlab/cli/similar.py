"""`vitlab similar`: the images most similar to one, or to a text."""

from pathlib import Path
from typing import Annotated

import typer

from vitlab.cli.options import ContactSheet, ImageSize, Json, Preparation, states_preprocessing
from vitlab.cli.output import print_json, print_line, print_table
from vitlab.cli.progress import job_progress
from vitlab.config import to_dict


@states_preprocessing
def similar(
    features: Annotated[
        Path, typer.Argument(metavar="FEATURES", help="File written by `vitlab features`.")
    ],
    image: Annotated[
        Path | None, typer.Argument(metavar="IMAGE", help="An image file; not with --text.")
    ] = None,
    text: Annotated[
        str | None,
        typer.Option(
            metavar="WORDS",
            help="A text instead, for the embeddings (--kind embedding) of a CLIP or SigLIP.",
        ),
    ] = None,
    top: Annotated[int, typer.Option(min=1, help="Images to show.")] = 10,
    model: Annotated[str | None, typer.Option(help="New path of the model, if it moved.")] = None,
    image_size: ImageSize = None,
    contact_sheet: ContactSheet = None,
    preprocessing: Preparation = None,
    json: Json = False,
) -> None:
    """Find the images with the most similar features to an image or a text (cosine similarity)."""
    from vitlab.jobs.similar import check_sheet, write_sheet
    from vitlab.jobs.similar import similar as search

    if contact_sheet is not None:
        check_sheet(contact_sheet)
    with job_progress() as watch:
        found = search(
            features,
            image,
            text=text,
            top=top,
            model=model,
            image_size=image_size,
            preprocessing=preprocessing,
            watch=watch,
        )
    if contact_sheet is not None:
        write_sheet(found, contact_sheet)
    if json:
        print_json(
            {
                **({"image": found.image} if found.text is None else {"text": found.text}),
                "searched": found.searched,
                "matches": [to_dict(match) for match in found.matches],
            }
        )
        return
    print_table(
        ("image", "label", "similarity"),
        ((m.path, m.label or "-", f"{m.similarity:.4f}") for m in found.matches),
    )
    if contact_sheet is not None:
        print_line()
        print_line(f"contact sheet: {contact_sheet}")

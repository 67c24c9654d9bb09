"""`vitlab data index` and `vitlab data pack`: shards, and tables of images."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vitlab.cli.options import Json
from vitlab.cli.output import human, print_json, print_left_out, print_pairs
from vitlab.cli.progress import file_progress

if TYPE_CHECKING:
    from vitlab.data.shards.index import Index


def index(
    data: Annotated[
        str,
        typer.Argument(
            metavar="SHARDS|TABLES",
            help="Tar shards such as 'shards/{000..127}.tar', Parquet or Arrow files, a folder of "
            "them, or an address of these such as s3://bucket/shards.",
        ),
    ],
    force: Annotated[
        bool, typer.Option("--force", help="Write the index anew if there is one.")
    ] = False,
    json: Json = False,
) -> None:
    """Write the index of shards or tables, by which images are read by number."""
    from vitlab.data.shards.layout import find_layout, open_index, write_index
    from vitlab.errors import DataError

    layout = find_layout(data)
    if layout is None:
        raise DataError(f"{data}: no shards or tables; valid: tar, Parquet or Arrow files")
    with file_progress("shards", sys.stderr) as watch:
        write_index(layout, force=force, watch=watch)
    found = open_index(layout)
    if json:
        print_json(_facts(found))
        return
    print_pairs(_lines(found))
    print_left_out(found.header.damaged)


def _facts(index: "Index") -> dict[str, Any]:
    header = index.header
    return {
        "index": str(index.folder),
        "bytes": _size(index),
        "files": len(header.files),
        "images": {split: end - start for split, (start, end) in header.splits.items()},
        "image_bytes": int(index.size.sum(dtype="int64")),
        "task": header.task,
        "labels": list(header.labels),
        "damaged": header.damaged,
    }


def _size(index: "Index") -> int:
    return sum(path.stat().st_size for path in index.folder.iterdir())


def _lines(index: "Index") -> list[tuple[str, str]]:
    facts = _facts(index)
    images = ", ".join(f"{split} {count:,}" for split, count in facts["images"].items())
    labels = "none" if facts["task"] is None else f"{len(facts['labels']):,} ({facts['task']})"
    return [
        ("files", f"{facts['files']:,}"),
        ("images", f"{images}, {human(facts['image_bytes'])}B"),
        ("labels", labels),
        ("index", f"{facts['index']} ({human(facts['bytes'])}B)"),
    ]


def pack(
    folder: Annotated[
        Path,
        typer.Argument(
            metavar="FOLDER|ZIP|CSV", help="Images as `vitlab train --data` takes them."
        ),
    ],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="New folder for the shards.")],
    images: Annotated[
        int, typer.Option(min=1, metavar="N", help="Most images of a shard.")
    ] = 10_000,
    megabytes: Annotated[
        float, typer.Option(min=0.001, metavar="MB", help="About the most megabytes of a shard.")
    ] = 256,
    seed: Annotated[int, typer.Option(help="Seed of the order of the images.")] = 0,
    json: Json = False,
) -> None:
    """Pack images into shuffled tar shards, in the layout of WebDataset, and write their index."""
    from vitlab.config import to_dict
    from vitlab.data.shards.pack import pack as run

    with file_progress("images", sys.stderr) as watch:
        found = run(folder, out, images=images, megabytes=megabytes, seed=seed, watch=watch)
    if json:
        print_json(to_dict(found))
        return
    lines = [("images", f"{found.images:,}"), ("shards", f"{found.shards:,}")]
    print_pairs([*lines, ("folder", f"{found.folder} ({human(found.bytes)}B)")])
    print_left_out(found.skipped)

"""`vitlab data`: list and fetch named datasets, check images, index and pack shards."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vitlab.cli.completion import complete_dataset
from vitlab.cli.options import ContactSheet, Json
from vitlab.cli.output import (
    human,
    print_json,
    print_left_out,
    print_line,
    print_pairs,
    print_table,
    print_text,
)
from vitlab.cli.progress import download_progress, file_progress

if TYPE_CHECKING:
    from vitlab.data.check.check import Check
    from vitlab.data.check.findings import Finding
    from vitlab.data.datasets import Dataset
    from vitlab.data.shards.index import Index

CLASSES = 20
"""Rows of the table of classes; of more, the smallest are shown."""
EXAMPLES = 2
"""Cases named under a finding."""
HEADINGS = {
    "Harms training or the evaluation:": (True, False),
    "Handled when read:": (False, False),
    "Not read:": (False, True),
}
"""Headings of findings that are serious, and of those about files that take no part."""


def check(
    folder: Annotated[
        str,
        typer.Argument(
            metavar="FOLDER|SHARDS", help="A folder, shards or tables, as in `train --data`."
        ),
    ],
    contact_sheet: ContactSheet = None,
    strict: Annotated[
        bool, typer.Option("--strict", help="Exit with 1 if a finding harms training.")
    ] = False,
    json: Json = False,
) -> None:
    """Read every image of a folder and report problems that would harm training.

    Findings are not errors: the exit code is 0 unless --strict is given.
    """
    from vitlab.config import to_dict
    from vitlab.data.check.check import check_folder, write_check_sheet
    from vitlab.images.contact_sheet import check_name

    if contact_sheet is not None:
        check_name(contact_sheet)
    with file_progress("files", sys.stderr) as watch:
        found = check_folder(folder, watch=watch)
    if contact_sheet is not None:
        write_check_sheet(contact_sheet, found)
    if json:
        print_json(to_dict(found) | {"serious": found.serious})
    else:
        _print(found)
        if contact_sheet is not None:
            print_line()
            print_line(f"contact sheet: {contact_sheet}")
    if strict and found.serious:
        raise typer.Exit(1)


def _print(found: "Check") -> None:
    print_line(f"{found.folder}: {found.images:,} readable images in {len(found.counts):,} classes")
    if found.counts:
        _print_classes(found)
    if found.height is not None and found.width is not None:
        print_line()
        print_table(
            ("pixels", "least", "median", "most"),
            (
                (name, f"{side.least:,}", f"{side.median:,g}", f"{side.most:,}")
                for name, side in (("width", found.width), ("height", found.height))
            ),
        )
    for heading, kind in HEADINGS.items():
        findings = [each for each in found.findings if (each.serious, each.unread) == kind]
        if findings:
            print_line()
            print_line(f"{heading}")
            _print_findings(findings)
    if not found.serious:
        print_line()
        print_line("Nothing found that harms training.")


def _print_classes(found: "Check") -> None:
    splits = found.splits
    shown = list(found.counts.items())
    if len(shown) > CLASSES:
        shown = sorted(shown, key=lambda row: sum(row[1].values()))[:CLASSES]
    rows = [
        (label, *(f"{counts[split]:,}" if split in counts else "-" for split in splits))
        for label, counts in shown
    ]
    totals = (sum(counts.get(split, 0) for counts in found.counts.values()) for split in splits)
    rows.append(("all", *(f"{total:,}" for total in totals)))
    print_line()
    print_table(("class", *(split or "images" for split in splits)), rows)
    if len(shown) < len(found.counts):
        print_line(f"the {len(shown)} smallest of {len(found.counts):,} classes; --json has all")


def _print_findings(findings: "list[Finding]") -> None:
    width = max(len(f"{found.count:,}") for found in findings)
    for found in findings:
        print_line(f"  {found.count:>{width},} {found.noun} {found.advice}")
        for item in found.items[:EXAMPLES]:
            paths = " = ".join(item.paths[:3]) + (" = …" if len(item.paths) > 3 else "")
            print_line(f"  {'':{width}}   {paths}{f' ({item.detail})' if item.detail else ''}")
        if len(found.items) > EXAMPLES:
            print_line(f"  {'':{width}}   … and {len(found.items) - EXAMPLES:,} more")


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
        print_json(_index_facts(found))
        return
    print_pairs(_index_lines(found))
    print_left_out(found.header.damaged)


def _index_facts(index: "Index") -> dict[str, Any]:
    header = index.header
    return {
        "index": str(index.folder),
        "bytes": _index_bytes(index),
        "files": len(header.files),
        "images": {split: end - start for split, (start, end) in header.splits.items()},
        "image_bytes": int(index.size.sum(dtype="int64")),
        "task": header.task,
        "labels": list(header.labels),
        "damaged": header.damaged,
    }


def _index_bytes(index: "Index") -> int:
    return sum(path.stat().st_size for path in index.folder.iterdir())


def _index_lines(index: "Index") -> list[tuple[str, str]]:
    facts = _index_facts(index)
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


data = typer.Typer(name="data")
data.command()(check)
data.command()(index)
data.command()(pack)


@data.callback(invoke_without_command=True)
def describe(context: typer.Context) -> None:
    """List, fetch, check, index and pack datasets."""
    if context.invoked_subcommand is None:
        print_text(context.get_help())


@data.command("list")
def list_(json: Json = False) -> None:
    """List the named datasets and where each is stored."""
    from vitlab.data.datasets import Dataset
    from vitlab.registry import DATASETS

    found: list[dict[str, Any]] = [
        _describe(entry) if isinstance(entry, Dataset) else {"name": name}
        for name, entry in ((name, DATASETS[name]) for name in DATASETS)
    ]
    if json:
        print_json(found)
        return
    print_table(
        ("name", "train", "test", "classes", "size", "licence", "where"),
        (
            (
                entry["name"],
                *(f"{entry[key]:,}" if key in entry else "-" for key in ("train", "test")),
                str(entry.get("classes", "-")),
                f"{human(entry['bytes'])}B" if entry.get("bytes") else "-",
                entry.get("licence", "-"),
                _where(entry),
            )
            for entry in found
        ),
    )


def _describe(dataset: "Dataset") -> dict[str, Any]:
    found = dataset.find() if dataset.files else None
    return {
        "name": dataset.name,
        "title": dataset.title,
        "train": dataset.images[0],
        "test": dataset.images[1],
        "classes": dataset.classes,
        "bytes": dataset.size,
        "licence": dataset.licence,
        "embedded": not dataset.files,
        "path": None if found is None else str(found),
    }


def _where(entry: dict[str, Any]) -> str:
    if "title" not in entry:
        return "registered by you"
    if entry["embedded"]:
        return "part of vitlab"
    return entry["path"] or f"vitlab data fetch {entry['name']}"


@data.command()
def fetch(
    name: Annotated[
        str,
        typer.Argument(
            help="A dataset's name, as `vitlab data list` has it.", autocompletion=complete_dataset
        ),
    ],
    json: Json = False,
) -> None:
    """Download a dataset once and verify it; it is then used offline."""
    from vitlab.data.datasets import dataset
    from vitlab.data.sources.fetch import fetch as get

    wanted = dataset(name)
    if not wanted.files:
        path, mirror = None, None
    else:
        with download_progress(sys.stderr) as progress:
            fetched = get(wanted, progress)
        path, mirror = str(fetched.path), fetched.mirror
    if json:
        print_json({"name": name, "path": path, "mirror": mirror, "bytes": wanted.size})
    elif path is None:
        print_line(f"{name} is part of vitlab: there is nothing to fetch")
    elif mirror is None:
        print_line(f"{name} is already in {path}")
    else:
        print_line(f"{name} is in {path}, from {mirror}, verified")

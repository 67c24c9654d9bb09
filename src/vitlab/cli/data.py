"""`vitlab data`: the datasets that have a name, getting them, and checking a folder."""

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vitlab.cli.data_check import check
from vitlab.cli.options import Json
from vitlab.cli.output import human, print_json, print_line, print_table, print_text

if TYPE_CHECKING:
    from vitlab.data.datasets import Dataset

data = typer.Typer()
data.command()(check)


@data.callback(invoke_without_command=True)
def describe(context: typer.Context) -> None:
    """List, fetch and check datasets."""
    if context.invoked_subcommand is None:
        print_text(context.get_help())


@data.command("list")
def list_(json: Json = False) -> None:
    """List the datasets that have a name, and where each of them lies."""
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
    name: Annotated[str, typer.Argument(help="A dataset's name, as `vitlab data list` has it.")],
    json: Json = False,
) -> None:
    """Get a dataset once, verified; from then on it is used offline."""
    from vitlab.cli.progress import showing
    from vitlab.data.datasets import dataset
    from vitlab.data.fetch import fetch as get

    wanted = dataset(name)
    if not wanted.files:
        path, mirror = None, None
    else:
        with showing(sys.stderr) as progress:
            fetched = get(wanted, progress)
        path, mirror = str(fetched.path), fetched.mirror
    if json:
        print_json({"name": name, "path": path, "mirror": mirror, "bytes": wanted.size})
    elif path is None:
        print_line(f"{name} is part of vitlab: there is nothing to fetch")
    elif mirror is None:
        print_line(f"{name} is in {path} already")
    else:
        print_line(f"{name} is in {path}, from {mirror}, verified")

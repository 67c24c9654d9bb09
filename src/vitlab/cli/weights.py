"""`vitlab weights`: the published checkpoints that have a name, and getting them."""

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vitlab.cli.models import matching
from vitlab.cli.options import Json
from vitlab.cli.output import human, print_json, print_table

if TYPE_CHECKING:
    from vitlab.weights.table import Checkpoint

weights = typer.Typer()


@weights.callback(invoke_without_command=True)
def describe(context: typer.Context) -> None:
    """List and fetch published weights."""
    if context.invoked_subcommand is None:
        print(context.get_help())


@weights.command("list")
def list_(
    pattern: Annotated[
        str,
        typer.Argument(help="Part of a name, or a glob such as 'vit_b16*'; all names without it."),
    ] = "",
    json: Json = False,
) -> None:
    """List published checkpoints, and where those lie that have been fetched."""
    from vitlab.weights.table import checkpoints

    known = checkpoints()
    found = [_describe(known[name]) for name in matching(pattern, known, kind="weights")]
    if json:
        print_json(found)
        return
    print_table(
        ("name", "image", "classes", "size", "sha256", "licence", "fetched"),
        (
            (
                entry["name"],
                str(entry["preprocessing"]["size"][0]),
                entry["dataset"] or "none",
                entry["size"] or "-",
                entry["sha256"] or "-",
                entry["licence"],
                entry["path"] or "-",
            )
            for entry in found
        ),
    )


def _describe(checkpoint: "Checkpoint") -> dict[str, Any]:
    from vitlab.config import to_dict
    from vitlab.weights.fetch import find, read_record

    path = find(checkpoint)
    return {
        **to_dict(checkpoint),
        "model": checkpoint.model,
        "preprocessing": checkpoint.preprocessing.to_json(),
        "path": None if path is None else str(path),
        "pinned": None if path is None else read_record(path),
    }


@weights.command()
def fetch(
    name: Annotated[str, typer.Argument(help="A name, as `vitlab weights list` has it.")],
    json: Json = False,
) -> None:
    """Get a checkpoint once, verified as far as its publisher allows; then use it by name."""
    from vitlab.cli.progress import showing
    from vitlab.weights.fetch import fetch as get
    from vitlab.weights.table import checkpoint

    wanted = checkpoint(name)
    with showing(sys.stderr) as progress:
        fetched = get(wanted, progress)
    size = fetched.path.stat().st_size
    if json:
        print_json(
            {
                "name": name,
                "path": str(fetched.path),
                "bytes": size,
                "sha256": fetched.sha256,
                "sha256_published": wanted.sha256,
                "licence": wanted.licence,
                "new": fetched.new,
            }
        )
    elif fetched.new:
        print(f"{name} is in {fetched.path} ({human(size)}B, {wanted.licence})")
        print(_verified(wanted, fetched.sha256))
    else:
        print(f"{name} is in {fetched.path} already")


def _verified(checkpoint: "Checkpoint", digest: str) -> str:
    if checkpoint.sha256 is None:
        return f"no checksum is published: pinned to sha256 {digest}"
    if len(checkpoint.sha256) == len(digest):
        return f"sha256 {digest}, as published"
    return f"sha256 {digest}, which begins as published ({checkpoint.sha256})"

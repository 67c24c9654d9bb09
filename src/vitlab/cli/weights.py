"""`vitlab weights`: list trained weights, bundled and published, and download them."""

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vitlab.cli.completion import complete_weights
from vitlab.cli.models import matching
from vitlab.cli.options import Json, Pattern
from vitlab.cli.output import human, print_json, print_line, print_table, print_text
from vitlab.cli.progress import download_progress
from vitlab.errors import WeightsError

if TYPE_CHECKING:
    from pathlib import Path

    from vitlab.weights.hub_models import HubModel
    from vitlab.weights.resolve import Checkpoint

weights = typer.Typer(name="weights")


@weights.callback(invoke_without_command=True)
def describe(context: typer.Context) -> None:
    """List trained weights and download published ones."""
    if context.invoked_subcommand is None:
        print_text(context.get_help())


@weights.command("list")
def list_(
    pattern: Pattern = "",
    json: Json = False,
) -> None:
    """List bundled models, published checkpoints and models on the hub, and where they are stored.

    Those on the hub, `hf:OWNER/NAME`, are downloaded by `vitlab pull`.
    """
    from vitlab.weights.hub_models import hub_models
    from vitlab.weights.resolve import bundled_models, checkpoints

    inside, known, hub = bundled_models(), checkpoints(), hub_models()
    found = []
    for name in matching(pattern, (*inside, *known, *hub), kind="weights"):
        if name in hub:
            found.append(_describe_hub(hub[name]))
        else:
            entry = known.get(name)
            found.append(_describe(entry) if entry else _describe_bundled(name, inside[name]))
    if json:
        print_json(found)
        return
    print_table(
        ("name", "image", "classes", "size", "sha256", "licence", "gated", "fetched"),
        (
            (
                entry["name"],
                str(entry["image_size"]),
                entry["dataset"] or "none",
                entry["size"] or "-",
                entry["sha256"] or "-",
                entry["licence"],
                entry["gated"] or "-",
                entry["path"] or "-",
            )
            for entry in found
        ),
    )


def _describe_bundled(name: str, folder: "Path") -> dict[str, Any]:
    """Description of a bundled model, with the keys of a published checkpoint."""
    from vitlab.weights.bundle import WEIGHTS, read_bundle_config
    from vitlab.weights.resolve import data_of, short_name

    stored = read_bundle_config(folder)
    return {
        "name": name,
        "short_name": short_name(name),
        "url": None,
        "size": f"{(folder / WEIGHTS).stat().st_size / 2**20:.3f} MiB",
        "sha256": None,
        "licence": stored["provenance"].get("licence") or "-",
        "dataset": data_of(name),
        "model": name.partition(".")[0],
        "preprocessing": stored["preprocessing"],
        "image_size": stored["preprocessing"]["size"][0],
        "gated": "no",
        "path": str(folder),
        "metrics": stored["metrics"],
    }


def _describe_hub(model: "HubModel") -> dict[str, Any]:
    """Description of a repository on the hub, with the keys of a published checkpoint."""
    from vitlab.config import to_dict

    unknown = dict.fromkeys(("size", "sha256", "preprocessing", "path"))
    return {**to_dict(model), **unknown, "name": model.name, "url": model.url}


def _describe(checkpoint: "Checkpoint") -> dict[str, Any]:
    from vitlab.config import to_dict
    from vitlab.weights.fetch import find, read_record

    path = find(checkpoint)
    return {
        **to_dict(checkpoint),
        "model": checkpoint.model,
        "preprocessing": checkpoint.preprocessing.to_json(),
        "image_size": checkpoint.preprocessing.size[0],
        "gated": "no",
        "path": None if path is None else str(path),
        "pinned": None if path is None else read_record(path),
    }


@weights.command()
def fetch(
    name: Annotated[
        str,
        typer.Argument(
            help="A name, as `vitlab weights list` has it.", autocompletion=complete_weights
        ),
    ],
    json: Json = False,
) -> None:
    """Download a checkpoint once and verify it as far as its publisher allows."""
    from vitlab.weights.fetch import fetch as get
    from vitlab.weights.resolve import HUB, bundled_name, checkpoint

    if bundled_name(name) is not None:
        raise WeightsError(f"{name} is part of the package: nothing to fetch; use it by its name")
    if name.startswith(HUB):
        raise WeightsError(f"{name} is on the hub; valid: vitlab pull {name}")
    wanted = checkpoint(name)
    with download_progress(sys.stderr) as progress:
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
        print_line(f"{name} is in {fetched.path} ({human(size)}B, {wanted.licence})")
        print_line(_verified(wanted, fetched.sha256))
    else:
        print_line(f"{name} is already in {fetched.path}")


def _verified(checkpoint: "Checkpoint", digest: str) -> str:
    if checkpoint.sha256 is None:
        return f"no checksum is published: pinned to sha256 {digest}"
    if len(checkpoint.sha256) == len(digest):
        return f"sha256 {digest}, as published"
    return f"sha256 {digest}, which begins as published ({checkpoint.sha256})"

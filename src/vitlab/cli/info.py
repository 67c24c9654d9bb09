"""`vitlab info`: what a weight file says about itself."""

from dataclasses import MISSING, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vitlab.cli.options import Changes, Json, loading
from vitlab.cli.output import human, print_json, print_pairs
from vitlab.config import to_dict

if TYPE_CHECKING:
    from vitlab.models.config import ViTConfig
    from vitlab.models.vit import VisionTransformer


def info(
    path: Annotated[
        Path, typer.Argument(metavar="PATH|NAME", help="A weight file, or fetched weights.")
    ],
    changes: Changes = None,
    json: Json = False,
) -> None:
    """Show the format of a weight file, its model, preprocessing and labels."""
    from vitlab import load_weights

    model = load_weights(path, **loading(changes))
    if json:
        print_json(_facts(model))
    else:
        print_pairs(_lines(model))


def _facts(model: "VisionTransformer") -> dict[str, Any]:
    source = model.source
    return {
        "path": str(source.path),
        "name": source.name,
        "licence": source.licence,
        "format": source.format,
        "parameters": sum(p.numel() for p in model.parameters()),
        "model": to_dict(model.config),
        "preprocessing": None if source.preprocessing is None else to_dict(source.preprocessing),
        "labels": None if source.labels is None else list(source.labels),
        "zero_head": source.zero_head,
        "assumed": list(source.assumed),
        "ignored": list(source.ignored),
    }


def _lines(model: "VisionTransformer") -> list[tuple[str, str]]:
    facts = _facts(model)
    labels = facts["labels"]
    prepared = facts["preprocessing"] or {}
    return [
        ("path", facts["path"]),
        *((key, facts[key]) for key in ("name", "licence") if facts[key]),
        ("format", facts["format"]),
        ("parameters", human(facts["parameters"])),
        ("model", _unusual(model.config)),
        ("preprocessing", " ".join(f"{k}={v}" for k, v in prepared.items()) or "unknown"),
        ("labels", f"{len(labels)}: {_first(labels)}" if labels else "unknown"),
        ("head", "all zeros: not trained" if facts["zero_head"] else _head(model.config)),
        *(("assumed", note) for note in facts["assumed"]),
        *(("left out", name) for name in facts["ignored"]),
    ]


def _first(labels: list[str], count: int = 3) -> str:
    return ", ".join([*labels[:count], *(["..."] if len(labels) > count else [])])


def _head(config: "ViTConfig") -> str:
    return f"{config.classes} classes" if config.classes else "none"


def _unusual(config: "ViTConfig") -> str:
    """The fields without a default, and those that differ from it."""
    shown = (
        (field.name, getattr(config, field.name))
        for field in fields(config)
        if field.default is MISSING or getattr(config, field.name) != field.default
    )
    return " ".join(f"{name}={value}" for name, value in shown)

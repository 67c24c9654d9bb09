"""`vitlab models`: every name, with what it costs."""

from collections.abc import Iterable
from fnmatch import fnmatchcase
from typing import Annotated

import typer

from vitlab.cli.options import Json
from vitlab.cli.output import human, print_json, print_line, print_table
from vitlab.errors import UnknownName

Pattern = Annotated[
    str, typer.Argument(help="Part of a name, or a glob such as 'vit_*16'; all names without it.")
]


def models(pattern: Pattern = "", json: Json = False) -> None:
    """List models with their parameters and the cost of one image (1 MAC = 2 FLOPs)."""
    from vitlab.models.cost import cost
    from vitlab.models.variants import variants
    from vitlab.weights.bundled import bundled_models, short_name

    costs = {name: cost(name) for name in matching(pattern, variants())}
    if json:
        print_json(
            [
                {
                    "name": name,
                    "parameters": found.parameters,
                    "flops": found.flops,
                    "macs": found.macs,
                    "tokens": found.tokens,
                }
                for name, found in costs.items()
            ]
        )
        return
    print_table(
        ("name", "parameters", "FLOPs", "MACs", "tokens"),
        (
            (
                name,
                human(found.parameters),
                human(found.flops),
                human(found.macs),
                "-" if found.tokens is None else str(found.tokens),
            )
            for name, found in costs.items()
        ),
    )
    inside = [name for name in bundled_models() if name.partition(".")[0] in costs]
    if inside:
        told = ", ".join(f"{short_name(name)} ({name})" for name in inside)
        print_line()
        print_line(f"trained, inside the package: {told}; others: vitlab weights list")


def matching(pattern: str, names: Iterable[str], *, kind: str = "model") -> list[str]:
    """The names that a glob fits, or that contain a plain word; none is an error."""
    known = list(names)
    glob = pattern if any(sign in pattern for sign in "*?[") else f"*{pattern}*"
    found = [name for name in known if fnmatchcase(name, glob)]
    if not found:
        raise UnknownName(kind, pattern, known)
    return found

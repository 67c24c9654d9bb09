"""`vitlab models`: names, parameters and cost of all models."""

from collections.abc import Iterable
from fnmatch import fnmatchcase

from vitlab.cli.options import Json, Pattern
from vitlab.cli.output import human, print_json, print_line, print_table
from vitlab.errors import UnknownName


def models(pattern: Pattern = "", json: Json = False) -> None:
    """List models with their parameters and the cost of one image (1 MAC = 2 FLOPs)."""
    from vitlab.models.cost import cost
    from vitlab.models.variants import variants
    from vitlab.weights.resolve import bundled_models, short_name

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
        names = ", ".join(f"{short_name(name)} ({name})" for name in inside)
        print_line()
        print_line(f"trained, inside the package: {names}; others: vitlab weights list")


def matching(pattern: str, names: Iterable[str], *, kind: str = "model") -> list[str]:
    """Names that match a glob or contain a plain word; raises if there are none."""
    known = list(names)
    glob = pattern if any(sign in pattern for sign in "*?[") else f"*{pattern}*"
    found = [name for name in known if fnmatchcase(name, glob)]
    if not found:
        raise UnknownName(kind, pattern, known)
    return found

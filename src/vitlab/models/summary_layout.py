"""A summary in torchinfo's layout, with our multiply-adds beside those that torchinfo counts."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

from vitlab.models.summary import Row, Summary

SHAPE, NUMBER = 25, 20
"""Characters of the columns for shapes and for parameters."""
UNITS = ((10**12, "T"), (10**9, "G"), (10**6, "M"))


def torchinfo_layout(found: Summary) -> str:
    """Text in torchinfo's layout; parameters of a module itself stand in the module's own row."""
    rows = _modules(found.rows)
    names = [f"{branch}{_title(row, number)}" for branch, row, number in _numbered(rows)]
    width = max(48, *map(len, names)) + 3
    double = "=" * (width + SHAPE + NUMBER)
    head = f"{'Layer (type:depth-idx)':<{width}}{'Output Shape':<{SHAPE}}Param #"
    body = [
        f"{name:<{width}}{_shape(row):<{SHAPE}}{_count(row.parameters)}"
        for name, row in zip(names, rows, strict=True)
    ]
    parts = [[head], body, list(_counts(found)), list(_sizes(found)), [_reason(found)]]
    return "\n".join([double, *(line for part in parts for line in (*part, double))])


def _modules(rows: tuple[Row, ...]) -> list[Row]:
    """Rows of modules; those of single parameters are added to the module that holds them."""
    held: Counter[str] = Counter()
    for row in rows:
        if row.type == "Parameter":
            held[row.path.rpartition(".")[0]] += row.parameters
    return [
        replace(row, parameters=row.parameters + held[row.path])
        for row in rows
        if row.type != "Parameter"
    ]


def _numbered(rows: list[Row]) -> Iterator[tuple[str, Row, int]]:
    """Branch, row, and its number among the rows of its depth, from 1."""
    seen: Counter[int] = Counter()
    for row in rows:
        seen[row.depth] += 1
        branch = "" if not row.depth else "├─" if row.depth == 1 else "│    " * (row.depth - 1)
        yield branch + ("└─" if row.depth > 1 else ""), row, seen[row.depth]


def _title(row: Row, number: int) -> str:
    return f"{row.type}: {row.depth}-{number}" if row.depth else row.type


def _shape(row: Row) -> str:
    return "--" if row.output_shape is None else str(list(row.output_shape))


def _count(number: int) -> str:
    return f"{number:,}" if number else "--"


def _counts(found: Summary) -> Iterator[str]:
    yield f"Total params: {found.parameters:,}"
    yield f"Trainable params: {found.trainable:,}"
    yield f"Non-trainable params: {found.parameters - found.trainable:,}"
    yield f"Total mult-adds, as torchinfo counts them: {_short(found.torchinfo_macs)}"
    yield f"Total mult-adds, computed: {_short(found.macs)}"


def _sizes(found: Summary) -> Iterator[str]:
    sizes = {
        "Input size": found.input_bytes,
        "Forward/backward pass size": found.output_bytes,
        "Params size": found.parameter_bytes,
    }
    for name, size in (sizes | {"Estimated Total Size": sum(sizes.values())}).items():
        yield f"{name} (MB): {size / 1e6:,.2f}"


def _reason(found: Summary) -> str:
    return (
        f"torchinfo's {_short(found.torchinfo_macs)} is not the cost: it counts the weights of a "
        "linear layer once\nper image, not per token, and leaves out the products of attention."
    )


def _short(number: int) -> str:
    """Number with a unit: `18.92 M`."""
    size, unit = next((pair for pair in UNITS if number >= pair[0]), UNITS[-1])
    return f"{number / size:,.2f} {unit}"

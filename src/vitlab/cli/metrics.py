"""Metrics of an evaluation as commands print them."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from vitlab.cli.output import print_line, print_table

if TYPE_CHECKING:
    from vitlab.objectives.objective import Metrics

SHOWN = 20
"""Rows of the table of classes; of more, the weakest are shown."""


def pretraining_headline(split: str, metrics: Mapping[str, float]) -> str:
    """One line: loss and accuracy on masked patches."""
    found = {name.removeprefix(f"{split}_"): value for name, value in metrics.items()}
    score = f"R2 {found['r2']:.3f}" if "r2" in found else f"{found['colours_right']:.1%} right"
    images = f"{found['images']:,} images"
    return f"{split} loss {found['loss']:.3f}, {score} of masked patches ({images})"


def print_details(found: "Metrics") -> None:
    """Print the table of classes or labels, if there is one."""
    from vitlab.objectives.objective import objective_of

    table = found.table
    if table is None:
        return
    rows = table.rows
    if len(rows) > SHOWN:
        order = sorted(range(len(rows)), key=lambda row: table.strength[row])
        rows = tuple(rows[row] for row in order[:SHOWN])
    print_table(table.columns, rows)
    if len(rows) < len(table.rows):
        outputs = objective_of(found.task).outputs
        print_line(f"the {len(rows)} weakest of {len(table.rows):,} {outputs}; --json has all")

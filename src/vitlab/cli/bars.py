"""The likeliest classes of one image as bars, for a terminal."""

from collections.abc import Sequence

from rich.bar import Bar
from rich.table import Table

from vitlab.cli.output import EscapingConsole, visible_cell
from vitlab.visible_text import visible

WIDEST = 40
"""Columns of a bar for certainty."""


def print_bars(
    title: str, top: Sequence[tuple[str, float]], console: EscapingConsole | None = None
) -> None:
    """A line for each class: its name, a bar, its probability; every bar of the same scale."""
    console = console or EscapingConsole()
    names = max(len(visible(label)) for label, _ in top)
    width = max(8, min(WIDEST, console.width - min(names, console.width // 2) - 10))
    grid = Table.grid(padding=(0, 1))
    grid.add_column(overflow="ellipsis", no_wrap=True, max_width=console.width // 2)
    grid.add_column(width=width)
    grid.add_column(justify="right")
    for number, (label, probability) in enumerate(top):
        style = "bold" if not number else ""
        bar = Bar(1.0, 0.0, probability, width=width, color="green" if not number else "cyan")
        grid.add_row(visible_cell(label, style), bar, visible_cell(f"{probability:.1%}", style))
    console.print(visible_cell(title, "dim"), soft_wrap=True)
    console.print(grid)

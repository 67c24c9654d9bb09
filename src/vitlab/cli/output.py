"""What commands print: numbers in human units, tables that survive a pipe, JSON."""

import json
from collections.abc import Iterable, Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

WIDE = 10_000
"""Columns of every terminal: nothing in a table is wrapped or cut."""


def human(number: float) -> str:
    """Three digits and a unit: `86.6 M`."""
    for unit in ("", " k", " M", " G", " T"):
        if abs(number) < 999.5:
            return f"{number:.3g}{unit}"
        number /= 1000
    return f"{number:.3g} P"


def print_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print text columns; every column but the first is right-aligned."""
    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for i, column in enumerate(columns):
        table.add_column(column, justify="right" if i else "left", no_wrap=True)
    for row in rows:
        table.add_row(*map(Text, row))
    Console(width=WIDE).print(table, soft_wrap=True)


def print_pairs(pairs: Iterable[tuple[str, str]]) -> None:
    """Print `key  value` lines, keys aligned."""
    shown = list(pairs)
    width = max(len(key) for key, _ in shown)
    for key, value in shown:
        print(f"{key:<{width}}  {value}")


def print_json(data: Any) -> None:
    """Print exact values for another program."""
    print(json.dumps(data, indent=2))

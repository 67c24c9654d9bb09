"""Files of predictions as other programs see them."""

import csv
import json
from pathlib import Path
from typing import Any


def read(output: Path) -> list[dict[str, Any]]:
    """The records of a file, with the columns in its order; what is missing is None."""
    return {".csv": _csv, ".jsonl": _jsonl, ".parquet": _parquet}[output.suffix](output)


def _jsonl(output: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in output.read_text().splitlines()]


def _csv(output: Path) -> list[dict[str, Any]]:
    with output.open(newline="") as file:
        rows: list[dict[str, Any]] = [
            {name: text or None for name, text in row.items()} for row in csv.DictReader(file)
        ]
    for row in rows:
        row["top"] = json.loads(row["top"] or "[]")
        for name in {"probability", "value"} & row.keys():
            row[name] = json.loads(row[name] or "null")
    return rows


def _parquet(output: Path) -> list[dict[str, Any]]:
    import pyarrow.parquet

    rows: list[dict[str, Any]] = pyarrow.parquet.read_table(output).to_pylist()
    for row in rows:
        row["top"] = [list(score.values()) for score in row["top"]]
    return rows

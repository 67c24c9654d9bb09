"""The benchmark of merged tokens: what it keeps, and what it tells."""

import importlib
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from vitlab.config import to_dict
from vitlab.jobs.benchmark.result import Benchmark, Cell, Entry
from vitlab.timing.referee import MACHINE, Memory, Turn

sys.path.append(str(Path(__file__).resolve().parents[1] / "benchmarks"))
merge_tokens: Any = importlib.import_module("merge_tokens")

NUMBERS = (0, 8)
ENTRY = Entry(
    name="",
    model="",
    runs="torch",
    merge_tokens=0,
    reference="",
    original="",
    exact=True,
    parameters=1,
    flops=1,
    bytes=4,
    fresh=False,
)


def time_calls() -> Cell:
    """Torch takes 4 and 2 seconds for a call, files 3 and 1."""
    times = {("torch", 0): 4.0, ("torch", 8): 2.0, ("onnxruntime", 0): 3.0, ("onnxruntime", 8): 1.0}
    entries = tuple(
        replace(ENTRY, name=f"{runs} {r}", model=f"m{r}", runs=runs, merge_tokens=r)
        for runs, r in times
    )
    seconds = {f"{runs} {r}": value for (runs, r), value in times.items()} | {MACHINE: 1.0}
    turns = {name: Turn(seconds=s, asleep=0.0, each=(s,)) for name, s in seconds.items()}
    return Cell(
        batch=8,
        entries=entries,
        rounds=[turns] * 6,
        memory={entry.name: Memory(ever=1, running=1) for entry in entries},
        differences={entry.name: 0.0 for entry in entries},
    )


def options(out: Path, *words: str) -> Any:
    return merge_tokens.parse(["--out", str(out), "--images", "4", "--numbers", "0", "8", *words])


def test_answers_and_contests_are_kept(tmp_path: Path) -> None:
    asked = options(tmp_path)
    key = {"engine": "torch", "number": 8, "images": 4}
    line = {"key": key, "answers": [1, 2, 3, 4], "truth": [1, 2, 3, 5]}
    merge_tokens.append(tmp_path / "answers.jsonl", line)
    merge_tokens.append(tmp_path / "answers.jsonl", line | {"key": key | {"images": 5}})
    truth, found = merge_tokens.known_answers(asked)
    assert truth.tolist() == [1, 2, 3, 5]
    assert {pair: classes.tolist() for pair, classes in found.items()} == {
        ("torch", 8): [1, 2, 3, 4]
    }
    race = {"key": merge_tokens.race_key(8, asked), "cell": to_dict(time_calls())}
    merge_tokens.append(tmp_path / "speed.jsonl", race)
    (cell,) = merge_tokens.known_cells(asked).values()
    assert {entry.model for entry in cell.entries} == {"DeiT-Ti", "DeiT-Ti exported"}
    assert not merge_tokens.known_cells(options(tmp_path, "--rounds", "2"))


def test_the_table_pairs_photos_and_rounds() -> None:
    truth = np.arange(4)
    found = {(engine, 0): truth.copy() for engine in merge_tokens.ENGINES}
    found |= {(engine, 8): truth.copy() for engine in merge_tokens.ENGINES}
    found["torch", 8][3] = 0
    whole = Benchmark(
        cells=(merge_tokens.named(time_calls()),),
        machine={},
        threads=1,
        accuracies=tuple(merge_tokens.judged(truth, found)),
    )
    lines = merge_tokens.table(whole, found).splitlines()[4:]
    rows = [[part.strip() for part in line.strip("|").split("|")] for line in lines]
    assert rows[0][:5] == ["torch", "0", "2.0", "1", "100.00%"]
    assert rows[1][:5] == ["torch", "8", "4.0", "2.000 (2.000 to 2.000)", "75.00%"]
    assert rows[1][5].startswith("-25.00 (-75.00 to ")
    assert rows[1][6:] == ["75.00%", "100.00%"]
    assert rows[3][:5] == ["onnxruntime", "8", "8.0", "3.000 (3.000 to 3.000)", "100.00%"]
    assert rows[3][6:] == ["100.00%", "75.00%"]


def test_answers_are_classes_of_all_photos() -> None:
    images = np.arange(19 * 3, dtype=np.float32).reshape(19, 3)
    images[7] = (9, 8, 7)
    assert merge_tokens.answer(lambda part: part, images) == [2] * 7 + [0] + [2] * 11


def test_zero_comes_first(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        merge_tokens.parse(["--numbers", "8", "0"])
    assert "0 first" in capsys.readouterr().err

"""The shape of the package: what may import what, and that no setting is a lie."""

import ast
import importlib
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

import vitlab
from tracer import SOURCE as ROOT
from tracer import files_entered
from vitlab.data.augment.config import AugmentConfig
from vitlab.models.config import ViTConfig
from vitlab.models.variants import ResNetConfig, TutorialCNNConfig
from vitlab.training.config import (
    MaeConfig,
    MaskedPatchConfig,
    OptimizerConfig,
    ScheduleConfig,
    TrainConfig,
)

SOURCE = Path(__file__).resolve().parents[1] / "src" / "vitlab"
FILES = sorted(SOURCE.rglob("*.py"))

# A row imports only from rows below it; neighbours in a row do not import each other.
ROWS = (
    ("__main__",),
    ("cli",),
    (
        "experiments",
        "serve",
        "sklearn",
    ),
    ("jobs",),
    ("report",),
    ("classify",),
    (
        "explain",
        "exporting",
    ),
    ("training",),
    ("evaluation",),
    (
        "weights",
        "data",
    ),
    ("objectives",),
    ("models",),
    ("nn",),
    ("images",),
    ("timing",),
    (
        "machine",
        "io",
    ),
    (
        "config",
        "registry",
        "task",
        "wordnet",
    ),
    ("errors",),
)
ROW_OF = {part: number for number, row in enumerate(ROWS) for part in row}


def module_name(file: Path) -> str:
    parts = file.relative_to(SOURCE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def part(name: str) -> str:
    """`vitlab.nn.attention` belongs to `nn`."""
    return name.split(".")[1]


def imported(file: Path) -> Iterator[str]:
    """Every vitlab module that a file imports, anywhere in it; a public name is its home."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            yield from (a.name for a in node.names if a.name.split(".")[0] == "vitlab")
        elif isinstance(node, ast.ImportFrom) and node.module == "vitlab":
            names = (a.name for a in node.names if a.name != "__version__")
            yield from (vitlab._HOMES.get(name, f"vitlab.{name}") for name in names)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("vitlab."):
            yield str(node.module)


def test_every_part_has_a_row() -> None:
    parts = {part(module_name(file)) for file in FILES if file.parent != SOURCE}
    parts |= {file.stem for file in SOURCE.glob("*.py") if file.stem != "__init__"}
    assert parts <= set(ROW_OF)


def test_the_architecture_page_shows_every_row() -> None:
    page = (SOURCE.parents[1] / "docs" / "architecture.md").read_text()
    parts = {path.parent.name for path in SOURCE.glob("*/__init__.py")}
    parts |= {path.stem for path in SOURCE.glob("*.py") if path.stem != "__init__"}
    expected = [kept for row in ROWS if (kept := set(row) & parts)]
    cells = re.findall(r"^\| (`\w+`(?:, `\w+`)*) \|", page, flags=re.MULTILINE)
    assert [set(re.findall(r"\w+", cell)) for cell in cells] == expected
    diagram = page.split("```mermaid\n")[1].split("```")[0]
    drawn = re.findall(r'\["(.*?)"\]', diagram)
    assert [set(re.split(r" · |<br/>", label)) & parts for label in drawn] == expected


@pytest.mark.parametrize("file", FILES, ids=module_name)
def test_imports_point_down(file: Path) -> None:
    if file == SOURCE / "__init__.py":
        return
    own = part(module_name(file))
    wrong = [
        name
        for name in imported(file)
        if name == "vitlab" or (part(name) != own and ROW_OF[part(name)] <= ROW_OF[own])
    ]
    assert not wrong, f"{own} imports {wrong}"


@pytest.mark.parametrize("file", FILES, ids=module_name)
def test_imports_are_absolute(file: Path) -> None:
    nodes = ast.walk(ast.parse(file.read_text()))
    assert not [n.lineno for n in nodes if isinstance(n, ast.ImportFrom) and n.level]


@pytest.mark.parametrize("file", FILES, ids=module_name)
def test_every_module_imports(file: Path) -> None:
    assert importlib.import_module(module_name(file)).__name__ == module_name(file)


def test_no_module_is_a_drawer() -> None:
    drawers = {"utils", "util", "helpers", "common", "misc"}
    assert not [
        file for file in FILES if drawers & set(file.relative_to(SOURCE).with_suffix("").parts)
    ]


MOST_FILES, MOST_LINES = 30, 500
"""Files of a package at one level, and lines of a file."""


@pytest.mark.parametrize("folder", sorted({file.parent for file in FILES}), ids=lambda f: f.name)
def test_a_package_has_few_files(folder: Path) -> None:
    assert len(list(folder.glob("*.py"))) <= MOST_FILES


def test_files_are_short() -> None:
    lines = {module_name(file): len(file.read_text().splitlines()) for file in FILES}
    assert not {name: count for name, count in lines.items() if count > MOST_LINES}


def reads(config: type[Any], owners: tuple[str, ...], folders: tuple[str, ...]) -> set[str]:
    """Attributes read off one of the owners, and off `self` in the class's properties."""
    found = set()
    for file in FILES:
        if folders and file.relative_to(SOURCE).parts[0] not in folders:
            continue
        tree = ast.parse(file.read_text())
        checks = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef) and _checks(n.name)]
        skipped = {id(inner) for check in checks for inner in ast.walk(check)}
        classes = [n for n in ast.walk(tree) if isinstance(n, ast.ClassDef)]
        own = [n for n in classes if n.name == config.__name__]
        inside = {id(inner) for n in own for inner in ast.walk(n)}
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and id(node) not in skipped:
                owner = node.value
                name = getattr(owner, "id", None) or getattr(owner, "attr", None)
                if name in owners or (name == "self" and id(node) in inside):
                    found.add(node.attr)
    return found


def _checks(function: str) -> bool:
    """Validation does not count as reading: it changes nothing in a model."""
    return function == "__post_init__" or function.startswith("_check_")


@pytest.mark.parametrize("config", [ViTConfig, ResNetConfig, TutorialCNNConfig])
def test_every_field_of_a_model_is_read(config: type[Any]) -> None:
    assert not {field.name for field in fields(config)} - reads(config, ("config", "expected"), ())


@pytest.mark.parametrize(
    ("config", "owners", "folders"),
    [
        (TrainConfig, ("config", "train"), ("training", "jobs")),
        (OptimizerConfig, ("config", "optimizer"), ("training",)),
        (ScheduleConfig, ("config", "schedule"), ("training",)),
        (AugmentConfig, ("config", "augment"), ("data",)),
        (MaskedPatchConfig, ("masked_patch",), ("training",)),
        (MaeConfig, ("mae",), ("training",)),
    ],
)
def test_every_field_of_a_run_is_read(
    config: type[Any], owners: tuple[str, ...], folders: tuple[str, ...]
) -> None:
    assert not {field.name for field in fields(config)} - reads(config, owners, folders)


# How many files a reader must open to follow one command; raise a number only with a reason.
FILES_ENTERED = {
    "predict cifar10 a.jpg --engine torch": 40,
    "explain cifar10 a.jpg --json": 46,
    "train --data digits --steps 2 --out run": 80,
    "finetune --from cifar10 --data digits --steps 2 --out run": 95,
}
IMPORTED_BY_EXPLAIN = 110
EXPLAIN_JOB, IMPORTED_BY_EXPLAIN_JOB = "vitlab.jobs.explain", 65
SLACK = 1.1


@pytest.mark.parametrize("command", FILES_ENTERED)
def test_a_command_enters_few_files(command: str, tmp_path: Path) -> None:
    Image.new("RGB", (40, 36), (200, 120, 40)).save(tmp_path / "a.jpg")
    entered, imported = files_entered(command.split(), tmp_path)
    assert 1 < len(entered) <= FILES_ENTERED[command] * SLACK
    if command.startswith("explain"):
        assert len(entered) <= len(imported) <= IMPORTED_BY_EXPLAIN * SLACK


def test_the_explain_job_imports_few_files() -> None:
    code = f"import json, {EXPLAIN_JOB}, tracer; print(json.dumps(tracer.imported_files()))"
    path = f"{ROOT}:{Path(__file__).parent}"
    printed = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert 1 < len(json.loads(printed)) <= IMPORTED_BY_EXPLAIN_JOB * SLACK

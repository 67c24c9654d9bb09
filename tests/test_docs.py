"""Pages about the code name files and functions that exist."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src" / "vitlab"
ARCHITECTURE = ROOT / "docs" / "architecture.md"
NAMED = re.compile(r"`([\w/.-]+\.py)(?::([A-Za-z_][\w.]*))?`")
"""A file in backticks, and what it defines: `nn/mlp.py:Mlp.forward`."""


def file_named(path: str) -> Path:
    """A file of the package, or of the project."""
    return SOURCE / path if (SOURCE / path).exists() else ROOT / path


def defined_in(body: list[ast.stmt], prefix: str = "") -> set[str]:
    """Names of functions, classes, constants, methods and fields."""
    found = set()
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(prefix + node.name)
        if isinstance(node, ast.ClassDef):
            found |= defined_in(node.body, f"{prefix}{node.name}.")
        targets = node.targets if isinstance(node, ast.Assign) else []
        targets = [node.target] if isinstance(node, ast.AnnAssign) else targets
        found |= {prefix + target.id for target in targets if isinstance(target, ast.Name)}
    return found


@pytest.mark.parametrize("page", [ARCHITECTURE], ids=lambda page: page.name)
def test_every_file_and_name_on_a_page_exists(page: Path) -> None:
    found = NAMED.findall(page.read_text())
    assert found
    missing = [path for path, _ in found if not file_named(path).is_file()]
    assert not missing
    unknown = [
        f"{path}:{name}"
        for path, name in found
        if name and name not in defined_in(ast.parse(file_named(path).read_text()).body)
    ]
    assert not unknown

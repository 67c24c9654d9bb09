"""What the pages say of the project: files, functions, links and test data that exist."""

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from vitlab.weights import imagenet

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src" / "vitlab"
ABOUT_CODE = ("docs/architecture.md", "CONTRIBUTING.md")
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])
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


@pytest.mark.parametrize("page", ABOUT_CODE)
def test_every_file_and_name_on_a_page_exists(page: str) -> None:
    found = NAMED.findall((ROOT / page).read_text())
    assert found
    missing = [path for path, _ in found if not file_named(path).is_file()]
    assert not missing
    unknown = [
        f"{path}:{name}"
        for path, name in found
        if name and name not in defined_in(ast.parse(file_named(path).read_text()).body)
    ]
    assert not unknown


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([^)\s#:]*)(?:#([^)\s]+))?\)", page.read_text())
    missing = [path for path, _ in links if not (page.parent / path).exists()]
    assert not missing
    anchors = [(page.parent / path if path else page, anchor) for path, anchor in links if anchor]
    assert not [(file, anchor) for file, anchor in anchors if anchor not in headings(file)]


def headings(page: Path) -> set[str]:
    """The anchors of a page's headings."""
    found = re.findall(r"^#+ (.+)$", page.read_text(), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading).strip().lower().replace(" ", "-") for heading in found}


def run_test(data: Path) -> "subprocess.CompletedProcess[str]":
    """Run one test that needs optional data."""
    return subprocess.run(
        [sys.executable, "-m", "pytest", "tests/weights/test_imagenet.py", "-k", "wordnets", "-q"],
        cwd=ROOT,
        env=os.environ | {"VITLAB_TEST_DATA": str(data)},
        capture_output=True,
        text=True,
    )


def test_optional_test_data_is_found_by_its_variable(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    names = zip(imagenet.wordnet_ids(), imagenet.labels(), strict=True)
    lines = [f"{number} {name.partition(' (')[0]}" for number, name in names]
    (tmp_path / "data" / "imagenet1k_wnids.txt").write_text("\n".join(lines))
    assert "1 passed" in run_test(tmp_path).stdout


def test_a_wrong_folder_of_test_data_is_an_error(tmp_path: Path) -> None:
    done = run_test(tmp_path / "nowhere")
    assert done.returncode == 1
    assert "nowhere: no such folder" in done.stdout

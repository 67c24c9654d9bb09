"""What the pages say of the project: files, functions, links and test data that exist."""

import ast
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path, PurePath
from typing import Any

import pytest
from typer.main import get_command

from optional_data import optional_data
from vitlab.cli.main import app
from vitlab.weights.labels import imagenet_labels, wordnet_ids

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src" / "vitlab"
ABOUT_CODE = ("docs/architecture.md", "CONTRIBUTING.md")
DOCS = ROOT / "docs"
PAGES = sorted([*ROOT.glob("*.md"), *DOCS.rglob("*.md")])
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


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
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


def test_images_have_a_description() -> None:
    bare = [page for page in PAGES if re.search(r"!\[\s*\]\(", page.read_text())]
    assert not bare


def pages_in_contents() -> list[str]:
    """Entries of the toctrees of docs/index.md; a pattern adds the pages that are left."""
    blocks = re.findall(r"^```\{toctree\}\n(.*?)^```", (DOCS / "index.md").read_text(), re.M | re.S)
    lines = [line for block in blocks for line in block.splitlines() if line[:1] not in ("", ":")]
    pages = [
        page.relative_to(DOCS).with_suffix("").as_posix() for page in sorted(DOCS.rglob("*.md"))
    ]
    found: list[str] = []
    for line in lines:
        if "*" in line:
            found += [page for page in pages if page not in found and PurePath(page).match(line)]
        else:
            found.append(line)
    return found


def test_the_contents_of_the_site_name_every_page_once() -> None:
    pages = {page.relative_to(DOCS).with_suffix("").as_posix() for page in DOCS.rglob("*.md")}
    listed = pages_in_contents()
    assert len(listed) == len(set(listed))
    assert not pages - {"index"} - set(listed), "name these pages in a toctree of docs/index.md"
    assert not set(listed) - pages


def shell_lines(page: Path) -> Iterator[str]:
    """Lines of the blocks that show a terminal; a line that ends with a backslash goes on."""
    blocks = re.findall(r"^```([^\n]*)\n(.*?)^```$", page.read_text(), re.M | re.S)
    for language, block in blocks:
        if language in ("", "console"):
            yield from block.replace("\\\n", " ").splitlines()


def find_command(words: list[str]) -> tuple[Any, list[str]]:
    """The command that words begin with, and the words after its name."""
    command: Any = get_command(app)
    while hasattr(command, "commands") and words:
        command, words = command.commands[words[0]], words[1:]
    return command, words


def test_commands_in_blocks_have_valid_arguments() -> None:
    found = [
        (page.name, match[1])
        for page in PAGES
        for line in shell_lines(page)
        if (match := re.search(r"(?:^|[|$] ?|=\d+ )vitlab (.+)", line))
    ]
    assert len(found) > 60
    for page, line in found:
        plain = line.replace("[", "").replace("]", "").partition(" > ")[0]  # a synopsis; a file
        command, words = find_command(shlex.split(plain, comments=True))
        try:
            command.make_context(command.name, words)
        except Exception as error:  # a usage error of Typer, whose class is not public
            pytest.fail(f"{page}: vitlab {line}: {error}")


def test_options_in_the_text_exist() -> None:
    found = [
        (page.name, text)
        for page in PAGES
        if page.name != "CHANGELOG.md"
        for text in re.findall(r"`vitlab ([a-z][^`]* --[^`]*)`", page.read_text())
    ]
    assert len(found) > 20
    for page, text in found:
        command, words = find_command(text.split())
        options = {name for each in command.params for name in (*each.opts, *each.secondary_opts)}
        used = {word.partition("=")[0].strip(",.;") for word in words if word.startswith("--")}
        assert used <= options | {"--help"}, f"{page}: vitlab {text}"


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
    names = zip(wordnet_ids(), imagenet_labels(), strict=True)
    lines = [f"{number} {name.partition(' (')[0]}" for number, name in names]
    (tmp_path / "data" / "imagenet1k_wnids.txt").write_text("\n".join(lines))
    assert "1 passed" in run_test(tmp_path).stdout


def test_a_wrong_folder_of_test_data_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VITLAB_TEST_DATA", str(tmp_path / "nowhere"))
    with pytest.raises(pytest.fail.Exception, match="nowhere: no such folder"):
        optional_data()


def test_without_test_data_a_test_is_skipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("VITLAB_TEST_DATA", raising=False)
    monkeypatch.setattr("optional_data.ROOT", tmp_path / "project")
    with pytest.raises(pytest.skip.Exception, match="VITLAB_TEST_DATA is not set"):
        optional_data()

"""The site: generated pages name everything public; the built site has no dead link (slow)."""

import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest
import typer

import vitlab
from vitlab.cli.main import app

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"


@pytest.fixture(scope="module")
def pages() -> ModuleType:
    """The module that writes the generated pages."""
    spec = importlib.util.spec_from_file_location("site_pages", DOCS / "_site" / "site_pages.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def commands_in(command: Any, name: str) -> Iterator[tuple[str, Any]]:
    """Every command below this one, with its full name."""
    for word, inner in command.commands.items():
        yield f"{name} {word}", inner
        if hasattr(inner, "commands"):
            yield from commands_in(inner, f"{name} {word}")


def test_every_public_name_has_an_entry(pages: ModuleType) -> None:
    entries = re.findall(r"^\.\. (?:auto\w+|py:data):: vitlab\.(\w+)$", pages.python_page(), re.M)
    assert sorted(entries) == vitlab.__all__


def test_every_command_and_option_has_an_entry(pages: ModuleType) -> None:
    sections = dict(
        re.findall(r"^#+ (vitlab [^\n]+)\n(.*?)(?=^#|\Z)", pages.commands_page(), re.M | re.S)
    )
    commands = dict(commands_in(typer.main.get_command(app), "vitlab"))
    assert sorted(sections) == sorted(commands)
    for name, command in commands.items():
        entries = re.findall(r"^````\{option\} (.+)$", sections[name], re.M)
        shown = {word for entry in entries for word in re.split(r"[ ,]+", entry)}
        options = [each for each in command.params if each.param_type_name == "option"]
        assert len(entries) == len(command.params), name
        assert {opt for each in options for opt in each.opts} <= shown, name


def test_help_text_is_escaped_and_names_its_pages(pages: ModuleType) -> None:
    text = "A glob such as 'vit_*16' or `a_*`; <b>, [x]: docs/export.md has more."
    assert pages._prose(text) == (
        r"A glob such as 'vit\_\*16' or `a_*`; \<b\>, \[x\]: "
        "[docs/export.md](../export.md) has more."
    )


def test_the_gallery_has_every_figure_once(pages: ModuleType) -> None:
    shown = re.findall(r"^:::\{figure\} (.+)$", pages.gallery_page(DOCS), re.M)
    embedded = {
        (page.parent / path).relative_to(DOCS).as_posix()
        for page in DOCS.rglob("*.md")
        for path in re.findall(r"!\[[^\]]+\]\(([^)\s:]+)\)", page.read_text())
        if "zh" not in page.relative_to(DOCS).parts
    }
    assert len(shown) > 10
    assert sorted(shown) == sorted(embedded)


def words_of(page: Path) -> set[str]:
    """Words of a page in lower case, without code, links, names with digits or capitals inside."""
    text = re.sub(r"^```.*?^```", " ", page.read_text(), flags=re.M | re.S)
    text = re.sub(r"`[^`]*`|\]\([^)]*\)|<!--.*?-->|https?://\S+", " ", text, flags=re.S)
    found = re.findall(r"(?<![\w/.-])[A-Za-z][a-z]+(?![\w/]|\.\w)", text)
    return {word.lower() for word in found}


def test_words_of_a_page_are_its_prose(tmp_path: Path) -> None:
    page = tmp_path / "a.md"
    page.write_text("# Learnt\n\nA `cod` of [two](words.md), GELU.\n\n```\nblokc\n```\n")
    assert words_of(page) == {"learnt", "of", "two"}


@pytest.mark.slow
def test_words_are_spelled_as_in_the_dictionary() -> None:
    checker = pytest.importorskip("spellchecker", reason="`make docs` installs pyspellchecker")
    known = (DOCS / "_site" / "words.txt").read_text().split()
    assert known == sorted(set(known))
    pages = [*ROOT.glob("*.md"), *(page for page in DOCS.rglob("*.md") if "zh" not in page.parts)]
    words = {word: page.name for page in pages for word in words_of(page)}
    unknown = checker.SpellChecker(language="en").unknown(words) - set(known)
    assert not {word: words[word] for word in unknown}, "mistakes, or words for words.txt"


class Page(HTMLParser):
    """Anchors and references of a built page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.references: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name == "id":
                self.anchors.add(value or "")
            elif name in ("href", "src"):
                self.references.append(value or "")


def dead_links(site: Path) -> list[str]:
    """References of every page to files or anchors that are not in the site."""
    found = {path: Page(path.read_text()) for path in site.rglob("*.html")}
    dead = []
    for path, page in found.items():
        for reference in page.references:
            parts = urlsplit(reference)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            anchors = found[target].anchors if target in found else {""}
            if not target.exists() or unquote(parts.fragment) not in {"", *anchors}:
                dead.append(f"{path.relative_to(site)}: {reference}")
    return dead


def test_a_dead_link_is_found(tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text('<p id="x"><a href="b.html#y"></a><a href="c.html">')
    (tmp_path / "b.html").write_text('<a href="a.html#x"></a><a href="#z"></a><a href="https://c">')
    assert sorted(dead_links(tmp_path)) == ["a.html: b.html#y", "a.html: c.html", "b.html: #z"]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site; a warning is an error."""
    for tool in ("sphinx", "myst_nb", "furo", "sphinx_copybutton"):
        pytest.importorskip(tool, reason=f"no {tool}: `make docs` installs it")
    folder = tmp_path_factory.mktemp("site")
    before = os.times()
    done = subprocess.run(
        [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-E"]
        + ["-d", folder / "doctrees", DOCS, folder / "html"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    after = os.times()
    assert after.children_user - before.children_user < 60  # seconds of one core
    return folder / "html"


@pytest.mark.slow
def test_the_built_site_has_no_dead_link(site: Path) -> None:
    assert not dead_links(site)


@pytest.mark.slow
def test_the_built_site_needs_no_other_server(site: Path) -> None:
    for path in site.rglob("*.html"):
        loaded = re.findall(r"<(?:script|img|link)[^>]+(?:src|href)=\"([^\"]+)\"", path.read_text())
        assert not [address for address in loaded if urlsplit(address).netloc], path


@pytest.mark.slow
def test_shapes_languages_and_search_are_there(site: Path) -> None:
    reference = re.sub(r"<[^>]+>", "", (site / "reference" / "python.html").read_text())
    assert "images: Float[Tensor, 'B C H W']" in unescape(reference)
    assert 'lang="zh-CN"' in (site / "zh" / "learn" / "1-attention.html").read_text()
    assert 'lang="en"' in (site / "learn" / "1-attention.html").read_text()
    assert "theme-toggle" in (site / "index.html").read_text()  # dark mode
    index = (site / "searchindex.js").read_text()
    assert (
        r'"\u5fae\u8c03":' in index
    )  # two characters of Chinese, for which there is no partial match
    assert "README.html" in (site / "zh" / "index.html").read_text()
    lists = re.findall(r'caption-text">(\w+)<', (site / "zh" / "README.html").read_text())
    assert (lists[0], len(lists)) == ("中文", len(set(lists)))  # own pages first, each list once

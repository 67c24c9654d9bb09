"""Sphinx events of the site: generated pages, links out of `docs`, languages, diagrams."""

import hashlib
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lessons
from docutils import nodes
from site_pages import commands_page, gallery_page, python_page
from sphinx.application import Sphinx
from sphinx.search.en import SearchEnglish
from sphinx.util.docutils import SphinxDirective

DOCS = Path(__file__).parents[1]
GENERATED: dict[str, Callable[[], str]] = {
    "gallery": lambda: gallery_page(DOCS),
    "reference/commands": commands_page,
    "reference/python": python_page,
}
"""Pages that end with generated Markdown."""
OUTSIDE = {"CHANGELOG": "changelog", "CONTRIBUTING": "contributing", "SECURITY": "security"}
"""Pages beside `docs`, and those in `docs/project` that include them."""
TRANSLATION = re.compile(r"<!-- (?:translation|summary) of (\S+), sha256 ([0-9a-f]{64}) -->\n")
BROKEN = re.compile(r"(?<=[\u3000-\u303f\u4e00-\u9fff\uff00-\uffef”])\n *(?=[\u4e00-\u9fff“（])")
"""End of a line inside a sentence of Chinese."""
CHINESE = re.compile(r"[\u3400-\u9fff]{2,}")


def complete_page(app: Sphinx, name: str, source: list[str]) -> None:
    """Append what is generated, and lead links to files beside `docs` to pages of the site."""
    text = source[0]
    for outside, page in OUTSIDE.items():
        text = text.replace(f"](../{outside}.md", f"](project/{page}.md")
    text = re.sub(r"\[([^\]]+)\]\((?:\.\./)+(src/[^)]+)\)", r"\1 (`\2`)", text)
    source[0] = text + "\n" + GENERATED.get(name, str)()


def join_lines(app: Sphinx, name: str, source: list[str]) -> None:
    """Join lines of Chinese text, between which a browser would show a space."""
    if name.startswith("zh/"):
        source[0] = BROKEN.sub("", source[0])


def mark_stale(app: Sphinx, name: str, source: list[str]) -> None:
    """Say so at the top of a translation whose source has changed since."""
    found = TRANSLATION.match(source[0])
    if found is None:
        return
    digest = hashlib.sha256((DOCS.parent / found[1]).read_bytes()).hexdigest()
    if digest != found[2]:
        original = Path(os.path.relpath(found[1], Path("docs", name).parent)).as_posix()
        original = original if found[1].startswith("docs/") else "../index.md"
        note = f"> 本页译自较早的版本。[原文]({original})已有改动。"
        source[0] = re.sub(r"^(# .+)$", rf"\1\n\n{note}", source[0], count=1, flags=re.M)


def set_language(
    app: Sphinx, name: str, template: str, context: dict[str, Any], tree: nodes.document | None
) -> None:
    """Declare the language of Chinese pages, for screen readers and fonts."""
    if name.startswith("zh/"):
        context["language"] = "zh-CN"


def add_folder_addresses(app: Sphinx, error: Exception | None) -> None:
    """Lead the address of a folder, such as `/zh/`, to its page."""
    for page in Path(app.outdir).rglob("README.html"):
        lines = ['<!doctype html><html lang="en"><title>vitlab</title>']
        lines.append('<meta http-equiv="refresh" content="0; url=README.html">')
        lines.append('<p><a href="README.html">vitlab</a></p></html>')
        (page.parent / "index.html").write_text("\n".join(lines) + "\n", encoding="utf-8")


ACCESSIBLE = (
    ('<p class="caption" role="heading">', '<p class="caption" role="heading" aria-level="2">'),
    ('<aside class="sidebar-drawer">', '<aside class="sidebar-drawer" aria-label="vitlab">'),
    ('<aside class="toc-drawer', '<aside aria-label="contents" class="toc-drawer'),
    ('<th class="head"><p></p></th>', '<td class="head"></td>'),
    ("<pre", '<pre tabindex="0"'),
    ('<div class="table-wrapper', '<div tabindex="0" class="table-wrapper'),
)
"""Parts of built pages, and what screen readers and keyboards need instead."""


def make_accessible(app: Sphinx, error: Exception | None) -> None:
    """Name the parts of each page, and let the keyboard reach code and tables that scroll."""
    for page in Path(app.outdir).rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        for built, needed in ACCESSIBLE:
            text = text if needed in text else text.replace(built, needed)
        page.write_text(text, encoding="utf-8")


CONTENTS = re.compile(
    r"(?P<others>(?:<p class=\"caption\".*?)?)(?P<own><p class=\"caption\"[^>]*>"
    r"<span class=\"caption-text\">中文</span></p>\s*<ul[^>]*>.*?</ul>)",
    re.DOTALL,
)
"""Lists of pages beside a page: the English ones, then the Chinese ones."""


def put_own_pages_first(app: Sphinx, error: Exception | None) -> None:
    """List the Chinese pages first beside a Chinese page."""
    for page in Path(app.outdir, "zh").rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        text = CONTENTS.sub(r"\g<own>\n\g<others>", text, count=1)
        page.write_text(text, encoding="utf-8")


def write_notebooks(app: Sphinx, error: Exception | None) -> None:
    """Write each lesson as a notebook beside its page."""
    for name in lessons.names():
        for folder in (DOCS / "learn", DOCS / "zh" / "learn"):
            page = folder / f"{name}.md"
            if page.exists():
                target = (Path(app.outdir) / page.relative_to(DOCS)).with_suffix(".ipynb")
                lessons.write(page, target)


class Search(SearchEnglish):
    """English words; Chinese by whole runs, found by any part of three characters, and by pairs."""

    def split(self, input: str) -> list[str]:
        pairs = [run[i : i + 2] for run in CHINESE.findall(input) for i in range(len(run) - 1)]
        return [*super().split(input), *pairs]


class Mermaid(SphinxDirective):
    """The nodes of a flowchart that is a chain, as a list; drawn without scripts from elsewhere."""

    has_content = True

    def run(self) -> list[nodes.Node]:
        chart = "\n".join(self.content)
        items = [label.partition("<br/>") for label in re.findall(r'\["([^"]+)"\]', chart)]
        rows = "".join(f"<li><strong>{name}</strong> {text}</li>" for name, _, text in items)
        return [nodes.raw("", f'<ol class="layers">{rows}</ol>', format="html")]


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the events."""
    app.connect("source-read", complete_page)
    app.connect("source-read", join_lines)
    app.connect("source-read", mark_stale)
    app.connect("html-page-context", set_language)
    app.connect("build-finished", add_folder_addresses)
    app.connect("build-finished", make_accessible)
    app.connect("build-finished", put_own_pages_first)
    app.connect("build-finished", write_notebooks)
    app.add_search_language(Search)
    app.add_directive("mermaid", Mermaid)
    return {"parallel_read_safe": True, "parallel_write_safe": True}

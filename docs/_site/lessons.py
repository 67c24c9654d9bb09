"""Lessons as notebooks: cells from the Markdown by jupytext, outputs from the page."""

import base64
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jupytext
from nbformat import NotebookNode
from nbformat.v4 import new_output

LEARN = Path(__file__).parents[1] / "learn"
SHOWN = re.compile(r"(?:<!-- ±(?P<by>[\d.]+) -->\n)?```text\n(?P<text>.*?)^```\n?", re.M | re.S)
"""Output below a block of code; numbers in it may differ by so much from run to run."""
SHORT = re.compile(r"^(\w+ = )[^#\n]+?(  # in short: )(.+)$", re.M)
"""Assignment with a smaller value for a quick run."""
FIGURE = re.compile(r"!\[[^\]]*\]\(([\w-]+\.png)\)")
DOWNLOAD = {"zh": "下载为 Jupyter 笔记本", "en": "Download this lesson as a Jupyter notebook"}


@dataclass(frozen=True, kw_only=True)
class Block:
    """Code of a lesson and the output on the page."""

    code: str
    shown: str
    by: float
    """Tolerance of the numbers in the output."""
    figure: str | None
    """File of the figure below the code."""


def names() -> list[str]:
    """Lessons in their order, without the ending."""
    return [page.stem for page in sorted(LEARN.glob("[0-9]*.md"))]


def read(text: str, *, name: str | None = None) -> NotebookNode:
    """Notebook of a lesson, with the outputs of its page; `name` adds a link to the file."""
    notebook = jupytext.reads(text, fmt="md")
    for code, below in zip(notebook.cells, notebook.cells[1:], strict=False):
        found = SHOWN.match(below.source) if below.cell_type == "markdown" else None
        if code.cell_type == "code" and found:
            code.outputs = [new_output("stream", name="stdout", text=found["text"])]
            code.metadata["by"] = float(found["by"] or 0)
            below.source = below.source[found.end() :]
    notebook.metadata["kernelspec"] = {
        "name": "python3",
        "display_name": "Python 3",
        "language": "python",
    }
    if name is not None:
        word = DOWNLOAD["zh" if re.search(r"^# .*[\u4e00-\u9fff]", text, re.M) else "en"]
        link = f'<p><a href="{name}.ipynb" download="{name}.ipynb">{word}</a></p>'
        first = notebook.cells[0]
        first.source = re.sub(r"^(# .+)$", rf"\1\n\n{link}", first.source, count=1, flags=re.M)
    return notebook


def blocks(text: str, *, short: bool = False) -> list[Block]:
    """Every block of code in a lesson; `short` takes the smaller values."""
    found = []
    cells = read(text).cells
    for cell, below in zip(cells, [*cells[1:], None], strict=True):
        if cell.cell_type != "code":
            continue
        code = SHORT.sub(r"\1\3", cell.source) if short else cell.source
        shown = cell.outputs[0]["text"] if cell.outputs else ""
        drawn = FIGURE.match(below.source.lstrip()) if below is not None else None
        figure = drawn[1] if drawn else None
        by = cell.metadata.get("by", 0.0)
        found.append(Block(code=code, shown=shown, by=by, figure=figure))
    return found


def write(page: Path, target: Path) -> None:
    """Write the notebook of a page, with its figures inside."""
    notebook = read(page.read_text(encoding="utf-8"))
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            _attach(cell, page.parent)
    jupytext.write(notebook, target, fmt="ipynb")


def _attach(cell: Any, folder: Path) -> None:
    """Put the figures of a cell into it."""
    for figure in FIGURE.findall(cell.source):
        data = base64.b64encode((folder / figure).read_bytes()).decode()
        cell.setdefault("attachments", {})[figure] = {"image/png": data}
    cell.source = FIGURE.sub(lambda found: found[0].replace("](", "](attachment:"), cell.source)

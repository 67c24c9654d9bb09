"""Lessons: each block prints what the page shows, and the one-file model equals the package's."""

import contextlib
import importlib.util
import io
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import jupytext
import numpy as np
import pytest
import torch
from PIL import Image

from reference.random_weights import randomise
from vitlab import create_model

DOCS = Path(__file__).resolve().parents[1] / "docs"
LEARN = DOCS / "learn"
LESSONS = sorted(LEARN.glob("[0-9]*.md"))
NUMBER = re.compile(r"\d+\.?\d*")


def imported(file: Path) -> ModuleType:
    """Import a file by its path."""
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[file.stem] = module  # its dataclasses look themselves up
    spec.loader.exec_module(module)
    return module


lessons = imported(DOCS / "_site" / "lessons.py")


def test_lessons_are_numbered() -> None:
    assert [page.name[0] for page in LESSONS] == [str(n + 1) for n in range(len(LESSONS))]
    assert len(LESSONS) >= 8


def run(page: Path, *, short: bool) -> Iterator[tuple[Any, str]]:
    """Blocks of a lesson, each with the text that it printed; its figures are compared."""
    names: dict[str, Any] = {"__name__": page.stem}
    for block in lessons.blocks(page.read_text(), short=short):
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(block.code, page.name, "exec"), names)
        if block.figure is not None and not short:
            assert alike(names["figure"], LEARN / block.figure)
        yield block, printed.getvalue()
    torch.set_printoptions(profile="default")


def alike(figure: Any, file: Path) -> bool:
    """True if a drawn figure looks like a file, but for fonts and single lines."""
    drawn = io.BytesIO()
    figure.savefig(drawn, dpi=100)
    pair = [
        np.asarray(Image.open(one).convert("RGB").resize((40, 40), Image.Resampling.BOX), float)
        for one in (drawn, file)
    ]
    return float(np.abs(pair[0] - pair[1]).mean()) < 20  # of 255


def fits(printed: str, shown: str, by: float) -> bool:
    """True if both are the same text and no number is farther off than `by`."""
    if not by:
        return printed == shown
    pairs = zip(NUMBER.findall(printed), NUMBER.findall(shown), strict=False)
    near = all(abs(float(one) - float(other)) <= by for one, other in pairs)
    return near and NUMBER.sub("0", printed) == NUMBER.sub("0", shown)


def test_numbers_may_differ_by_the_tolerance_and_words_may_not() -> None:
    assert fits("a 1.5 %, b 20\n", "a 1.4 %, b 21\n", 1.0)
    assert not fits("a 1.5 %, b 20\n", "a 1.4 %, b 22\n", 1.0)
    assert not fits("a 1.5 %\n", "c 1.5 %\n", 1.0)
    assert not fits("1.5 2\n", "1.5\n", 1.0)
    assert not fits("1.5\n", "1.4\n", 0.0)


@pytest.fixture
def in_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lessons run in their own folder."""
    monkeypatch.syspath_prepend(str(LEARN))
    monkeypatch.chdir(LEARN)


@pytest.mark.slow
@pytest.mark.usefixtures("in_folder")
@pytest.mark.parametrize("page", LESSONS, ids=lambda page: page.stem)
def test_each_block_prints_what_the_page_shows(page: Path) -> None:
    found = [*run(page, short=False)]
    assert len(found) >= 3
    for block, printed in found:
        assert fits(printed, block.shown, block.by), f"{block.code}\nprinted:\n{printed}"


LONG = ("4-your-own-images", "8-deploy-and-serve")
"""Lessons that are long in short, too: in the slow suite, which CI runs with the site."""


@pytest.mark.usefixtures("in_folder")
@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, marks=pytest.mark.slow if page.stem in LONG else (), id=page.stem)
        for page in LESSONS
    ],
)
def test_lessons_run_in_short(page: Path) -> None:
    """Outputs are compared up to the first block that has a smaller value for a quick run."""
    whole = lessons.blocks(page.read_text())
    shortened = False
    for (block, printed), full in zip(run(page, short=True), whole, strict=True):
        shortened |= block.code != full.code
        assert shortened or fits(printed, block.shown, block.by), block.code


def test_a_lesson_is_a_notebook_with_its_outputs(tmp_path: Path) -> None:
    page = tmp_path / "a.md"
    (tmp_path / "a.png").write_bytes(b"png")
    page.write_text(
        "# A\n\n```python\nsteps = 400  # in short: 2\nprint(steps)\n```\n\n"
        "<!-- ±3 -->\n```text\n400\n```\n\n![A dot](a.png)\n\n```\nvitlab models\n```\n"
    )
    lessons.write(page, tmp_path / "a.ipynb")
    notebook = jupytext.read(tmp_path / "a.ipynb")
    assert [cell.cell_type for cell in notebook.cells] == ["markdown", "code", "markdown"]
    assert notebook.cells[1].source == "steps = 400  # in short: 2\nprint(steps)"
    assert notebook.cells[1].outputs[0]["text"] == "400\n"
    assert "attachments" in notebook.cells[2]
    assert "vitlab models" in notebook.cells[2].source
    (block,) = lessons.blocks(page.read_text(), short=True)
    assert (block.code, block.shown, block.by) == ("steps = 2\nprint(steps)", "400\n", 3.0)
    linked = lessons.read(page.read_text(), name="a").cells[0].source
    assert 'href="a.ipynb"' in linked


def one_file() -> ModuleType:
    return imported(LEARN / "vit_in_one_file.py")


@pytest.mark.parametrize(("size", "patch", "heads"), [(15, 3, 2), (14, 7, 5)])
def test_the_file_equals_the_package_on_random_weights(size: int, patch: int, heads: int) -> None:
    width, hidden, depth, classes, channels = 10 * heads, 34, 3, 11, 5
    ours = create_model(
        "vit_ti16",
        image_size=size,
        patch_size=patch,
        channels=channels,
        width=width,
        depth=depth,
        heads=heads,
        mlp_width=hidden,
        classes=classes,
    )
    ours = ours.double().eval()
    randomise(ours)
    model = one_file().ViT(
        image_size=size,
        patch_size=patch,
        channels=channels,
        width=width,
        depth=depth,
        heads=heads,
        hidden=hidden,
        classes=classes,
    )
    source = list(ours.state_dict().values())
    target = dict(model.named_parameters())
    order = ["class_token", "patch_embedding.linear.weight", "patch_embedding.linear.bias"]
    order += ["positions", *(name for name in target if name.startswith("blocks."))]
    order += ["norm.weight", "norm.bias", "head.weight", "head.bias"]
    assert sorted(order) == sorted(target)
    state = {
        name: tensor.reshape(target[name].shape) for name, tensor in zip(order, source, strict=True)
    }
    model.double().load_state_dict(state)
    images = torch.randn(3, channels, size, size, dtype=torch.float64)
    torch.testing.assert_close(model(images), ours(images))


def test_the_file_runs_by_itself() -> None:
    done = subprocess.run(
        [sys.executable, LEARN / "vit_in_one_file.py"], capture_output=True, text=True, check=True
    )
    before, after = re.findall(r"loss ([\d.]+) -> ([\d.]+)", done.stdout)[0]
    assert float(after) < float(before)


def test_the_lesson_shows_lines_of_the_file_beside_the_equations() -> None:
    page = (LEARN / "2-vit-in-one-file.md").read_text()
    rows = re.findall(r"^\| (.+) \| `(.+)` \| `\[.+$", page, re.M)
    lines = [line.strip().partition("  #")[0] for line in one_file_text().splitlines()]
    assert not [code for _, code in rows if code not in lines]
    equations = {number for left, _ in rows for number in re.findall(r"\((\d)\)", left)}
    assert equations == set("12345678")
    assert set("12345678") == set(re.findall(r"^\((\d)\)  ", page, re.M))


def test_questions_are_answered_by_sentences_of_the_lessons() -> None:
    rows = re.findall(
        r'^\| (.+\?) \| "(.+)" \| (.+) \|$', (LEARN / "questions.md").read_text(), re.M
    )
    assert len(rows) == 20
    text = "\n".join(page.read_text() for page in LESSONS)
    said = " ".join(re.sub(r"[*`]", "", text).split())
    assert not [answer for _, answer, _ in rows if answer not in said]
    assert all("](" in more for *_, more in rows)


def one_file_text() -> str:
    return (LEARN / "vit_in_one_file.py").read_text()


def test_the_file_is_short() -> None:
    assert len(one_file_text().splitlines()) < 170

"""Docstrings, comments and pages are plain English, without pronoun clauses."""

import ast
import io
import re
import tokenize
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

import vitlab

ROOT = Path(vitlab.__file__).parent
PARTS = sorted(
    path.name for path in ROOT.iterdir() if path.suffix == ".py" or (path / "__init__.py").is_file()
)
OPENINGS = re.compile(r"(What|Whom|Whose|Who|Which|Where|How|Whether|The same|Nobody|Somebody)\b")
PHRASES = re.compile(
    r"\b(told|tells?|asked|somebody|nobody|whom|whoever|the same of|deployed|pictures?)\b",
    re.IGNORECASE,
)
SAID = re.compile(PHRASES.pattern.replace(r")\b", r"|judged?|learnt|looked at)\b"), re.IGNORECASE)
NOT_SHOWN = ("images learnt from", "picture small")
"""A key of random numbers, and classes of a style sheet."""
NAMES = re.compile(r"`[^`]*`")
PAGE_PHRASES = re.compile(
    r"\b(told|tells?|asked|somebody|nobody|whom|whoever|the same of|pictures?|judged)\b",
    re.IGNORECASE,
)
OUTSIDE_OF_PROSE = re.compile(
    r"^```.*?^```$|<!-- results of .*?<!-- end of [\w-]+ -->|`[^`]*`|\]\([^)]*\)",
    re.DOTALL | re.MULTILINE,
)
PROJECT = ROOT.parents[1]
DOCS = PROJECT / "docs"
ENGLISH = [
    *(PROJECT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")),
    *(page for page in sorted(DOCS.rglob("*.md")) if "zh" not in page.parts),
]
BLOCK = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)
STUDIES = sorted([*(ROOT / "experiments" / "studies").glob("*.toml"), *DOCS.rglob("*.toml")])


def docstrings(code: str) -> Iterator[tuple[int, str]]:
    """Line and text of every docstring, including those of fields and constants."""
    for node in ast.walk(ast.parse(code)):
        match node:
            case ast.Expr(value=ast.Constant(value=str(text))):
                yield node.lineno, text


def comments(code: str) -> Iterator[tuple[int, str]]:
    """Line and text of every comment."""
    for token in tokenize.generate_tokens(io.StringIO(code).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string.lstrip("# ")


def messages(code: str) -> Iterator[tuple[int, str]]:
    """Line and text of every other string with a space: messages, help texts, captions."""
    known = {*(line for line, _ in docstrings(code)), *NOT_SHOWN}
    for node in ast.walk(ast.parse(code)):
        match node:
            case ast.Constant(value=str(text)) if " " in text and not {node.lineno, text} & known:
                yield node.lineno, text


def faults(code: str) -> list[str]:
    """Docstrings and comments with a forbidden opening or phrase; names in backticks are exempt."""
    opened = [
        f"{line}: opens with {found[0]!r}"
        for line, text in docstrings(code)
        if (found := OPENINGS.match(text))
    ]
    phrased = [
        f"{line}: contains {found[0]!r}"
        for line, text in (*docstrings(code), *comments(code))
        if (found := PHRASES.search(NAMES.sub("", text)))
    ]
    said = [
        f"{line}: says {found[0]!r}"
        for line, text in messages(code)
        if "{" not in text and (found := SAID.search(NAMES.sub("", text)))  # no style sheets
    ]
    return opened + phrased + said


@pytest.mark.parametrize("part", PARTS)
def test_docstrings_and_comments_are_plain_english(part: str) -> None:
    place = ROOT / part
    files = [place] if place.is_file() else sorted(place.rglob("*.py"))
    assert files
    found = {
        str(file.relative_to(ROOT)): lines
        for file in files
        if (lines := faults(file.read_text(encoding="utf-8")))
    }
    assert not found


@pytest.mark.parametrize("page", ENGLISH, ids=lambda page: str(page.relative_to(PROJECT)))
def test_pages_are_plain_english(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert not PAGE_PHRASES.findall(OUTSIDE_OF_PROSE.sub("", text))
    assert not [found for block in BLOCK.findall(text) for found in PAGE_PHRASES.findall(block)]


def texts_of(study: Path) -> Iterator[str]:
    """Comments of a study, its title, its question, and the titles of its arms."""
    text = study.read_text(encoding="utf-8")
    yield from (line for line in text.splitlines() if line.startswith("#"))
    content = tomllib.loads(text)
    for part in (content, *content.get("arms", ())):
        yield from (part.get(key, "") for key in ("title", "question", "paper"))


@pytest.mark.parametrize("study", STUDIES, ids=lambda study: study.stem)
def test_studies_are_plain_english(study: Path) -> None:
    assert not [found for text in texts_of(study) for found in PAGE_PHRASES.findall(text)]


def test_a_pronoun_clause_is_a_fault() -> None:
    code = 'size = 1\n"""What the model is told."""\ndepth = 2  # as nobody asked\n'
    assert faults(code) == [
        "2: opens with 'What'",
        "2: contains 'told'",
        "3: contains 'nobody'",
    ]


def test_a_message_in_dialect_is_a_fault() -> None:
    code = """raise DataError(f"{file}: nobody told what was learnt from 3 images")\n"""
    assert faults(code) == ["1: says 'nobody'"]
    assert not faults("""LABELS = ("picture", "told")\n""")


def test_names_in_backticks_are_exempt() -> None:
    assert not faults('"""Name of the score, `told` / `asked`."""\n')

"""Language of generated pages: sentences are looked up in a catalogue of translations.

A catalogue holds pairs of lines, English above its translation. Parts of a sentence that vary are
written `{a}`, `{b}`; they are carried over as they are. What a catalogue lacks stays English.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from pathlib import Path

from vitlab.errors import UnknownName

LANGUAGES = {"en": "en", "zh": "zh-CN"}
"""Languages of pages, and their tags in HTML."""
FOLDER = Path(__file__).parent / "languages"
VARYING = re.compile(r"\\?\{(\w)\\?\}")

_spoken: ContextVar[str] = ContextVar("language", default="en")


def check_language(language: str) -> None:
    """Raise for a language that pages are not written in."""
    if language not in LANGUAGES:
        raise UnknownName("language", language, LANGUAGES)


@contextmanager
def speaking(language: str) -> Iterator[None]:
    """Write pages in a language."""
    check_language(language)
    token = _spoken.set(language)
    try:
        yield
    finally:
        _spoken.reset(token)


def spoken() -> str:
    """Language that pages are written in."""
    return _spoken.get()


def say(text: str) -> str:
    """Text in the language of the page; spaces around it are kept."""
    words = text.strip()
    found = words if spoken() == "en" else _translated(words, spoken())
    return text if found == words else text.replace(words, found)


def _translated(text: str, language: str) -> str:
    exact, patterns = catalogue(language)
    if text in exact:
        return exact[text]
    for pattern, translation in patterns:
        found = pattern.fullmatch(text)
        if found:
            return _filled(translation, found)
    return text


def _filled(translation: str, found: re.Match[str]) -> str:
    return VARYING.sub(lambda part: found[part[1]], translation)


@cache
def catalogue(language: str) -> tuple[dict[str, str], list[tuple[re.Pattern[str], str]]]:
    """Whole sentences, and sentences with varying parts, those with the longest text first."""
    exact, patterns = {}, []
    for english, translation in read(FOLDER / f"{language}.txt"):
        if not VARYING.search(english):
            exact[english] = translation
            continue
        escaped = re.escape(english)
        pattern = VARYING.sub(lambda part: f"(?P<{part[1]}>.+?)", escaped)
        patterns.append((len(VARYING.sub("", escaped)), re.compile(pattern, re.S), translation))
    ordered = sorted(patterns, key=lambda entry: -entry[0])
    return exact, [(pattern, translation) for _, pattern, translation in ordered]


def read(file: Path) -> list[tuple[str, str]]:
    """Pairs of a catalogue; lines with # are comments."""
    lines = [line.strip() for line in file.read_text(encoding="utf-8").splitlines()]
    entries = [line for line in lines if line and not line.startswith("#")]
    return list(zip(entries[::2], entries[1::2], strict=True))

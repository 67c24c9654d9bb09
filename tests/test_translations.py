"""Translated pages: whether their source has changed since, and that their code is its code."""

import hashlib
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
HEADER = re.compile(r"<!-- (translation|summary) of (\S+), sha256 ([0-9a-f]{64}) -->\n")
CODE = re.compile(r"^```.*?^```\n", re.MULTILINE | re.DOTALL)


def translated() -> dict[Path, tuple[Path, bool, bool]]:
    """Source of each page, whether it has changed since, and whether the page has all of it."""
    pages = {}
    for page in (ROOT / "docs").rglob("*.md"):
        found = HEADER.match(page.read_text())
        if found:
            source = ROOT / found[2]
            digest = hashlib.sha256(source.read_bytes()).hexdigest()
            pages[page] = (source, digest != found[3], found[1] == "translation")
    return pages


@pytest.mark.slow  # a stale page says so on the site, so a change of its source may come first
def test_no_translation_is_stale() -> None:
    pages = translated()
    assert len(pages) >= 10
    stale = [str(page.relative_to(ROOT)) for page, (_, changed, _) in pages.items() if changed]
    assert not stale, f"translate the changes, then record the new digest: {stale}"


def test_translated_pages_have_the_code_and_outputs_of_their_source() -> None:
    for page, (source, changed, whole) in translated().items():
        if whole and not changed:
            assert CODE.findall(page.read_text()) == CODE.findall(source.read_text()), page

"""The built site in Chromium: axe finds nothing on its pages, and none is wider than a phone."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe is not installed")
pytest.importorskip("myst_nb", reason="`make docs` installs what builds the site")
pytestmark = [pytest.mark.browser, pytest.mark.filterwarnings("ignore::DeprecationWarning")]

DOCS = Path(__file__).resolve().parents[2] / "docs"
CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
PAGES = (
    *("index", "demands", "installation", "reference/commands"),
    *("learn/1-attention", "learn/5-look-inside", "zh/README", "zh/learn/5-look-inside"),
    *("learn/2-vit-in-one-file", "zh/learn/2-vit-in-one-file"),
)
OVERFLOW = "document.documentElement.scrollWidth - document.documentElement.clientWidth"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [
        sys.executable,
        "-m",
        "sphinx",
        "-q",
        "-d",
        folder / "doctrees",
        DOCS,
        folder / "html",
    ]
    subprocess.run(command, check=True)
    return folder / "html"


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    if CHROMIUM is None:
        pytest.skip("no Chromium; valid: install it, or set CHROMIUM to its path")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (1280, "dark"), (360, "light")])
def test_pages_are_accessible(site: Path, chromium: Any, width: int, scheme: str) -> None:
    context = chromium.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
    found = {}
    for name in PAGES:
        page = context.new_page()
        page.goto((site / f"{name}.html").as_uri())
        faults = [fault["id"] for fault in axe.Axe().run(page).response["violations"]]
        if page.evaluate(OVERFLOW) > 0:
            faults.append("wider than the screen")
        found[name] = faults
        page.close()
    context.close()
    assert not {name: faults for name, faults in found.items() if faults}

"""A server and Chromium for the tests in a browser."""

import os
import shutil
from collections.abc import Iterator
from typing import Any

import pytest

from browser.pages import opening
from serve.server import Running, serving

CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
FAKE_CAMERA = ("--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream")


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with serving("--engine", "torch", "--quiet", "--deadline", "60") as running:
        yield running


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    if CHROMIUM is None:
        pytest.skip("no Chromium; valid: install it, or set CHROMIUM to its path")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        options = ["--no-sandbox", *FAKE_CAMERA]
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=options)
        yield browser
        browser.close()


@pytest.fixture
def opened(chromium: Any, server: Running) -> Iterator[Any]:
    with opening(chromium, server.url) as page:
        yield page

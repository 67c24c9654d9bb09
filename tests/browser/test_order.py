"""Answers that arrive late or out of order, and tests of a map: the page shows what was chosen."""

from contextlib import suppress
from typing import Any

import numpy as np
import pytest

from browser.pages import (
    MAP,
    SEED,
    answers,
    expected_attention,
    hover,
    model_input,
    opening,
    settle,
    shown,
)
from serve.server import Running

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
pytestmark = [pytest.mark.browser, pytest.mark.filterwarnings("ignore::DeprecationWarning")]

PAINTED = "[...document.querySelector('.stage').panel.painted].sort((a, b) => a - b)"
DONE = "document.querySelector('.stage').dataset.done"


class Held:
    """Requests that wait until they are let go, and those that the page has given up."""

    def __init__(self, page: Any, pattern: str) -> None:
        self.page, self.pattern = page, pattern
        self.waiting: list[Any] = []
        self.aborted: list[str] = []
        page.on("requestfailed", lambda sent: self.aborted.append(sent.url))
        page.route(pattern, self.hold)

    def hold(self, route: Any) -> None:
        self.waiting.append(route)

    def wait(self, count: int = 1) -> None:
        for _ in range(100):
            if len(self.waiting) >= count:
                return
            self.page.wait_for_timeout(50)
        raise AssertionError(f"{len(self.waiting)} requests; expected {count}")

    def let_go(self) -> None:
        self.page.unroute(self.pattern)
        for route in self.waiting:
            with suppress(playwright.Error):  # of a request that was aborted
                route.continue_()
        settle(self.page)


def paint(page: Any, *cells: tuple[int, int]) -> None:
    """Paint patches with the keyboard."""
    page.locator(".stage").focus()
    for row, column in cells:
        page.evaluate(
            "at => { document.querySelector('.stage').panel.cursor = at; }", [row, column]
        )
        page.keyboard.press("p")
    settle(page)


def test_a_late_layer_is_not_shown(chromium: Any, server: Running) -> None:
    start = f"{server.url}/#layer=2&patch=3,4"
    with opening(chromium, start) as page:
        held = Held(page, "**/explore/attention?layer=0")
        page.locator(".stage").focus()
        page.keyboard.press("p")  # so that everything is computed again
        page.locator("#layer").fill("0")
        held.wait()
        page.locator("#layer").fill("6")  # its grid is coarser
        page.wait_for_function(f"() => {MAP}?.grid[0] === 4")
        held.let_go()
        expected = expected_attention(model_input(page), 6)[:, 4 * 1 + 1].mean(axis=0)
        np.testing.assert_allclose(shown(page)[0], expected.reshape(4, 4), rtol=1e-4, atol=1e-6)
        assert page.inner_text("#layer-name") == "Layer 7 of 7"
        page.locator("#layer").fill("0")
        settle(page)
        expected = expected_attention(model_input(page), 0)[:, 8 * 2 + 3].mean(axis=0)
        np.testing.assert_allclose(shown(page)[0], expected.reshape(8, 8), rtol=1e-4, atol=1e-6)


def test_the_map_of_an_earlier_class_is_aborted(opened: Any) -> None:
    opened.click("[data-method=relevance]")
    opened.select_option("#target", index=4)
    settle(opened)
    expected, _ = shown(opened)
    opened.select_option("#target", index=0)
    settle(opened)
    held = Held(opened, "**/explore/map?*target=7")
    opened.select_option("#target", index=8)
    held.wait()
    opened.select_option("#target", index=4)
    settle(opened)
    held.let_go()
    np.testing.assert_array_equal(shown(opened)[0], expected)
    assert [url for url in held.aborted if "target=7" in url]


def test_an_image_that_was_opened_earlier_does_not_come_back(opened: Any) -> None:
    held = Held(opened, "**/explore/samples/1/pixels")
    opened.click(".sample >> nth=1")
    held.wait()
    opened.click(".sample >> nth=3")
    settle(opened)
    held.let_go()
    assert opened.inner_text(".panel .name") == "ship"
    assert max(answers(opened), key=answers(opened).__getitem__) == "ship"


def test_a_stroke_waits_for_its_answer(opened: Any) -> None:
    sent: list[str] = []
    opened.on("request", lambda one: sent.append(one.url) if "/explore/" in one.url else None)
    held = Held(opened, "**/explore/predict")
    opened.click("#paint")
    box = opened.locator(".stage").bounding_box()
    at = [(box["x"] + share * box["width"], box["y"] + 0.4 * box["height"]) for share in (0.1, 0.9)]
    opened.mouse.move(*at[0])
    opened.mouse.down()
    held.wait()
    sent.clear()
    opened.mouse.move(*at[1], steps=3)  # a fast stroke has no gaps
    opened.wait_for_timeout(300)
    assert not sent
    opened.mouse.up()
    held.let_go()
    assert opened.evaluate(PAINTED) == list(range(24, 32))
    assert sum(url.endswith("predict") for url in sent) <= 2
    pixels = model_input(opened).reshape(3, 32, 32)
    assert (pixels[:, 12:16] == pixels[:, 12:13, :1]).all()


def test_the_prediction_of_earlier_paint_is_aborted(opened: Any) -> None:
    held = Held(opened, "**/explore/predict")
    opened.locator(".stage").focus()
    opened.keyboard.press("p")
    held.wait()
    opened.keyboard.press("ArrowRight")
    opened.keyboard.press("ArrowRight")
    opened.keyboard.press("p")
    held.wait(2)
    held.let_go()
    assert any(url.endswith("predict") for url in held.aborted)
    assert len(opened.evaluate(PAINTED)) == 2


def test_a_test_of_the_map_keeps_paint_and_maps(opened: Any) -> None:
    cells = sorted(
        {
            (int(row), int(column))
            for row, column in np.random.default_rng(SEED).integers(0, 8, (5, 2))
        }
    )
    paint(opened, *cells)
    kept, pixels, before = opened.evaluate(PAINTED), model_input(opened), answers(opened)
    held = Held(opened, "**/explore/predict")
    opened.click("#check")
    held.wait()
    for row, column in ((2, 6), (5, 1)):  # another map while the test runs
        hover_now(opened, row, column)
        expected = expected_attention(pixels, 1)[:, 8 * row + column].mean(axis=0).reshape(8, 8)
        np.testing.assert_allclose(shown(opened)[0], expected, rtol=1e-4, atol=1e-6)
    opened.mouse.move(0, 0)
    held.let_go()
    opened.wait_for_function("() => /fifth/.test(document.getElementById('checked').textContent)")
    assert opened.evaluate(PAINTED) == kept == [8 * row + column for row, column in cells]
    assert answers(opened) == before
    hover(opened, 4, 4)
    assert "fifth" in opened.inner_text("#checked")
    opened.locator("#layer").fill("3")  # another map: the result is not about it
    settle(opened)
    assert opened.inner_text("#checked") == ""


def hover_now(page: Any, row: int, column: int) -> None:
    """Hover without waiting for all requests: some are held."""
    before = page.evaluate(DONE)
    page.locator(".stage").scroll_into_view_if_needed()
    box = page.locator(".stage").bounding_box()
    x, y = ((place + 0.5) * box["width"] / 8 for place in (column, row))
    page.mouse.move(box["x"] + x, box["y"] + y)
    page.wait_for_function(f"before => {DONE} !== before", arg=before)


def test_a_test_of_the_map_that_fails_keeps_the_paint(chromium: Any, server: Running) -> None:
    opened = opening(chromium, server.url)
    with opened as page:
        paint(page, (1, 2), (6, 6))
        before = answers(page)
        calls: list[Any] = []

        def fail_later(route: Any) -> None:
            calls.append(route)
            if len(calls) < 3:
                route.continue_()
            else:
                route.fulfill(status=500, json={"error": "out of order"})

        page.route("**/explore/predict", fail_later)
        page.click("#check")
        page.wait_for_selector("#error:not([hidden])")
        settle(page)
        assert (page.inner_text("#error"), page.inner_text("#checked")) == ("out of order", "")
        assert page.evaluate(PAINTED) == [10, 54]
        assert answers(page) == before
        page.unroute("**/explore/predict")
        page.click("#check")
        page.wait_for_selector("#error", state="hidden")
        assert any("500" in fault for fault in opened.faults)
        opened.faults.clear()


def test_an_error_ends_with_the_next_success(chromium: Any, server: Running) -> None:
    opened = opening(chromium, server.url)
    with opened as page:
        page.route(
            "**/explore/map?*", lambda route: route.fulfill(status=429, json={"error": "busy"})
        )
        page.click("[data-method=relevance]")
        page.wait_for_selector("#error:not([hidden])")
        assert page.inner_text("#error") == "busy"
        page.click("[data-method=attention]")
        page.wait_for_selector("#error", state="hidden")
        page.unroute("**/explore/map?*")
        page.route("**/explore/map?*", lambda route: route.abort())
        page.click("[data-method=relevance]")
        page.wait_for_selector("#error:not([hidden])")
        assert "does not answer" in page.inner_text("#error")
        opened.faults.clear()

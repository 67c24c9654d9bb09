"""Ways to use the page: images by paste, file and camera, touch, the link, and accessibility."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import vitlab
from browser.pages import (
    NAME,
    SEED,
    address,
    answers,
    drop,
    expected_attention,
    hover,
    model_input,
    opening,
    photo,
    settle,
    shown,
)
from serve.server import Running
from vitlab.serve.network import Network

pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
pytestmark = [pytest.mark.browser, pytest.mark.filterwarnings("ignore::DeprecationWarning")]

NAMED = f"name => {NAME} === name"
PASTE = """([name, bytes]) => {
  const clipboardData = new DataTransfer();
  clipboardData.items.add(new File([new Uint8Array(bytes)], name, {type: 'image/png'}));
  document.dispatchEvent(new ClipboardEvent('paste', {clipboardData, bubbles: true}));
}"""
SELECTED = """() => {
  const { value, selectionStart, selectionEnd } = document.activeElement;
  return value.slice(selectionStart, selectionEnd);
}"""
CLIPBOARDS = {
    "missing": "Object.defineProperty(Navigator.prototype, 'clipboard', {get: () => undefined})",
    "refused": "Clipboard.prototype.writeText = () => Promise.reject(new Error('refused'))",
}


def expected_answers(pixels: np.ndarray) -> dict[str, float]:
    image = pixels.reshape(3, 32, 32).transpose(1, 2, 0).copy()
    (found,) = vitlab.load("cifar10").predict(image)
    return {label: 100 * probability for label, probability in found.top}


def check_answers(page: Any) -> None:
    found = answers(page)
    for label, probability in expected_answers(model_input(page)).items():
        assert found[label] == pytest.approx(probability, abs=0.51)


def check_accessible(page: Any) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="no axe")
    found = axe.Axe().run(page)
    assert found.violations_count == 0, found.generate_report()


def test_a_pasted_image_is_classified(opened: Any) -> None:
    opened.evaluate(PASTE, ["pasted.png", list(photo(SEED))])
    opened.wait_for_function(NAMED, arg="pasted.png")
    settle(opened)
    check_answers(opened)


def test_an_image_is_opened_by_the_file_chooser(opened: Any, tmp_path: Path) -> None:
    (tmp_path / "chosen.png").write_bytes(photo(SEED + 1))
    for _ in range(2):  # the same file once more
        with opened.expect_file_chooser() as chooser:
            opened.click("#file")
        chooser.value.set_files(tmp_path / "chosen.png")
        opened.wait_for_function(NAMED, arg="chosen.png")
        settle(opened)
        check_answers(opened)
        opened.click(".sample >> nth=2")
        opened.wait_for_function(NAMED, arg="bird")


def test_an_image_is_taken_with_the_camera(opened: Any) -> None:
    before = model_input(opened)
    opened.click("#camera")
    opened.wait_for_function("() => document.getElementById('video').videoWidth > 0")
    check_accessible(opened)
    opened.click("#take")
    opened.wait_for_function(NAMED, arg="camera.jpg")
    settle(opened)
    assert not opened.locator("#booth").is_visible()
    assert opened.evaluate("document.getElementById('video').srcObject") is None
    assert (model_input(opened) != before).any()
    check_answers(opened)


def test_a_camera_that_cannot_be_used_is_reported(opened: Any) -> None:
    opened.evaluate(
        "() => { navigator.mediaDevices.getUserMedia ="
        " () => Promise.reject(new Error('no device')); }"
    )
    opened.click("#camera")
    opened.wait_for_selector("#error:not([hidden])")
    assert opened.inner_text("#error") == "The camera cannot be used: no device"
    opened.click(".sample >> nth=1")
    opened.wait_for_selector("#error", state="hidden")


def test_a_tap_holds_a_patch(chromium: Any, server: Running) -> None:
    options = {"viewport": {"width": 360, "height": 740}, "has_touch": True, "is_mobile": True}
    with opening(chromium, server.url, **options) as page:
        row, column = (int(place) for place in np.random.default_rng(SEED).integers(0, 8, 2))
        rows = expected_attention(model_input(page), 1)
        before, _ = shown(page)
        stage = page.locator(".stage")
        stage.scroll_into_view_if_needed()
        box = stage.bounding_box()
        x = box["x"] + (column + 0.5) * box["width"] / 8
        y = box["y"] + (row + 0.5) * box["height"] / 8
        page.touchscreen.tap(x, y)
        settle(page)
        expected = rows[:, 8 * row + column].mean(axis=0).reshape(8, 8)
        np.testing.assert_allclose(shown(page)[0], expected, rtol=1e-4, atol=1e-6)
        page.touchscreen.tap(x, y)
        settle(page)
        np.testing.assert_allclose(shown(page)[0], before, rtol=1e-4, atol=1e-6)


def test_on_a_phone_the_image_is_in_view_beside_the_sliders(chromium: Any, server: Running) -> None:
    with opening(chromium, server.url, viewport={"width": 360, "height": 740}) as page:
        for slider in ("#layer", "#head", "#opacity"):
            page.locator(slider).focus()
            page.locator(slider).scroll_into_view_if_needed()
            stage, own = page.locator(".stage").bounding_box(), page.locator(slider).bounding_box()
            assert stage["y"] >= 0
            assert stage["y"] + stage["height"] <= own["y"]
            assert own["y"] + own["height"] <= 740


def test_the_answer_of_each_layer(opened: Any) -> None:
    classifier = vitlab.load("cifar10")
    expected = Network(classifier).layers(model_input(opened).reshape(3, 32, 32))
    rows = opened.eval_on_selector_all(
        ".layer-list li",
        "rows => rows.map(r => [...r.querySelectorAll('.line')].map(line =>"
        " [line.querySelector('.label').textContent, line.querySelector('.value').textContent]))",
    )
    assert len(rows) == len(expected) == 7
    final = expected[-1].argmax()
    for lines, row in zip(rows, expected, strict=True):
        wanted = {int(row.argmax()), int(final)}
        assert lines[0][0] == classifier.labels[row.argmax()]
        assert {label for label, _ in lines} == {classifier.labels[one] for one in wanted}
        for label, value in lines:
            share = 100 * row[classifier.labels.index(label)]
            assert float(value.split()[0]) == pytest.approx(share, abs=0.51)


@pytest.mark.parametrize("kind", [*CLIPBOARDS, "works"])
def test_the_link_is_copied_or_shown(chromium: Any, server: Running, kind: str) -> None:
    opened = opening(chromium, server.url, permissions=["clipboard-read", "clipboard-write"])
    opened.context.add_init_script(CLIPBOARDS.get(kind, ""))
    with opened as page:
        page.locator("#layer").fill("0")
        page.click("#link")
        page.wait_for_selector("#link-note:not([hidden])")
        note, address = page.inner_text("#copied"), page.locator("#address")
        if kind == "works":
            assert "is copied" in note
            copied = page.evaluate("navigator.clipboard.readText()")
            assert not address.is_visible()
        else:
            assert note.startswith("Copy this address")
            copied = page.evaluate(SELECTED)
            assert address.input_value() == copied
        assert copied.startswith(f"{server.url}/#")
        assert "layer=1" in copied
        drop(page, "own.png", photo(SEED))
        page.wait_for_function(NAMED, arg="own.png")
        page.click("#link")
        page.wait_for_function(
            "() => /own image/.test(document.getElementById('copied').textContent)"
        )


def test_the_address_is_written_rarely(chromium: Any, server: Running) -> None:
    opened = opening(chromium, server.url)
    opened.context.add_init_script(
        "const write = history.replaceState; window.written = 0;"
        "history.replaceState = function (...given) {"
        " window.written += 1; return write.apply(this, given); };"
    )
    with opened as page:
        page.wait_for_timeout(600)
        first = page.evaluate("window.written")
        for place in range(8):
            hover(page, place, place)
        page.wait_for_timeout(600)
        assert page.evaluate("window.written") == first
        page.evaluate(
            """async () => {
              const slider = document.getElementById('layer');
              for (let i = 0; i < 40; i += 1) {
                slider.value = i % 7;
                slider.dispatchEvent(new Event('input'));
                await new Promise(requestAnimationFrame);
              }
            }"""
        )
        page.wait_for_timeout(600)
        assert 1 <= page.evaluate("window.written") - first <= 10
        assert "layer=5" in address(page)


def test_axe_in_every_step_of_the_tour(opened: Any) -> None:
    opened.click("#tour")
    for _ in range(7):
        settle(opened)
        check_accessible(opened)
        opened.click("#tour-next")


def test_the_tour_has_the_slider_that_it_speaks_of(opened: Any) -> None:
    opened.click("#tour")
    for _ in range(2):
        opened.click("#tour-next")
    settle(opened)
    opened.locator("#tour-slider").fill("4")
    settle(opened)
    assert opened.locator("#head").input_value() == "4"
    assert opened.inner_text("#tour-name") == "Head 5 of 10"
    middle = expected_attention(model_input(opened), 0)[4, 8 * 4 + 4].reshape(8, 8)
    np.testing.assert_allclose(shown(opened)[0], middle, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("method", ["rollout", "relevance", "gradcam"])
def test_axe_with_two_images(opened: Any, method: str) -> None:
    opened.click(".other")
    opened.wait_for_selector(".panel >> nth=1")
    opened.click(f"[data-method={method}]")
    opened.click("#link")
    settle(opened)
    check_accessible(opened)


def test_images_open_in_the_chosen_panel(opened: Any) -> None:
    opened.click(".other")
    opened.wait_for_selector(".panel >> nth=1")
    settle(opened)
    opened.click(".here >> nth=0")
    opened.click(".sample >> nth=7")
    settle(opened)
    names = opened.eval_on_selector_all(".panel .name", "all => all.map(one => one.textContent)")
    assert names == ["frog", "horse"]
    opened.click(".other >> nth=1")
    settle(opened)
    assert opened.locator(".panel").count() == 1
    assert "#image=7&" in address(opened)

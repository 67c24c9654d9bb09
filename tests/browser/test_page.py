"""The page in a browser: Playwright drives the system's Chromium (make test-browser)."""

import io
import os
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

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
from serve.server import Running, serving
from vitlab.data.images import normalise
from vitlab.images.preprocessing import Preprocessing
from vitlab.serve.samples import samples_of
from vitlab.serve.static_page import write_static
from vitlab.weights.bundle import save_bundle

pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
pytestmark = [pytest.mark.browser, pytest.mark.filterwarnings("ignore::DeprecationWarning")]


def test_a_dropped_image_is_classified(opened: Any) -> None:
    content = photo(SEED)
    name = "<img src=x onerror=alert(1)>.png"
    drop(opened, name, content)
    opened.wait_for_function(f"name => {NAME} === name", arg=name)
    settle(opened)
    (expected,) = vitlab.load("cifar10").predict(Image.open(io.BytesIO(content)))
    found = answers(opened)
    for label, probability in expected.top:
        assert found[label] == pytest.approx(100 * probability, abs=0.51)
    assert opened.locator("img[src=x]").count() == 0


def test_an_image_that_cannot_be_read_is_reported(chromium: Any, server: Running) -> None:
    opened = opening(chromium, server.url)
    with opened as page:
        drop(page, "no.png", b"no image at all")
        page.wait_for_selector("#error:not([hidden])")
        assert "image" in page.inner_text("#error")
        assert any("415" in fault for fault in opened.faults)
        opened.faults.clear()


def test_the_map_under_the_pointer_is_the_attention_of_the_model(opened: Any) -> None:
    draw = np.random.default_rng(SEED)
    expected = expected_attention(model_input(opened), 1)
    before, _ = shown(opened)
    for _ in range(3):
        row, column = (int(place) for place in draw.integers(0, 8, 2))
        hover(opened, row, column)
        found, grid = shown(opened)
        assert grid == (8, 8)
        mean = expected[:, 8 * row + column].mean(axis=0).reshape(8, 8)
        np.testing.assert_allclose(found, mean, rtol=1e-4, atol=1e-6)
        assert np.abs(found - before).max() > 1e-4


def test_sliders_choose_layer_and_head(opened: Any) -> None:
    hover(opened, 3, 5)
    opened.locator("#layer").fill("0")
    opened.locator("#head").fill("4")
    settle(opened)
    assert "Layer 1 of 7" in opened.inner_text("#layer-name")
    hover(opened, 3, 5)
    found, _ = shown(opened)
    expected = expected_attention(model_input(opened), 0)[4, 29].reshape(8, 8)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)
    opened.click("[aria-label='Layer 7, head 2']")
    settle(opened)
    assert shown(opened)[1] == (4, 4)
    assert opened.locator("#head").input_value() == "1"


@pytest.mark.parametrize("method", ["relevance", "gradcam"])
def test_the_class_picker_changes_the_map(opened: Any, method: str) -> None:
    opened.click(f"[data-method={method}]")
    settle(opened)
    likeliest, _ = shown(opened)
    target = int(np.random.default_rng(SEED).integers(0, 10))
    opened.select_option("#target", index=target + 1)
    settle(opened)
    found, _ = shown(opened)
    image = Image.fromarray(model_input(opened).reshape(3, 32, 32).transpose(1, 2, 0).copy())
    classifier = vitlab.load("cifar10")
    expected = classifier.explain(image, method=method, target=target).map
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-6)
    if classifier.predict(image)[0].label != classifier.labels[target]:
        assert np.abs(found - likeliest).max() > 1e-6


def test_rollout_follows_the_patch(opened: Any) -> None:
    opened.click("[data-method=rollout]")
    hover(opened, 2, 6)
    found, _ = shown(opened)
    image = Image.fromarray(model_input(opened).reshape(3, 32, 32).transpose(1, 2, 0).copy())
    expected = vitlab.load("cifar10").explain(image, method="rollout", token=(2, 6)).map
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-6)


def test_painting_is_predicted_as_the_painted_image(opened: Any) -> None:
    before = answers(opened)
    opened.click("#paint")
    box = opened.locator(".stage").bounding_box()
    low, high = (
        (box["x"] + share * box["width"], box["y"] + share * box["height"]) for share in (0.2, 0.8)
    )
    opened.mouse.move(*low)
    opened.mouse.down()
    opened.mouse.move(*high, steps=24)
    opened.mouse.up()
    settle(opened)
    pixels = model_input(opened).reshape(3, 32, 32)
    assert (pixels[:, 14, 14] == [125, 123, 114]).all()
    image = Image.fromarray(pixels.transpose(1, 2, 0).copy())
    (expected,) = vitlab.load("cifar10").predict(image)
    found = answers(opened)
    for label, probability in expected.top:
        assert found[label] == pytest.approx(100 * probability, abs=0.51)
    assert found != before
    opened.click("#clear")
    settle(opened)
    assert answers(opened) == before


def test_a_map_is_tested(opened: Any) -> None:
    opened.click("[data-method=relevance]")
    settle(opened)
    opened.click("#check")
    opened.wait_for_function("() => /fifth/.test(document.getElementById('checked').textContent)")
    assert len(re.findall(r"[\d.]+\s%", opened.inner_text("#checked"))) == 3


def test_the_link_restores_the_page(chromium: Any, opened: Any) -> None:
    opened.click(".sample >> nth=3")
    settle(opened)
    opened.locator("#layer").fill("2")
    opened.locator("#head").fill("6")
    opened.locator(".stage").focus()
    for key in ("ArrowDown", "ArrowRight", "Enter", "p"):
        opened.keyboard.press(key)
        settle(opened)
    found, link, bars = shown(opened), address(opened), answers(opened)
    with opening(chromium, link) as page:
        again = shown(page)
        np.testing.assert_allclose(again[0], found[0], rtol=1e-5)
        assert answers(page) == bars
        assert page.locator("#head").input_value() == "6"
        assert page.inner_text(".panel .name") == "ship"


def test_the_keyboard_alone_is_enough(opened: Any) -> None:
    reached = set()
    for _ in range(60):
        opened.keyboard.press("Tab")
        focused = opened.evaluate("document.activeElement.id || document.activeElement.className")
        reached.add(focused)
        if focused == "stage":
            before, _ = shown(opened)
            opened.keyboard.press("ArrowDown")
            settle(opened)
            assert np.abs(shown(opened)[0] - before).max() > 1e-4
    assert {"link", "language", "file", "stage", "layer", "head", "paint", "tiny"} <= reached
    opened.keyboard.press("[")
    settle(opened)
    assert "Layer 1" in opened.inner_text("#layer-name")


def test_two_images_side_by_side(opened: Any) -> None:
    opened.click(".other")
    opened.wait_for_selector(".panel >> nth=1")
    settle(opened)
    names = opened.eval_on_selector_all(".panel .name", "all => all.map(one => one.textContent)")
    assert names == ["cat", "horse"]
    opened.click(".sample >> nth=5")
    settle(opened)
    assert opened.locator(".panel .name").nth(1).inner_text() == "truck"


def test_chinese(opened: Any) -> None:
    opened.click("#language")
    settle(opened)
    assert opened.evaluate("document.documentElement.lang") == "zh"
    assert "注意力" in opened.inner_text("#methods")
    left = opened.evaluate("document.querySelector('.controls').innerText")
    assert not re.search(r"[a-z]{4}", left.replace("Grad", ""))


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("language", ["en", "zh"])
@pytest.mark.parametrize("width", [360, 1280])
def test_every_width_scheme_and_language(
    chromium: Any, server: Running, width: int, scheme: str, language: str
) -> None:
    options = {"viewport": {"width": width, "height": 800}, "color_scheme": scheme}
    with opening(chromium, f"{server.url}/#lang={language}", **options) as page:
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="no axe")
        found = axe.Axe().run(page)
        assert found.violations_count == 0, found.generate_report()
        if folder := os.environ.get("VITLAB_SCREENS"):
            page.screenshot(path=Path(folder) / f"{width}-{scheme}-{language}.png", full_page=True)


def test_an_exported_file_gives_the_reason(chromium: Any, tmp_path: Path) -> None:
    bundle = Path(vitlab.__file__).parent / "bundled" / "vit_cifar.cifar10"
    (tmp_path / "model.onnx").write_bytes((bundle / "model.onnx").read_bytes())
    model = str(tmp_path / "model.onnx")
    with serving("--quiet", model=model) as server, opening(chromium, server.url) as page:
        assert answers(page)["cat"] > 50
        assert "exported file" in page.inner_text("#reason")
        for part in ("#place", "#heads-part", "#layers-part", "#check"):
            assert not page.locator(part).is_visible()


@contextmanager
def files_of(folder: Path) -> Iterator[str]:
    """Address of a plain web server for the files of a folder."""

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *given: Any) -> None:
            """No line per request."""

    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder))) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def test_a_static_page_needs_only_files(chromium: Any, tmp_path: Path) -> None:
    for number in range(2):
        (tmp_path / f"{number}.png").write_bytes(photo(SEED + number))
    write_static(tmp_path / "page", vitlab.load("cifar10"), samples_of([tmp_path]))
    with files_of(tmp_path / "page") as address, opening(chromium, address) as page:
        hover(page, 3, 5)
        found, _ = shown(page)
        rows = expected_attention(model_input(page), 1)[:, 29]
        precision = rows.max(axis=1).mean() / 255
        np.testing.assert_allclose(found, rows.mean(axis=0).reshape(8, 8), atol=precision)
        page.click("[data-method=rollout]")
        hover(page, 2, 6)
        image = Image.fromarray(model_input(page).reshape(3, 32, 32).transpose(1, 2, 0).copy())
        expected = vitlab.load("cifar10").explain(image, method="rollout", token=(2, 6)).map
        np.testing.assert_allclose(shown(page)[0], expected, rtol=1e-3, atol=1e-6)
        page.click("[data-method=relevance]")
        page.select_option("#target", index=4)
        settle(page)
        expected = vitlab.load("cifar10").explain(image, method="relevance", target=3).map
        np.testing.assert_allclose(shown(page)[0], expected, rtol=1e-3, atol=1e-6)
        assert "vitlab explore" in page.inner_text("#own-reason")
        assert not page.locator("#paint-part").is_visible()
        page.click(".sample >> nth=1")
        settle(page)
        assert page.inner_text(".panel .name") == "1.png"


def test_the_tour_sets_the_controls(opened: Any) -> None:
    opened.click("#tour")
    steps = []
    while opened.locator("#tour-card").is_visible():
        settle(opened)
        pressed = opened.locator("#methods [aria-pressed=true]").get_attribute("data-method")
        steps.append((pressed, opened.locator("#layer").input_value(), shown(opened)))
        assert opened.inner_text("#tour-title").startswith(f"{len(steps)}/7")
        assert "{" not in opened.inner_text("#tour-text")
        assert opened.evaluate("document.activeElement.id") in ("tour-title", "tour-next")
        opened.keyboard.press("Tab")
        opened.click("#tour-next")
    assert [one[0] for one in steps] == ["attention"] * 5 + ["rollout", "relevance"]
    assert [one[1] for one in steps[1:5]] == ["0", "0", "3", "6"]
    assert opened.evaluate("document.activeElement.id") == "tour"


def test_registers_on_a_grid_that_is_not_square(chromium: Any, tmp_path: Path) -> None:
    torch.manual_seed(SEED)
    settings: Any = {"image_size": (20, 28), "patch_size": 4, "classes": 5, "registers": 2}
    model = vitlab.create_model("vit_test", **settings)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    half = (0.5, 0.5, 0.5)
    preprocessing = Preprocessing(size=(20, 28), mean=half, std=half)
    labels = [f"class {number}" for number in range(5)]
    save_bundle(tmp_path / "model", model, preprocessing=preprocessing, labels=labels)
    place = str(tmp_path / "model")
    with (
        serving("--quiet", "--deadline", "60", model=place) as server,
        opening(chromium, server.url) as page,
    ):
        tokens = page.locator(".tokens button")
        names = [text.split(" · ")[0] for text in tokens.all_inner_texts()]
        assert names == ["class token (read by the classifier)", "register 1", "register 2"]
        layer = int(page.locator("#layer").input_value())
        given = torch.from_numpy(model_input(page).reshape(3, 20, 28))[None]
        with torch.no_grad():
            images = normalise(given, half, half)
            expected = vitlab.load(place).model.attention(images)[layer][0].mean(0)
        box = page.locator(".stage").bounding_box()
        assert box["width"] / box["height"] == pytest.approx(28 / 20, rel=0.01)
        page.mouse.move(box["x"] + 5.5 / 7 * box["width"], box["y"] + 3.5 / 5 * box["height"])
        settle(page)
        found, grid = shown(page)
        assert grid == (5, 7)
        row = expected[3 + 3 * 7 + 5, 3:].reshape(5, 7)
        np.testing.assert_allclose(found, row, rtol=1e-4, atol=1e-6)
        page.mouse.move(0, 0)
        tokens.nth(2).click()
        settle(page)
        row = expected[2, 3:].reshape(5, 7)
        np.testing.assert_allclose(shown(page)[0], row, rtol=1e-4, atol=1e-6)


def test_a_convolutional_network_gives_the_reason(chromium: Any, tmp_path: Path) -> None:
    model = vitlab.create_model("cnn_tutorial", classes=10)
    half = (0.5, 0.5, 0.5)
    preprocessing = Preprocessing(size=(32, 32), mean=half, std=half)
    labels = [str(number) for number in range(10)]
    save_bundle(tmp_path / "model", model, preprocessing=preprocessing, labels=labels)
    with (
        serving("--quiet", "--deadline", "60", model=str(tmp_path / "model")) as server,
        opening(chromium, server.url) as page,
    ):
        assert "convolutional network" in page.inner_text("#reason")
        methods = page.locator("#methods button").all_inner_texts()
        assert methods == ["Grad-CAM"]
        assert len(shown(page)[0]) > 1
        for part in ("#place", "#heads-part", "#layers-part", "#tour"):
            assert not page.locator(part).is_visible()

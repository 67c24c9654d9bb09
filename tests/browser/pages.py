"""Helpers of the tests in a browser: pages that are opened, and what they show."""

import io
import os
from typing import Any

import numpy as np
import torch
from PIL import Image

import vitlab
from vitlab.data.images import normalise

MAP = "document.querySelector('.stage').shown"
SHOWN = f"(() => {{ const m = {MAP}; return m && [[...m.values], m.grid]; }})()"
NAME = "document.querySelector('.panel .name').textContent"
SEED = int.from_bytes(os.urandom(2), "little")


class opening:
    """A page that is ready; errors in it and requests to other origins fail the test."""

    def __init__(self, chromium: Any, address: str, **options: Any) -> None:
        wide = {"viewport": {"width": 1280, "height": 900}}
        self.context = chromium.new_context(**{**wide, **options})
        self.address = address
        self.faults: list[str] = []

    def __enter__(self) -> Any:
        page = self.context.new_page()
        origin = "/".join(self.address.split("/")[:3])
        page.on("pageerror", lambda error: self.note(str(error)))
        page.on("console", lambda message: self.note(message.text, message.type == "error"))
        page.on("request", lambda sent: self.note(sent.url, not sent.url.startswith(origin)))
        page.on("dialog", lambda dialog: self.note(f"dialog {dialog.message}"))
        page.goto(self.address)
        page.wait_for_selector("body[data-ready]", timeout=60_000)
        settle(page)
        return page

    def note(self, text: str, fault: bool = True) -> None:
        self.faults += [text] if fault else []

    def __exit__(self, *raised: object) -> None:
        self.context.close()
        if raised[0] is None:
            assert not self.faults


def settle(page: Any) -> None:
    """Wait until nothing is computed or drawn."""
    page.wait_for_timeout(40)
    page.wait_for_selector("body[aria-busy=false]", timeout=60_000)


def address(page: Any) -> str:
    """Address of the page, which follows the controls after a while."""
    page.wait_for_timeout(600)
    return str(page.evaluate("location.href"))


def shown(page: Any) -> tuple[np.ndarray, tuple[int, int]]:
    values, grid = page.evaluate(SHOWN)
    return np.array(values, np.float32).reshape(grid), tuple(grid)


def answers(page: Any) -> dict[str, float]:
    """Classes and percentages of the bars."""
    rows = page.eval_on_selector_all(
        ".bars li",
        "rows => rows.map(r => [r.querySelector('.label').textContent,"
        " r.querySelector('.value').textContent])",
    )
    return {label: float(value.split()[0]) for label, value in rows}


def model_input(page: Any) -> np.ndarray:
    """Pixels of the image with its paint."""
    found = page.evaluate("[...document.querySelector('.stage').panel.image.pixels]")
    return np.array(found, np.uint8)


def expected_attention(pixels: np.ndarray, layer: int) -> np.ndarray:
    classifier = vitlab.load("cifar10")
    preprocessing = classifier.preprocessing
    given = torch.from_numpy(pixels.reshape(3, 32, 32))[None]
    with torch.no_grad():
        images = normalise(given, preprocessing.mean, preprocessing.std)
        found: np.ndarray = classifier.model.attention(images, [layer])[layer][0].numpy()
    return found


def hover(page: Any, row: int, column: int, cells: int = 8) -> None:
    box = page.locator(".stage").first.bounding_box()
    x, y = ((place + 0.5) * box["width"] / cells for place in (column, row))
    page.mouse.move(box["x"] + x, box["y"] + y)
    settle(page)


def drop(page: Any, name: str, content: bytes) -> None:
    page.evaluate(
        """([name, bytes]) => {
          const transfer = new DataTransfer();
          transfer.items.add(new File([new Uint8Array(bytes)], name, {type: 'image/png'}));
          document.dispatchEvent(new DragEvent('drop', {dataTransfer: transfer, bubbles: true}));
        }""",
        [name, list(content)],
    )


def photo(seed: int, size: tuple[int, int] = (32, 32)) -> bytes:
    pixels = np.random.default_rng(seed).integers(0, 256, (*size, 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()

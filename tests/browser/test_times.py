"""Times that a visitor waits: from a dropped photograph to its first map, and for each patch."""

import io
from typing import Any

import numpy as np
import pytest
from PIL import Image

from browser.pages import SEED, opening
from serve.server import serving
from vitlab.machine.device import cores

pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
pytestmark = [pytest.mark.browser, pytest.mark.filterwarnings("ignore::DeprecationWarning")]

DROPS, HOVERS = 7, 41
DROP = """async ([name, bytes]) => {
  const stage = document.querySelector('.stage');
  const transfer = new DataTransfer();
  transfer.items.add(new File([new Uint8Array(bytes)], name, {type: 'image/jpeg'}));
  const before = stage.dataset.done;
  const shown = () => document.querySelector('.panel .name').textContent === name
    && stage.dataset.done !== before;
  const begun = performance.now();
  document.dispatchEvent(new DragEvent('drop', {dataTransfer: transfer, bubbles: true}));
  while (!shown()) await new Promise(requestAnimationFrame);
  return performance.now() - begun;
}"""
HOVER = """async hovers => {
  const stage = document.querySelector('.stage');
  const box = stage.getBoundingClientRect();
  const [rows, columns] = stage.panel.model.grid;
  const times = [];
  for (let i = 0; i < hovers; i += 1) {
    const before = stage.dataset.done;
    const begun = performance.now();
    stage.dispatchEvent(new PointerEvent('pointermove', {
      clientX: box.left + ((3 * i) % columns + 0.5) * box.width / columns,
      clientY: box.top + ((5 * i) % rows + 0.5) * box.height / rows, pointerType: 'mouse'}));
    while (stage.dataset.done === before) await new Promise(requestAnimationFrame);
    times.push(performance.now() - begun);
  }
  return times;
}"""


def photograph(seed: int) -> bytes:
    """A JPEG of 640 × 480 pixels."""
    small = np.random.default_rng(seed).integers(0, 256, (12, 16, 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(small).resize((640, 480), Image.Resampling.BICUBIC).save(file, "JPEG")
    return file.getvalue()


@pytest.mark.parametrize("model", ["cifar10", "vit_ti16"])
def test_times_are_reported(chromium: Any, model: str, capsys: pytest.CaptureFixture[str]) -> None:
    with (
        serving("--no-browser", model=model, by="explore", threads=cores()) as server,
        opening(chromium, server.url) as page,
    ):
        dropped = []
        for number in range(DROPS):
            given = [f"{number}.jpg", list(photograph(SEED + number))]
            dropped.append(page.evaluate(DROP, given))
            page.wait_for_selector("body[aria-busy=false]")
        hovered = page.evaluate(HOVER, HOVERS)
    assert len(hovered) == HOVERS
    assert min(hovered) > 0
    with capsys.disabled():
        print(
            f"\n  {model}: drop to first map {np.median(dropped):.0f} ms"
            f" (median of {DROPS}),"
            f" hover {np.median(hovered):.0f} ms (median of {HOVERS})"
        )

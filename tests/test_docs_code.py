"""Python blocks of the guides: each runs in a folder with small files, or says why it does not."""

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import vitlab

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
BLOCK = re.compile(r"^(?:<!-- not run: (.+) -->\n)?```python\n(.*?)^```$", re.M | re.S)
"""The reason why a block is not run, and its code."""
GUIDES = [page for page in sorted(DOCS.rglob("*.md")) if not {"learn", "zh"} & {*page.parts}]
LABELS = ["bird", "cat", "dog", "owl"]


def blocks_of(page: Path) -> list[tuple[str, str]]:
    return BLOCK.findall(page.read_text())


RUN = [page for page in GUIDES if any(not reason for reason, _ in blocks_of(page))]


def test_most_guides_run_and_reasons_are_given() -> None:
    reasons = [reason for page in GUIDES for reason, _ in blocks_of(page) if reason]
    assert len(RUN) >= 8
    assert all(len(reason.split()) >= 3 for reason in reasons)
    named = [path for reason in reasons for path in re.findall(r"tests/\S+\.py", reason)]
    assert all((ROOT / path).exists() for path in named)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files that the guides speak of: a run, an exported model, images and features."""
    folder = tmp_path_factory.mktemp("guides")
    random = np.random.default_rng(0)
    names = ["cat.jpg", "a.jpg", "b.png", "photo.jpg"]
    names += [f"pets/{part}/{label}/{i}.png" for part in ("train", "val", "test")
              for label in LABELS for i in range(3)]  # fmt: skip
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(random.integers(0, 256, (61, 53, 3), np.uint8)).save(folder / name)
    model = vitlab.create_model("vit_ti16", image_size=64, classes=len(LABELS)).eval()
    prepared = vitlab.Preprocessing(size=(64, 64), mean=(0.5,) * 3, std=(0.5,) * 3)
    vitlab.save_bundle(folder / "runs" / "pets", model, preprocessing=prepared, labels=LABELS)
    vitlab.export(folder / "runs" / "pets", output=folder / "pets.onnx")
    command = [sys.executable, "-m", "vitlab", "features", "runs/pets", "pets/val"]
    run_in(folder, [*command, "--output", "photos.npz"])
    return folder


def run_in(folder: Path, command: list[str]) -> None:
    done = subprocess.run(
        command,
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(ROOT / "src"), "MPLBACKEND": "agg"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("page", RUN, ids=lambda page: page.stem)
def test_blocks_run(page: Path, folder: Path) -> None:
    code = "\n".join(code for reason, code in blocks_of(page) if not reason)
    run_in(folder, [sys.executable, "-c", code])

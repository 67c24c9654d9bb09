"""Guides: quoted messages that exist, prediction without torch."""

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
WITHOUT_TORCH = """
import sys

class Block:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("torch", "einops", "jaxtyping", "huggingface_hub"):
            raise ImportError(name)

sys.meta_path.insert(0, Block())
from vitlab.cli.main import main
sys.exit(main())
"""


def strings_of(file: Path) -> list[str]:
    """Whole texts, and the fixed parts of texts that vary, in a module."""
    found = (node.value for node in ast.walk(ast.parse(file.read_text()))
             if isinstance(node, ast.Constant))  # fmt: skip
    return [value for value in found if isinstance(value, str)]


def test_quoted_messages_are_those_of_the_code() -> None:
    quoted = re.findall(r"^### (.+)$", (DOCS / "troubleshooting.md").read_text(), re.M)
    quoted.remove("The accuracy is low")  # a symptom without a message
    assert len(quoted) >= 15
    texts = [text for file in (ROOT / "src").rglob("*.py") for text in strings_of(file)]
    assert not [message for message in quoted if not any(message in text for text in texts)]


@pytest.mark.parametrize("model", ["cifar10", "file"])
def test_prediction_needs_no_torch(model: str, tmp_path: Path) -> None:
    image = tmp_path / "sky.png"
    Image.new("RGB", (40, 30), "skyblue").save(image)
    file = ROOT / "src" / "vitlab" / "bundled" / "vit_cifar.cifar10" / "model.onnx"
    chosen = file if model == "file" else model
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_TORCH, "predict", str(chosen), str(image), "--top", "1"],
        env=os.environ | {"PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "sky.png" in done.stdout

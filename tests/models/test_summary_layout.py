"""The summary in torchinfo's layout, compared with torchinfo itself."""

import random
import re
from typing import Any

import pytest

from vitlab import create_model, summary
from vitlab.models.summary_layout import torchinfo_layout

MODELS: list[tuple[str, dict[str, Any]]] = [
    ("vit_seed", {}),
    ("vit_test", {"pool": "mean", "registers": 3}),
    ("vit_test", {"image_size": (16, 24), "qkv_bias": False}),
    ("vit_cifar", {"depth": 3}),
    ("resnet18_cifar_64", {}),
]


@pytest.mark.parametrize(("name", "changes"), MODELS)
def test_counts_are_those_of_torchinfo(name: str, changes: dict[str, Any]) -> None:
    torchinfo = pytest.importorskip("torchinfo")
    model = create_model(name, **changes).eval()
    size = model.config.image_size
    batch = random.randrange(2, 5)
    sides = (size, size) if isinstance(size, int) else size
    found = summary(model, input_size=(batch, 3, *sides))
    theirs = torchinfo.summary(model, input_size=found.input_size, verbose=0, depth=3)
    assert found.torchinfo_macs == theirs.total_mult_adds
    assert found.output_bytes == theirs.total_output_bytes
    assert found.parameters == theirs.total_params


def test_the_rows_are_those_of_torchinfo() -> None:
    torchinfo = pytest.importorskip("torchinfo")
    model = create_model("vit_seed")
    ours = torchinfo_layout(summary(model, input_size=(2, 3, 32, 32))).splitlines()
    theirs = str(torchinfo.summary(model, input_size=(2, 3, 32, 32), verbose=0)).splitlines()

    def cells(lines: list[str]) -> list[list[str]]:
        """Rows of layers, without torchinfo's number of each and without identities."""
        rows = lines[: lines.index(next(line for line in lines if line.startswith("Total")))]
        texts = [re.sub(r": \d-\d+", "", row) for row in rows if "Identity" not in row]
        return [re.split(r" {2,}", text.strip()) for text in texts if not text.startswith("=")]

    assert cells(ours) == cells(theirs)
    assert "Input size (MB): 0.02" in ours
    assert "Forward/backward pass size (MB): 0.87" in ours
    assert "Params size (MB): 30.76" in ours
    assert "Estimated Total Size (MB): 31.65" in ours
    assert "Total mult-adds, as torchinfo counts them: 18.92 M" in ours
    assert "Total mult-adds, computed: 75.59 M" in ours
    assert any(line.startswith("torchinfo's 18.92 M is not the cost") for line in ours)

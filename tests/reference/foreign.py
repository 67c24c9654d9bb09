"""What every conversion must show: their logits from our model, and their tensors back."""

import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import vitlab
from reference.random_weights import randomise

TOLERANCE = 2e-5
"""Float32: both sides sum the same products in another order (fused attention, fused layers).

It is relative to the largest output where that is above one, as rounding errors are."""


def converted(
    theirs: nn.Module, folder: Path, *, format: str, **changes: Any
) -> vitlab.VisionTransformer:
    """Our model from the state of theirs, through a file that holds nothing but tensors."""
    randomise(theirs)
    path = folder / "theirs.pth"
    torch.save(theirs.state_dict(), path)
    model = vitlab.load_weights(path, **changes)
    assert model.source.format == format
    return model


def without_note(path: Path) -> Path:
    """The same archive as others write it: tensors, and no word of ours about them."""
    with zipfile.ZipFile(path, "a") as archive:
        assert archive.comment.startswith(b"vitlab ")
        archive.comment = b""
    return path


def same_logits(
    ours: nn.Module,
    theirs: Callable[[Tensor], Tensor],
    image_size: tuple[int, int],
    channels: int = 3,
) -> None:
    torch.manual_seed(1)
    images = torch.randn(2, channels, *image_size)
    with torch.no_grad():
        expected, found = theirs(images), ours(images)
    assert expected.std() > 1e-2, "a silent model proves nothing"
    largest = max(1.0, float(expected.abs().max()))
    torch.testing.assert_close(found, expected, rtol=0.0, atol=TOLERANCE * largest)


def same_back(
    ours: vitlab.VisionTransformer, theirs: nn.Module, folder: Path, *, format: str
) -> None:
    """Saved in their format, every tensor is theirs bit for bit, and no other is there."""
    pickled = folder / ("back.bin" if format == "huggingface" else "back.pth")
    for path in (pickled, folder / "back.safetensors"):
        vitlab.save_weights(ours, path, format=format)
    state = torch.load(pickled, weights_only=True)
    expected = theirs.state_dict()
    assert set(state) == set(expected)
    for name, tensor in expected.items():
        assert torch.equal(state[name], tensor), name
    theirs.load_state_dict(state, strict=True)
    again = vitlab.load_weights(folder / "back.safetensors")
    assert again.config == ours.config
    for name, tensor in ours.state_dict().items():
        assert torch.equal(again.state_dict()[name], tensor), name

"""What one training came to: `result.json` in its folder, by which it is known to be finished."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from vitlab.config import from_dict, parse_json, to_dict
from vitlab.errors import ConfigError
from vitlab.io.files import write_json

FILE = "result.json"
TRAIN_ACCURACY = "train_accuracy"
"""The probe that tells how many of the images it learnt from a model tells right."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Result:
    """One arm with one seed."""

    arm: str
    seed: int
    value: float | None
    """What is compared: a share of images that were told right; None where there are no labels."""
    held_out: float | None
    """Accuracy of the images held out from training; None where none were."""
    images: int
    """That the value is about."""
    right: str = ""
    """Which of them were told right: a bit for each, the first in the highest of a hex digit."""
    draws: tuple[float, ...] = ()
    """With few shots, the accuracy of each draw of them: the same draws for all arms of a seed."""
    parameters: int = 0
    forward: int = 0
    """FLOPs of one image through the model."""
    steps: int = 0
    images_seen: int = 0
    pflops: float = 0.0
    """Of the training, 10^15 FLOPs."""
    minutes: float = 0.0
    """Wall time of the training."""
    probes: dict[str, list[float]] = field(default_factory=dict)
    """What else was measured, by name."""

    def __post_init__(self) -> None:
        if self.images < 0:
            raise ConfigError(f"{self.images} images; valid: at least 0")
        digits = (self.images + 3) // 4
        if self.right and not re.fullmatch(f"[0-9a-f]{{{digits}}}", self.right):
            raise ConfigError(f"'right' is not {digits} hexadecimal digits")

    @property
    def bits(self) -> list[bool] | None:
        """Whether each image was told right; None where that is not known."""
        return unpack(self.right, self.images) if self.right else None


def pack(right: Sequence[bool]) -> str:
    """Bits as hexadecimal digits."""
    padded = [*right, *[False] * (-len(right) % 4)]
    digits = (padded[i : i + 4] for i in range(0, len(padded), 4))
    return "".join(f"{8 * a + 4 * b + 2 * c + d:x}" for a, b, c, d in digits)


def unpack(text: str, count: int) -> list[bool]:
    """What `pack` was given."""
    return [bool(int(text[i // 4], 16) >> (3 - i % 4) & 1) for i in range(count)]


def read_result(folder: Path) -> Result | None:
    """What the training in a folder came to; None of one that has not ended."""
    path = folder / FILE
    if not path.is_file():
        return None
    try:
        return from_dict(Result, parse_json(path.read_text()))
    except (ValueError, OSError) as error:
        raise ConfigError(
            f"{path}: damaged ({error}); remove {folder} to train it again"
        ) from error


def write_result(folder: Path, result: Result) -> None:
    """Store it, whole or not at all."""
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / FILE, to_dict(result))

"""Folders with iPhone photographs."""

from pathlib import Path

import pytest

from data.picture_files import encoded, picture

pillow_heif = pytest.importorskip("pillow_heif")


def heic(path: Path, seed: int, **options: object) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    heif = pillow_heif.from_pillow(picture(seed, 64, 96))
    heif.save(path, quality=-1, **options)
    return path


def photographs(root: Path, *, heics: int, others: int) -> Path:
    """Two classes with HEIC photographs, PNG and AVIF images."""
    for number in range(2 * (heics + others)):
        place = root / "ab"[number % 2]
        if number < 2 * heics:
            heic(place / f"IMG_{number}.HEIC", number)
        else:
            kind = ("PNG", "AVIF")[number % 4 // 2]
            place.mkdir(parents=True, exist_ok=True)
            file = place / f"{number}.{kind.lower()}"
            file.write_bytes(encoded(picture(number, 64, 96), kind))
    return root

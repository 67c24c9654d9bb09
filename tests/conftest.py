"""Shapes are checked at run time in every test: jaxtyping with beartype, over the library."""

import os
from collections.abc import Iterator
from pathlib import Path

import jaxtyping
import pytest
from jaxtyping import install_import_hook

from data.server import Served, serving
from optional_data import optional_data

ROOT = Path(__file__).resolve().parents[1]

# Tiny models on a machine of many cores spend their time waking threads.
os.environ.setdefault("OMP_NUM_THREADS", str(min(2, os.cpu_count() or 1)))

# Exporting takes seconds, and every trained model would be; tests of it say that they want it.
os.environ.setdefault("VITLAB_ONNX", "0")

# Not over `cli`: Typer hands its commands more than their annotations say.
parts = {path.stem for path in (ROOT / "src" / "vitlab").glob("[a-z]*")} - {"cli"}
install_import_hook([f"vitlab.{part}" for part in sorted(parts)], "typechecker.check")


@pytest.fixture(scope="session")
def shared() -> Path:
    """Folder of optional reference outputs, images and weights; tests are skipped without it."""
    return optional_data()


# Trainings compute the same numbers on every machine, those in other processes too.
os.environ["VITLAB_BFLOAT16"] = "0"


@pytest.fixture(autouse=True)
def narrow_vectors(monkeypatch: pytest.MonkeyPatch) -> None:
    """The usual engine is the same on every machine."""
    monkeypatch.setattr("vitlab.machine.device.wide_vectors", lambda: False)


@pytest.fixture
def no_type_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a user sees: outside the tests, nothing checks shapes before the library does."""
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)


@pytest.fixture
def served() -> Iterator[Served]:
    """A server with nothing on it yet."""
    with serving() as started:
        yield started

"""Shapes are checked at run time in every test: jaxtyping with beartype, over the whole package."""

import os
from pathlib import Path

import pytest
from jaxtyping import install_import_hook

ROOT = Path(__file__).resolve().parents[1]

# Tiny models on a machine of many cores spend their time waking threads.
os.environ.setdefault("OMP_NUM_THREADS", str(min(2, os.cpu_count() or 1)))

install_import_hook("vitlab", "beartype.beartype")


@pytest.fixture(scope="session")
def shared() -> Path:
    """Reference outputs, images and weights beside the project, where somebody put them there."""
    folder = ROOT.parent / "shared"
    if not folder.is_dir():
        pytest.skip("no ../shared beside the project")
    return folder

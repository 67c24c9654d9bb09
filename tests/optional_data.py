"""The folder of optional reference outputs, images and weights."""

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


def optional_data() -> Path:
    """Folder named by VITLAB_TEST_DATA; without the variable, a test is skipped if there is none.

    A variable that names no folder fails the test: it would be skipped unnoticed.
    """
    given = os.environ.get("VITLAB_TEST_DATA")
    folder = Path(given).absolute() if given else ROOT.parent / "shared"
    if folder.is_dir():
        return folder
    if given:
        pytest.fail(f"VITLAB_TEST_DATA={given}: no such folder")
    pytest.skip("VITLAB_TEST_DATA is not set")

"""What every test may ask for."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def data() -> Path:
    """The folder of real data for tests, which is not part of the project."""
    beside = Path(__file__).parents[2] / "shared" / "data"
    folder = Path(os.environ.get("EMBSTORE_DATA", beside))
    if not folder.is_dir():
        pytest.skip(f"no test data at {folder}; name its place in EMBSTORE_DATA")
    return folder

"""What the tests of several studies ask for."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.models import tiny


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.save("bert", tmp_path_factory.mktemp("models") / "tiny-bert")

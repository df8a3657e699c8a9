"""Acting as a user without rights, where root runs the tests."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

NOBODY = 65534


@contextmanager
def without_privileges() -> Iterator[None]:
    """Act as a user who may do nothing special."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)


@contextmanager
def reachable_folder() -> Iterator[Path]:
    """Make a temporary folder that every user reaches, which those of pytest are not."""
    with tempfile.TemporaryDirectory() as top:
        folder = Path(top) / "folder"
        folder.mkdir()
        Path(top).chmod(0o755)
        yield folder
        for path in (folder, *folder.rglob("*")):
            if path.is_dir():
                path.chmod(0o755)

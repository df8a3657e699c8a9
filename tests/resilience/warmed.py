"""What the server of forks imports, so that each process that is to be killed has all loaded and done once."""

from __future__ import annotations

import errno
import gc
import os
import tempfile
from multiprocessing import reduction
from pathlib import Path
from typing import Any

import embstore.store.layout
import embstore.store.storage.objects
from tests.resilience import running  # noqa: F401  a forked process looks for its function there
from tests.resilience.scene import make_reference
from tests.resilience.scenes import LARGE_NBYTES, SCENES

embstore.store.layout.SHARD_NBYTES = 1
embstore.store.storage.objects.LARGE_NBYTES = LARGE_NBYTES
os.fsync = os.fstat  # what is written outlasts a kill anyway
_receive = reduction.recvfds


def _receive_or_go_on(*arguments: Any) -> list[int]:
    """Receive what a process asks for; of one that was killed while it asked, tell the server to take the next.

    The server handles no other error than this one, so that such a kill would end it and all that it serves.
    """
    try:
        return _receive(*arguments)
    except EOFError:
        raise OSError(errno.ECONNABORTED, "killed while it asked for a process") from None


reduction.recvfds = _receive_or_go_on
with tempfile.TemporaryDirectory() as _folder:

    def _reference(suffix: str, dtype: str = "float32") -> object:
        return make_reference(Path(tempfile.mkdtemp(dir=_folder), f"store{suffix}"), dtype=dtype)

    for _scene in [scene for scene in SCENES.values() if scene.warm]:
        _path = Path(tempfile.mkdtemp(dir=_folder))
        _scene.before(_path, _reference)  # type: ignore[arg-type]
        _scene.work(_path)
gc.freeze()

"""What the server of forks imports, so that each process that is to be killed has all loaded and done once."""

from __future__ import annotations

import gc
import os
import tempfile
from pathlib import Path

import embstore.store.layout
import embstore.store.storage.objects
from tests.resilience import running  # noqa: F401  a forked process looks for its function there
from tests.resilience.scene import make_reference
from tests.resilience.scenes import LARGE_NBYTES, SCENES

embstore.store.layout.SHARD_NBYTES = 1
embstore.store.storage.objects.LARGE_NBYTES = LARGE_NBYTES
os.fsync = os.fstat  # what is written outlasts a kill anyway
with tempfile.TemporaryDirectory() as _folder:

    def _reference(suffix: str, dtype: str = "float32") -> object:
        return make_reference(Path(tempfile.mkdtemp(dir=_folder), f"store{suffix}"), dtype=dtype)

    for _scene in [scene for scene in SCENES.values() if scene.warm]:
        _path = Path(tempfile.mkdtemp(dir=_folder))
        _scene.before(_path, _reference)  # type: ignore[arg-type]
        _scene.work(_path, False)
gc.freeze()

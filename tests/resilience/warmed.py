"""What the server of forks imports, so that each process that is to be killed has all loaded and done once."""

from __future__ import annotations

import gc
import os
import tempfile
from pathlib import Path
from unittest import mock

import embstore as es
from tests.resilience import steps  # noqa: F401  a forked process looks for its function there
from tests.resilience.scene import BACKENDS, make_plan

with (
    tempfile.TemporaryDirectory() as _folder,
    mock.patch("embstore.store.layout.SHARD_NBYTES", 1),
    mock.patch.object(os, "fsync", os.fstat),
):
    for _suffix in BACKENDS:
        for _dtype in ("float32", "int8"):
            for _repair in (False, True):
                es.extract(make_plan(dtype=_dtype), Path(_folder, f"{_dtype}{_suffix}"), repair=_repair)
gc.freeze()

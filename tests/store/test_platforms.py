"""Stores are read without POSIX, as on Windows, and without the packages of the extras."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from embstore.store.opening import open_store
from tests.store.example import example
from tests.store_making import make_store

# In a process of its own: hide what Windows does not have, before anything is imported that might use it.
WITHOUT_POSIX = """
import sys
for name in ("fcntl", "resource", "pwd", "grp", "termios"):
    sys.modules[name] = None
import mmap, os, polars  # polars finds out about the CPU by a Linux call
for name in (
    "posix_fadvise", "posix_fallocate", "pread", "preadv", "pwrite", "pwritev", "sysconf", "statvfs",
    "sched_getaffinity", "O_CLOEXEC", "O_DIRECTORY", "O_NOFOLLOW",
):
    if hasattr(os, name):
        delattr(os, name)
for name in dir(mmap):
    if name.startswith(("MADV_", "MAP_", "PROT_")):
        delattr(mmap, name)
"""
READ = """
import numpy as np
import embstore as es

store = es.open(sys.argv[1])
rows = np.arange(store.n_rows)[::-3]
layer = store.layers[-1]
np.save(sys.argv[2], store.vectors(rows, layers="last"))
scanned = np.concatenate([block.copy() for _, block in store.scan(layer, block_rows=100)])
assert np.array_equal(scanned[rows], store.vectors(rows, layers=layer), equal_nan=True)
assert len(store.select(words="bank").table()) == len(store.select(words="bank"))
assert es.verify(sys.argv[1]).ok
"""


@pytest.mark.parametrize(("suffix", "dtype"), [(".zarr", "int8"), (".h5", "float16")])
@pytest.mark.quick(1)
def test_reading_without_posix(tmp_path: Path, suffix: str, dtype: str) -> None:
    made = example(dtype=dtype)
    path = made.make(tmp_path / f"s{suffix}").path
    out = tmp_path / "vectors.npy"
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_POSIX + READ, str(path), str(out)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    np.testing.assert_array_equal(np.load(out), made.values[-1, np.arange(700)[::-3]])


CODE = """
import sys
from importlib.abc import MetaPathFinder

EXTRAS = {"torch", "transformers", "tokenizers", "safetensors", "spacy", "sentencex", "scipy", "sklearn", "faiss",
          "matplotlib", "duckdb", "pyarrow", "gensim", "accelerate", "obstore", "starlette"}

class Absent(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in EXTRAS:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Absent())
import embstore as es
from embstore.errors import MissingPackageError

store = es.open(sys.argv[1])
bank = store.select(words=sys.argv[3], layers=[0, -1])
assert bank.vectors().shape == (2, len(bank.rows), store.hidden_size), bank.vectors().shape
assert bank.table().height == len(bank.rows) > 0
assert sum(1 for _ in store.scan(0)) > 0
assert es.verify(sys.argv[1]).ok
es.export(store, sys.argv[2])
try:
    es.geometry(store)
except MissingPackageError as error:
    print(error)
"""


@pytest.mark.slow
def test_a_store_is_read_without_the_extras(tmp_path: Path) -> None:
    make_store(tmp_path / "store.zarr")
    word = open_store(tmp_path / "store.zarr").index.words[0]
    arguments = [str(tmp_path / "store.zarr"), str(tmp_path / "copy.h5"), word]
    done = subprocess.run([sys.executable, "-c", CODE, *arguments], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, 'this needs the package torch: pip install "embstore[extract]"\n'), (
        done.stderr
    )

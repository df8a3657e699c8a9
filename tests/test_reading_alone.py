"""A store is read where no package of the extras is installed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from embstore.store.opening import open_store
from tests.store_making import make_store

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

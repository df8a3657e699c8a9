"""Dimension scales of an HDF5 store: what they are attached to, and that embstore never reads them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest

from embstore.store import open_store, verify
from tests.store.example import example

DAMAGE = """
import json
import sys
import numpy as np
from embstore.errors import EmbstoreError
from embstore.store import open_store, verify

path, step = sys.argv[1], int(sys.argv[2])
content = open(path, "rb").read()
wanted = open_store(path).vectors([0, 650, 3], layers=3)
start, opened, missed = content.index(b"GCOL"), 0, []
size = int.from_bytes(content[start + 8 : start + 16], "little")
for offset in range(0, size, step):
    for change in (lambda old: bytes(byte ^ 0xFF for byte in old), lambda old: bytes([old[0] ^ 4]) + old[1:]):
        part = content[start + offset : start + min(offset + step, size)]
        with open(path, "r+b") as file:
            file.seek(start + offset)
            file.write(change(part))
        try:
            np.testing.assert_array_equal(open_store(path).vectors([0, 650, 3], layers=3), wanted)
            opened += 1
        except EmbstoreError:
            pass
        if verify(path).ok:
            missed.append(offset)
        with open(path, "r+b") as file:
            file.seek(start + offset)
            file.write(part)
print(json.dumps([size, opened, missed]))
"""


@pytest.mark.slow
def test_embstore_never_reads_the_heap_of_references(tmp_path: Path) -> None:
    """In a process of its own: the library can loop for ever over a damaged heap."""
    path = example(rows=700).make(tmp_path / "s.h5").path
    command = [sys.executable, "-c", DAMAGE, str(path), "16"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, cwd=Path(__file__).parents[2])
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [4096, 512, []]


def test_a_store_whose_heap_is_lost_is_read(tmp_path: Path) -> None:
    made = example(rows=700)
    path = made.make(tmp_path / "s.h5").path
    content = path.read_bytes()
    start = content.index(b"GCOL")
    path.write_bytes(content[:start] + b"\xff" * 4096 + content[start + 4096 :])
    np.testing.assert_array_equal(open_store(path).vectors([0, 650], layers=3)[0], made.values[1, [0, 650]])
    assert [fault.part for fault in verify(path).faults] == ["HDF5 structure"]


def test_every_dimension_is_attached_to_its_scale(tmp_path: Path) -> None:
    path = example(rows=700, dtype="int8").make(tmp_path / "s.h5").path
    scales: set[str] = set()
    used: set[str] = set()

    def visit(name: str, node: h5py.Group | h5py.Dataset) -> None:
        if isinstance(node, h5py.Dataset) and node.is_scale:
            scales.add(node.name)
        elif isinstance(node, h5py.Dataset):
            for axis, dim in enumerate(node.dims):
                assert len(dim) == 1, name
                assert h5py.h5ds.is_attached(node.id, dim[0].id, axis), name
                assert dim[0].name == "/occurrence" or dim[0].parent == node.parent, name
                used.add(dim[0].name)

    with h5py.File(path) as file:
        file.visititems(visit)
        assert used == scales
        assert len(scales) == 5 + 2 + 3 + 2 * 2  # of the root, types, sentences and two label columns
        assert {name for name in scales if file[name].id.get_storage_size()} == {"/layer"}
        references = file["layer"].attrs["REFERENCE_LIST"]
        assert [(file[target].name, axis) for target, axis in references] == [
            (name, 0) for name in ("/center", "/hidden_states", "/scale")
        ]
        references = file["occurrence"].attrs["REFERENCE_LIST"]
        assert {(file[target].name, axis) for target, axis in references} == {
            *((name, 1) for name in ("/hidden_states", "/scale")),
            *((f"/occurrences/{name}", 0) for name in ("type", "sentence", "position", "subwords")),
            *((f"/occurrences/labels/{name}", 0) for name in ("nothing", "upos")),
            ("/types/occurrences", 0),
        }


def test_two_files_have_the_same_bytes(tmp_path: Path) -> None:
    one, other = (example(rows=700).make(tmp_path / f"{name}.h5").path.read_bytes() for name in "ab")
    assert one == other

"""A tiny store, byte for byte: what any reader of the format may rely on."""

from __future__ import annotations

import hashlib
import json
import struct
from pathlib import Path

import google_crc32c
import h5py
import numpy as np

from embstore.store import Index, Metadata, StoreWriter, Strings, Text, create_store
from tests.store.example import all_files

ABSENT = b"\xff" * 8


def tiny(path: Path) -> Path:
    """Two rows of two features at layers 0 and 4: "a" and "b" in the sentence "a b"."""
    index = Index.of(
        type=np.array([0, 1], np.int32),
        sentence=np.array([0, 0]),
        position=np.array([0, 1], np.int32),
        subwords=np.array([1, 2], np.int16),
        words=Strings.of(["a", "b"]),
        text=Text.of_words([["a", "b"]]),
        indptr=np.array([0, 2]),
        source=np.array([0]),
    )
    metadata = Metadata(
        n_rows=2,
        layers=(0, 4),
        hidden_size=2,
        dtype="float16",
        partition_rows=512,
        model={"name": "m"},
        corpus={"name": "c"},
        extraction={"unit": "word"},
    )
    create_store(path, metadata=metadata, index=index)
    with StoreWriter(path) as writer:
        writer.write(0, {"hidden_states": np.array([[[1, 2], [3, 4]], [[5, 6], [7, 8]]], np.float16)})
        writer.finish()
    return path


def payload() -> bytes:
    """Each layer: two rows, then 254 rows of NaN, to fill a chunk of 256."""
    nan = struct.pack("<e", float("nan")) * (254 * 2)
    return struct.pack("<4e", 1, 2, 3, 4) + nan + struct.pack("<4e", 5, 6, 7, 8) + nan


def record(crc: int) -> bytes:
    """The commit of a partition of two rows: their number, the CRC32C, and its complement."""
    return struct.pack("<Q2I", 2, crc, crc ^ 0xFFFFFFFF)


def test_zarr_files(tmp_path: Path) -> None:
    files = all_files(tiny(tmp_path / "s.zarr"))
    pairs = struct.pack("<2Q", 0, 1024) + ABSENT * 2 + struct.pack("<2Q", 1024, 1024) + ABSENT * 2
    shard = payload() + pairs + struct.pack("<I", google_crc32c.value(pairs))
    data = {name: content for name, content in files.items() if not name.endswith("zarr.json")}
    assert data == {
        "hidden_states/c/0/0/0": shard,
        "layer/c/0": struct.pack("<2i", 0, 4),
        "occurrences/type/c/0": struct.pack("<2i", 0, 1),
        "occurrences/sentence/c/0": struct.pack("<2q", 0, 0),
        "occurrences/position/c/0": struct.pack("<2i", 0, 1),
        "occurrences/subwords/c/0": struct.pack("<2h", 1, 2),
        "types/form_offsets/c/0": struct.pack("<3q", 0, 1, 2),
        "types/form_bytes/c/0": b"ab",
        "types/indptr/c/0": struct.pack("<3q", 0, 1, 2),
        "types/occurrences/c/0": struct.pack("<2q", 0, 1),
        "sentences/text_offsets/c/0": struct.pack("<2q", 0, 3),
        "sentences/text_bytes/c/0": b"a b",
        "sentences/start/c/0": struct.pack("<i", 0),
        "sentences/stop/c/0": struct.pack("<i", 3),
        "sentences/word_indptr/c/0": struct.pack("<2q", 0, 2),
        "sentences/subword_indptr/c/0": struct.pack("<2q", 0, 2),
        "words/start/c/0": struct.pack("<2i", 0, 2),
        "words/stop/c/0": struct.pack("<2i", 1, 3),
        "words/subword/c/0": struct.pack("<2i", 0, 1),
        "words/subwords/c/0": struct.pack("<2h", 1, 1),
        "subwords/id/c/0": struct.pack("<2i", -1, -1),
        "sentences/indptr/c/0": struct.pack("<2q", 0, 2),
        "sentences/source/c/0": struct.pack("<q", 0),
        "commits/c/0/0": record(google_crc32c.value(shard)),
    }


def _sha256(document: object) -> str:
    text = json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()


def test_zarr_json(tmp_path: Path) -> None:
    files = all_files(tiny(tmp_path / "s.zarr"))
    attribute = json.loads(files["zarr.json"])["attributes"]["embstore"]
    provenance = {name: value for name, value in attribute.items() if name not in ("arrays", "crc32c", "software")}
    provenance |= {"model": {}, "corpus": {}}  # all but the names
    assert json.loads(files["hidden_states/zarr.json"]) == {
        "zarr_format": 3,
        "node_type": "array",
        "shape": [2, 2, 2],
        "data_type": "float16",
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [2, 512, 2]}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "fill_value": "NaN",
        "codecs": [
            {
                "name": "sharding_indexed",
                "configuration": {
                    "chunk_shape": [1, 256, 2],
                    "codecs": [{"name": "bytes", "configuration": {"endian": "little"}}],
                    "index_codecs": [{"name": "bytes", "configuration": {"endian": "little"}}, {"name": "crc32c"}],
                    "index_location": "end",
                },
            }
        ],
        "attributes": {"embstore_dtype": "float16", "embstore_fingerprint": _sha256(provenance)},
        "dimension_names": ["layer", "occurrence", "feature"],
    }
    assert attribute["arrays"]["types/form_bytes"] == {"shape": [2], "crc32c": google_crc32c.value(b"ab")}
    stated = attribute.pop("crc32c")
    canonical = json.dumps(attribute, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    assert stated == google_crc32c.value(canonical.encode())
    assert attribute["format_version"] == 2


def test_hdf5_places(tmp_path: Path) -> None:
    path = tiny(tmp_path / "s.h5")
    content = path.read_bytes()
    with h5py.File(path) as file:
        chunks: list[tuple[tuple[int, ...], int, int]] = []
        file["hidden_states"].id.chunk_iter(lambda c: chunks.append((c.chunk_offset, c.byte_offset, c.size)))
        spans = {name: (file[name].id.get_offset(), file[name].nbytes) for name in ("commits", "checksum")}
        attribute = json.loads(file.attrs["embstore"])
        assert file["occurrences/type"].dims[0].label == "occurrence"
    assert [offset for offset, _, _ in chunks] == [(0, 0, 0), (1, 0, 0)]
    rows = [content[place : place + size] for _, place, size in chunks]
    assert rows == [struct.pack("<4e", 1, 2, 3, 4), struct.pack("<4e", 5, 6, 7, 8)]
    assert all(place % 8 == 0 for _, place, _ in chunks)
    start, size = spans["commits"]
    assert content[start : start + size] == record(google_crc32c.value(b"".join(rows)))
    frozen = bytearray(content)
    changing = [*spans.values(), *((place, size) for _, place, size in chunks)]
    for start, size in sorted(changing, reverse=True):
        del frozen[start : start + size]
    start, size = spans["checksum"]
    assert content[start : start + size] == struct.pack("<I", google_crc32c.value(bytes(frozen)))
    assert attribute == json.loads(all_files(tiny(tmp_path / "s.zarr"))["zarr.json"])["attributes"]["embstore"]

"""Defects of stores, of Zarr and of HDF5."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import google_crc32c
import h5py
import numpy as np

from embstore.store import open_store
from embstore.store.zarr.format import ABSENT
from tests.hostile_files.defects import (
    NOT_JSON,
    NOT_NUMBERS,
    Change,
    Defect,
    at_each_place,
    column,
    edited,
    flip,
    patched,
    put,
    removed,
    shifted,
)

Attribute = dict[str, Any]
SUFFIXES = {"zarr": ".zarr", "hdf5": ".h5"}
SHARD, COMMITS, NODE = "hidden_states/c/0/1/0", "commits/c/0/0", "hidden_states/zarr.json"
INDEX_NBYTES = 3 * 16 + 4  # of a shard of three layers of one chunk


def change_metadata(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Edit the metadata of a Zarr store and make its checksum right again."""
    root = json.loads((path / "zarr.json").read_text())
    attribute = root["attributes"]["embstore"]
    change(attribute)
    attribute.pop("crc32c")
    canonical = json.dumps(attribute, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    attribute["crc32c"] = google_crc32c.value(canonical.encode())
    (path / "zarr.json").write_text(json.dumps(root))


def change_attribute(file: h5py.File, change: Callable[[dict[str, Any]], object]) -> None:
    """Edit the metadata of an HDF5 store and make its checksum right again."""
    attribute = json.loads(file.attrs["embstore"])
    change(attribute)
    attribute.pop("crc32c")
    text = json.dumps(attribute, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    file.attrs["embstore"] = np.bytes_(json.dumps({**attribute, "crc32c": google_crc32c.value(text.encode())}))


def rewrite_column(path: Path, name: str, change: Callable[[np.ndarray], np.ndarray]) -> None:
    """Change a column of a store and all that vouches for it."""
    if path.suffix == ".h5":
        with h5py.File(path, "r+") as file:
            column = change(file[name][...])
            file[name][...] = column
            crc = google_crc32c.value(column.tobytes())
            change_attribute(file, lambda attribute: attribute["arrays"][name].update(crc32c=crc))
        return
    shard = path / name / "c/0"
    dtype = open_store(path).index.arrays().get(name, np.empty(0, np.int64)).dtype
    column = change(np.frombuffer(shard.read_bytes(), np.int32 if name == "layer" else dtype))
    shard.write_bytes(column.tobytes())
    crc = google_crc32c.value(column.tobytes())
    change_metadata(path, lambda attribute: attribute["arrays"][name].update(crc32c=crc))


def with_metadata(change: Callable[[Attribute], object]) -> Change:
    """A defect of the metadata, whose checksum is right."""

    def make(path: Path) -> None:
        if path.suffix == ".zarr":
            change_metadata(path, change)
            return
        with h5py.File(path, "r+") as file:
            change_attribute(file, change)

    return make


METADATA: dict[str, Callable[[Attribute], object]] = {
    **{
        f"{name} is {value}": lambda a, name=name, given=given: a.update({name: given})
        for name in ("n_rows", "hidden_size", "partition_rows")
        for value, given in NOT_NUMBERS.items()
        if value != "NaN"
    },
    **{
        f"{name} is missing": lambda a, name=name: a.pop(name)
        for name in ("n_rows", "layers", "dtype", "model", "corpus", "extraction", "dropped", "arrays", "software")
    },
    "n_rows needs 2^24 partitions": lambda a: a.update(n_rows=2**32, partition_rows=256),
    "hidden_size is 2^39": lambda a: a.update(hidden_size=2**39),
    "partition_rows is 255": lambda a: a.update(partition_rows=255),
    "no layers": lambda a: a.update(layers=[]),
    "a layer twice": lambda a: a.update(layers=[0, 3, 3]),
    "layers that descend": lambda a: a.update(layers=[5, 3, 0]),
    "a negative layer": lambda a: a.update(layers=[-1, 3, 5]),
    "10^6 layers": lambda a: a.update(layers=list(range(10**6))),
    "one layer more": lambda a: a.update(layers=[0, 3, 4, 5]),
    "layers are a number": lambda a: a.update(layers=7),
    "a layer is a text": lambda a: a.update(layers=["x"]),
    "an unknown dtype": lambda a: a.update(dtype="float63"),
    "a dtype of numpy": lambda a: a.update(dtype=">f2"),
    "a dtype of other width": lambda a: a.update(dtype="float32"),
    "dtype is a number": lambda a: a.update(dtype=2),
    "the model is null": lambda a: a.update(model=None),
    "the model's name is a number": lambda a: a["model"].update(name=7),
    "the unit is a list": lambda a: a["extraction"].update(unit=[]),
    "dropped without a reason": lambda a: a.update(dropped=[{}]),
    "dropped is a number": lambda a: a.update(dropped=7),
    "arrays are a list": lambda a: a.update(arrays=[]),
    "no arrays": lambda a: a.update(arrays={}),
    "an array is missing": lambda a: a["arrays"].pop("occurrences/type"),
    "the array that finds a word's rows is missing": lambda a: a["arrays"].pop("types/indptr"),
    **{
        f"an array is named {name[:9]!r}": lambda a, name=name: a["arrays"].update(
            {name: {"shape": [3], "crc32c": 0}}
        )
        for name in ("../../secret", "/etc/passwd", "", "labels/../x", "occurrences/labels/.x", "a" * 5000, "\0", "x")
    },
    **{
        f"an array's shape is {name}": lambda a, shape=shape: a["arrays"]["occurrences/type"].update(shape=shape)
        for name, shape in {
            "negative": [-5], "2^62": [2**62], "10^400": [10**400], "of two axes": [300, 1], "a text": "many",
            "null": None, "one less": [299], "nothing": [],
        }.items()
    },
    "an array's checksum is a text": lambda a: a["arrays"]["occurrences/type"].update(crc32c="x"),
    "an array's checksum is missing": lambda a: a["arrays"]["occurrences/type"].pop("crc32c"),
    "an array is null": lambda a: a["arrays"].update({"occurrences/type": None}),
    "format version 2": lambda a: a.update(format_version=2),
    "format version 2^62": lambda a: a.update(format_version=2**62),
    "format version 0": lambda a: a.update(format_version=0),
    "format version is a text": lambda a: a.update(format_version="1"),
    "format version is missing": lambda a: a.pop("format_version"),
}  # fmt: skip

# Columns whose checksums are right and whose content is not.
COLUMNS: dict[str, tuple[str, Callable[[np.ndarray], np.ndarray]]] = {
    "a type that does not exist": ("occurrences/type", column(5, 10**6)),
    "a negative type": ("occurrences/type", column(5, -2)),
    "other types": ("occurrences/type", lambda array: array[::-1].copy()),
    "a sentence that does not exist": ("occurrences/sentence", column(5, 10**9)),
    "a negative sentence": ("occurrences/sentence", column(5, -1)),
    "sentences out of order": ("occurrences/sentence", column(0, 3)),
    "a negative position": ("occurrences/position", column(5, -1)),
    "negative subwords": ("occurrences/subwords", column(5, -7)),
    "a label that does not exist": ("occurrences/labels/upos", column(5, 99)),
    "a label below -1": ("occurrences/labels/upos", column(5, -2)),
    "names of labels beyond the end": ("labels/upos/name_offsets", column(1, 2**40)),
    "names of labels out of order": ("labels/upos/name_offsets", lambda array: array[::-1].copy()),
    "a name of a label not UTF-8": ("labels/upos/name_bytes", column(0, 0xFF)),
    "spellings before the beginning": ("types/form_offsets", column(1, -5)),
    "spellings out of order": ("types/form_offsets", lambda array: np.sort(array)[::-1].copy()),
    "spellings that begin late": ("types/form_offsets", column(0, 1)),
    "spellings that end early": ("types/form_offsets", column(-1, 3)),
    "a spelling not UTF-8": ("types/form_bytes", column(0, 0xFF)),
    "a spelling twice": ("types/form_bytes", lambda array: np.full_like(array, ord("x"))),
    "rows of types beyond the end": ("types/indptr", column(1, 10**9)),
    "rows of types out of order": ("types/indptr", lambda array: array[::-1].copy()),
    "a row of a type that does not exist": ("types/occurrences", column(0, 10**12)),
    "a negative row of a type": ("types/occurrences", column(0, -1)),
    "rows of a type out of order": ("types/occurrences", lambda array: array[::-1].copy()),
    "texts beyond the end": ("sentences/text_offsets", column(0, 2**62)),
    "texts out of order": ("sentences/text_offsets", lambda array: array[::-1].copy()),
    "a text not UTF-8": ("sentences/text_bytes", column(0, 0x80)),
    "rows of sentences before the beginning": ("sentences/indptr", column(2, -(2**62))),
    "rows of sentences out of order": ("sentences/indptr", lambda array: array[::-1].copy()),
    "a negative source": ("sentences/source", column(0, -3)),
    "a layer that is not that of the metadata": ("layer", column(0, 9)),
}


def on_both() -> list[Defect]:
    """Metadata and columns, the same on both backends."""
    found = []
    for kind in SUFFIXES:
        changes = {name: change for name, change in METADATA.items() if kind == "zarr" or name != "10^6 layers"}
        found += [Defect(kind, f"metadata, {name}", with_metadata(change)) for name, change in changes.items()]
        for name, (array, change) in COLUMNS.items():
            make = lambda path, array=array, change=change: rewrite_column(path, array, change)  # noqa: E731
            found.append(Defect(kind, f"column, {name}", make))
    return found


# -------------------------------------------------------------------------------------------------------------- Zarr


def with_index(change: Callable[[np.ndarray], object]) -> Change:
    """A defect of the index of a shard, whose checksum is right."""

    def changed(data: bytearray) -> None:
        pairs = np.frombuffer(data[-INDEX_NBYTES:-4], "<u8").reshape(3, 2).copy()
        change(pairs)
        put(data, -INDEX_NBYTES, pairs.tobytes() + google_crc32c.value(pairs.tobytes()).to_bytes(4, "little"))

    return patched(SHARD, changed)


def _set(row: int, part: int, value: int) -> Callable[[np.ndarray], object]:
    return lambda pairs: pairs.__setitem__((row, part), value)


def with_records(change: Callable[[np.ndarray], object]) -> Change:
    """A defect of the commit records."""

    def changed(data: bytearray) -> bytes:
        records = np.frombuffer(bytes(data), "<u8").reshape(-1, 2).copy()
        change(records)
        return records.tobytes()

    return patched(COMMITS, changed)


def _codec(node: dict[str, Any]) -> dict[str, Any]:
    configuration: dict[str, Any] = node["codecs"][0]["configuration"]
    return configuration


ARRAY: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "shape of 2^62": (lambda n: n.update(shape=[3, 2**62, 16]), "refused"),
    "shape of one row less": (lambda n: n.update(shape=[3, 299, 16]), "refused"),
    "a negative shape": (lambda n: n.update(shape=[3, -300, 16]), "refused"),
    "shape is missing": (lambda n: n.pop("shape"), "refused"),
    "chunk shape 0": (lambda n: _codec(n).update(chunk_shape=[1, 0, 16]), "refused"),
    "a negative chunk shape": (lambda n: _codec(n).update(chunk_shape=[1, -256, 16]), "refused"),
    "a chunk shape of 2^62": (lambda n: _codec(n).update(chunk_shape=[1, 2**62, 16]), "refused"),
    "a chunk shape of one axis": (lambda n: _codec(n).update(chunk_shape=[1]), "refused"),
    "a chunk shape of texts": (lambda n: _codec(n).update(chunk_shape=["1", "256", "16"]), "refused"),
    "a shard shape of 2^62": (
        lambda n: n["chunk_grid"]["configuration"].update(chunk_shape=[3, 2**62, 16]),
        "refused",
    ),
    "chunk_grid is missing": (lambda n: n.pop("chunk_grid"), "refused"),
    "an unknown chunk grid": (lambda n: n["chunk_grid"].update(name="irregular"), "same"),
    "float64": (lambda n: n.update(data_type="float64"), "refused"),
    "bfloat16": (lambda n: n.update(data_type="bfloat16"), "refused"),
    "big-endian": (lambda n: _codec(n)["codecs"][0]["configuration"].update(endian="big"), "other"),
    "no codecs": (lambda n: n.update(codecs=[]), "refused"),
    "codecs are missing": (lambda n: n.pop("codecs"), "refused"),
    "an unknown codec": (lambda n: n.update(codecs=[{"name": "pickle"}]), "refused"),
    "an unknown inner codec": (lambda n: _codec(n).update(codecs=[{"name": "numcodecs.pickle"}]), "refused"),
    "gzip over bytes that are not": (
        lambda n: _codec(n)["codecs"].append({"name": "gzip", "configuration": {"level": 1}}),
        "refused",
    ),
    "the index at the start": (lambda n: _codec(n).update(index_location="start"), "refused"),
    "an index without a checksum": (lambda n: _codec(n)["index_codecs"].pop(), "refused"),
    "keys of Zarr 2": (lambda n: n.update(chunk_key_encoding={"name": "v2"}), "other"),
    "keys with dots": (lambda n: n["chunk_key_encoding"]["configuration"].update(separator="."), "other"),
    "Zarr 2": (lambda n: n.update(zarr_format=2), "same"),
    "a group": (lambda n: n.update(node_type="group"), "same"),
    "another fill value": (lambda n: n.update(fill_value=0), "same"),
    "other names of dimensions": (lambda n: n.update(dimension_names=["a", "b", "c"]), "same"),
    "an unknown key": (lambda n: n.update(more=[[[]]]), "same"),
}


def of_zarr() -> list[Defect]:
    found = []
    for name, text in NOT_JSON.items():
        found.append(Defect("zarr", f"zarr.json is {name}", patched("zarr.json", lambda _, text=text: text)))
        found.append(Defect("zarr", f"{NODE} is {name}", patched(NODE, lambda _, text=text: text)))
    root: dict[str, Callable[[dict[str, Any]], object]] = {
        "has no attributes": lambda node: node.pop("attributes"),
        "has attributes of a list": lambda node: node.update(attributes=[]),
        "has an attribute that is a number": lambda node: node["attributes"].update(embstore=7),
        "has NaN in it": lambda node: node["attributes"]["embstore"].update(x=float("nan")),
        "has half a surrogate pair": lambda node: node["attributes"]["embstore"].update(x="\ud800"),
        "has a key of 4 MB": lambda node: node["attributes"]["embstore"].update({"x" * 2**22: 1}),
        "has another checksum": lambda node: node["attributes"]["embstore"].update(crc32c=1),
        "has a checksum of text": lambda node: node["attributes"]["embstore"].update(crc32c="x"),
        "has no checksum": lambda node: node["attributes"]["embstore"].pop("crc32c"),
        "has another layer": lambda node: node["attributes"]["embstore"].update(layers=[0, 3, 6]),
    }
    found += [Defect("zarr", f"zarr.json {name}", edited("zarr.json", change)) for name, change in root.items()]
    found.append(
        Defect(
            "zarr",
            "zarr.json has its attribute twice, the second a list",
            patched("zarr.json", lambda data: data.rstrip()[:-1] + b', "attributes": []}'),
        )
    )
    found.append(Defect("zarr", "zarr.json begins with a mark of byte order",
                        patched("zarr.json", lambda data: b"\xef\xbb\xbf" + data), "same"))  # fmt: skip
    found.append(
        Defect("zarr", "zarr.json is of Zarr 2", edited("zarr.json", lambda n: n.update(zarr_format=2)), "same")
    )
    found += [
        Defect("zarr", f"{NODE}, {name}", edited(NODE, change), reads)  # type: ignore[arg-type]
        for name, (change, reads) in ARRAY.items()
    ]
    return [*found, *_shards(), *_records(), *_columns(), *_places()]


def _shards() -> list[Defect]:
    size = 3 * 256 * 16 * 2
    made: dict[str, tuple[Change, str]] = {
        "is missing": (removed(SHARD), "refused"),
        "is empty": (patched(SHARD, lambda data: b""), "refused"),
        "is one byte": (patched(SHARD, lambda data: b"x"), "refused"),
        "is zeros": (patched(SHARD, lambda data: bytes(len(data))), "refused"),
        "is ones": (patched(SHARD, lambda data: b"\xff" * len(data)), "refused"),
        "is cut in half": (patched(SHARD, lambda data: data[: len(data) // 2]), "refused"),
        "is cut by a byte": (patched(SHARD, lambda data: data[:-1]), "refused"),
        "is without its index": (patched(SHARD, lambda data: data[:-INDEX_NBYTES]), "refused"),
        "is its index alone": (patched(SHARD, lambda data: data[-INDEX_NBYTES:]), "refused"),
        "is longer by a byte": (patched(SHARD, lambda data: data + b"x"), "refused"),
        "has bytes before its index": (
            patched(SHARD, lambda data: data[:-INDEX_NBYTES] + bytes(64) + data[-INDEX_NBYTES:]),
            "same",
        ),
        "has its index twice": (patched(SHARD, lambda data: data + data[-INDEX_NBYTES:]), "same"),
        "has another checksum of its index": (patched(SHARD, lambda data: flip(data, -1)), "refused"),
        "has an index that was flipped": (patched(SHARD, lambda data: flip(data, -20)), "refused"),
        "has a flipped bit": (patched(SHARD, lambda data: flip(data, 40)), "other"),
        "has its halves exchanged": (patched(SHARD, shifted), "refused"),
        "has something in its padding": (patched(SHARD, lambda data: put(data, 256 * 16 * 2 - 8, b"12345678")), "same"),
        "is that of the other partition": (
            lambda path: (path / SHARD).write_bytes((path / "hidden_states/c/0/0/0").read_bytes()),
            "other",
        ),
    }
    indexes: dict[str, tuple[Callable[[np.ndarray], object], str]] = {
        "exchanges two layers": (lambda pairs: pairs.__setitem__([0, 1], pairs[[1, 0]]), "other"),
        "has a layer twice": (lambda pairs: pairs.__setitem__(1, pairs[0]), "other"),
        "overlaps": (lambda pairs: pairs.__setitem__((1, 0), pairs[1, 0] - 16), "other"),
        "is not aligned": (lambda pairs: pairs.__setitem__((1, 0), pairs[1, 0] - 3), "other"),
        "leaves a layer out": (lambda pairs: pairs.__setitem__(2, ABSENT), "other"),
        "leaves all layers out": (lambda pairs: pairs.fill(ABSENT), "other"),
        "points into itself": (_set(2, 0, size - 8192 + 8), "refused"),
        "points to its end": (_set(2, 0, size), "refused"),
        "points far beyond": (_set(0, 0, 2**40), "refused"),
        "points to 2^63": (_set(0, 0, 2**63), "refused"),
        "points to 2^64 - 8192, which overflows": (_set(0, 0, 2**64 - 8192), "refused"),
        "has chunks of no bytes": (_set(0, 1, 0), "refused"),
        "has chunks of one byte less": (_set(0, 1, 8191), "refused"),
        "has chunks of 2^62 bytes": (_set(0, 1, 2**62), "refused"),
        "leaves out an offset alone": (_set(0, 0, ABSENT), "refused"),
        "leaves out a size alone": (_set(0, 1, ABSENT), "refused"),
    }
    found = [Defect("zarr", f"a shard {name}", make, reads) for name, (make, reads) in made.items()]  # type: ignore[arg-type]
    return found + [
        Defect("zarr", f"the index of a shard {name}", with_index(change), reads)  # type: ignore[arg-type]
        for name, (change, reads) in indexes.items()
    ]


def _records() -> list[Defect]:
    made: dict[str, tuple[Change, str]] = {
        "are missing": (removed(COMMITS), "refused"),
        "are empty": (patched(COMMITS, lambda data: b""), "refused"),
        "are cut": (patched(COMMITS, lambda data: data[:-1]), "refused"),
        "are one too many": (patched(COMMITS, lambda data: data + data[:16]), "refused"),
        "are zeros": (patched(COMMITS, lambda data: bytes(len(data))), "refused"),
        "are text": (patched(COMMITS, lambda data: b"x" * len(data)), "refused"),
        "count a row too many": (with_records(lambda records: records.__setitem__((1, 0), 45)), "refused"),
        "count 2^62 rows": (with_records(lambda records: records.__setitem__((1, 0), 2**62)), "refused"),
        "count no row": (with_records(lambda records: records.__setitem__((0, 0), 0)), "refused"),
        "are torn": (with_records(lambda records: records.__setitem__((1, 1), records[1, 1] | 2**63)), "refused"),
        "have no complement": (
            with_records(lambda records: records.__setitem__((1, 1), records[1, 1] % 2**32)),
            "refused",
        ),
        "have the checksum of another partition": (
            with_records(lambda records: records.__setitem__((1, 1), records[0, 1])),
            "same",
        ),
        "are exchanged": (with_records(lambda records: records.__setitem__([0, 1], records[[1, 0]])), "refused"),
        "have no zarr.json": (removed("commits/zarr.json"), "same"),
    }
    return [Defect("zarr", f"the records {name}", make, reads) for name, (make, reads) in made.items()]  # type: ignore[arg-type]


def _columns() -> list[Defect]:
    name = "occurrences/subwords"
    nodes: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
        "has a shape of 2^62": (lambda node: node.update(shape=[2**62]), "refused"),
        "has chunk shape 0": (
            lambda node: node["chunk_grid"]["configuration"].update(chunk_shape=[0]),
            "refused",
        ),
        "is of float64": (lambda node: node.update(data_type="float64"), "refused"),
        "is big-endian": (lambda node: node["codecs"][0]["configuration"].update(endian="big"), "other"),
        "has an unknown codec": (lambda node: node.update(codecs=[{"name": "pickle"}]), "refused"),
        "is a group": (lambda node: node.update(node_type="group"), "refused"),
    }
    files: dict[str, tuple[Change, str]] = {
        "is missing": (removed(f"{name}/c/0"), "refused"),
        "is empty": (patched(f"{name}/c/0", lambda data: b""), "refused"),
        "is cut by a byte": (patched(f"{name}/c/0", lambda data: data[:-1]), "refused"),
        "is longer by a byte": (patched(f"{name}/c/0", lambda data: data + b"x"), "same"),
        "is twice as long": (patched(f"{name}/c/0", lambda data: data * 2), "same"),
        "has a flipped bit": (patched(f"{name}/c/0", lambda data: put(data, 2, b"\x09")), "other"),
        "has no node": (removed(f"{name}/zarr.json"), "refused"),
        "has no folder": (removed(name), "refused"),
    }
    found = [
        Defect("zarr", f"the node of {name} {what}", edited(f"{name}/zarr.json", change), reads)  # type: ignore[arg-type]
        for what, (change, reads) in nodes.items()
    ]
    found += [
        Defect("zarr", f"the node of {name} is {what}", patched(f"{name}/zarr.json", lambda _, text=text: text))
        for what, text in NOT_JSON.items()
    ]
    return found + [Defect("zarr", f"{name} {what}", make, reads) for what, (make, reads) in files.items()]  # type: ignore[arg-type]


def _places() -> list[Defect]:
    files = ["", "zarr.json", NODE, SHARD, COMMITS, "types/form_bytes/c/0", "types/form_bytes/zarr.json"]
    found = at_each_place("zarr", dict.fromkeys(files, "refused"))
    for name in ("hidden_states", "occurrences"):
        found.append(
            Defect("zarr", f"a file in the place of the folder {name}", lambda path, name=name: _file(path / name))
        )
    return found


def _file(path: Path) -> None:
    import shutil

    shutil.rmtree(path)
    path.write_bytes(b"x")


# -------------------------------------------------------------------------------------------------------------- HDF5


def in_file(change: Callable[[h5py.File], object]) -> Change:
    """A defect that the HDF5 library writes."""

    def make(path: Path) -> None:
        with h5py.File(path, "r+") as file:
            change(file)

    return make


def rewritten(file: h5py.File, name: str, **options: Any) -> None:
    """Write an array again, with other options of the library."""
    values = file[name][...]
    del file[name]
    file.create_dataset(name, data=values, **options)


def _external(file: h5py.File, name: str) -> None:
    shape, dtype = file[name].shape, file[name].dtype
    secret = Path(file.filename).with_name("secret")
    secret.write_bytes(b"root:x:0:0" * 10_000)
    del file[name]
    file.create_dataset(name, shape, dtype, external=[(str(secret), 0, int(np.prod(shape)) * dtype.itemsize)])


def _virtual(file: h5py.File, name: str) -> None:
    shape, dtype = file[name].shape, file[name].dtype
    with h5py.File(Path(file.filename).with_name("source.h5"), "w") as other:
        other.create_dataset("x", data=file[name][...])
    layout = h5py.VirtualLayout(shape, dtype)
    layout[...] = h5py.VirtualSource(Path(file.filename).with_name("source.h5"), "x", shape)
    del file[name]
    file.create_virtual_dataset(name, layout)


def _linked(link: Callable[[str], object]) -> Callable[[h5py.File, str], None]:
    def change(file: h5py.File, name: str) -> None:
        file.move(name, "elsewhere")
        file[name] = link(file.filename)

    return change


def _references(file: h5py.File, name: str) -> None:
    shape = file[name].shape
    del file[name]
    file.create_dataset(name, shape, h5py.ref_dtype)


def _as_type(dtype: str) -> Callable[[h5py.File, str], None]:
    return lambda file, name: rewritten(file, name, dtype=dtype)


OF_ARRAYS: dict[str, tuple[Callable[[h5py.File, str], object], str]] = {
    "is external": (_external, "refused"),
    "is virtual": (_virtual, "refused"),
    "is a soft link": (_linked(lambda name: h5py.SoftLink("/elsewhere")), "refused"),
    "is a soft link to itself": (_linked(lambda name: h5py.SoftLink("/hidden_states")), "refused"),
    "is an external link": (_linked(lambda name: h5py.ExternalLink(name, "/elsewhere")), "refused"),
    "is missing": (lambda file, name: file.__delitem__(name), "refused"),
    "is a group": (lambda file, name: (file.__delitem__(name), file.create_group(name)), "refused"),
    "is a type": (lambda file, name: (file.__delitem__(name), file.__setitem__(name, np.dtype("i4"))), "refused"),
    "has no elements": (
        lambda file, name: (file.__delitem__(name), file.__setitem__(name, h5py.Empty("f2"))),
        "refused",
    ),
    "holds references": (_references, "refused"),
    "is of float64": (_as_type("f8"), "refused"),
    "is big-endian": (lambda file, name: rewritten(file, name, dtype=file[name].dtype.newbyteorder(">")), "refused"),
    "is of texts": (
        lambda file, name: (
            lambda shape: (file.__delitem__(name), file.create_dataset(name, shape, h5py.string_dtype()))
        )(file[name].shape),
        "refused",
    ),
    "is shorter": (
        lambda file, name: (lambda values: (file.__delitem__(name), file.__setitem__(name, values)))(file[name][:-1]),
        "refused",
    ),
    "has another axis": (
        lambda file, name: (lambda values: (file.__delitem__(name), file.__setitem__(name, values)))(
            file[name][...][None]
        ),
        "refused",
    ),
    "is in compressed chunks": (lambda file, name: rewritten(file, name, chunks=True, compression="gzip"), "same"),
    "is in chunks with checksums": (lambda file, name: rewritten(file, name, chunks=True, fletcher32=True), "same"),
    "is in shuffled chunks": (lambda file, name: rewritten(file, name, chunks=True, shuffle=True), "same"),
    "is in chunks": (lambda file, name: rewritten(file, name, chunks=True), "same"),
    "is contiguous": (lambda file, name: rewritten(file, name), "same"),
}


def _metadata(value: Any) -> Change:
    return in_file(lambda file: file.attrs.__setitem__("embstore", value))


def of_hdf5() -> list[Defect]:
    found = []
    for name in ("hidden_states", "occurrences/subwords", "commits"):
        for what, (change, reads) in OF_ARRAYS.items():
            make = in_file(lambda file, change=change, name=name: change(file, name))
            found.append(Defect("hdf5", f"{name} {what}", make, reads))  # type: ignore[arg-type]
    for name, text in NOT_JSON.items():
        if len(text) < 60_000 and b"\0" not in text:
            found.append(Defect("hdf5", f"its metadata are {name}", _metadata(text)))
    values = {
        "a number": 7, "an array": np.arange(3), "texts": ["{}", "{}"], "empty": h5py.Empty("S1"),
        "bytes that are not UTF-8": np.bytes_(b"\xff\xfe"),
    }  # fmt: skip
    found += [Defect("hdf5", f"its metadata are {name}", _metadata(value)) for name, value in values.items()]
    found.append(Defect("hdf5", "its metadata are missing", in_file(lambda file: file.attrs.__delitem__("embstore"))))
    found.append(Defect("hdf5", "its metadata have another layer", _metadata_with(layers=[0, 3, 6])))
    return [*found, *_structures(), *_bytes(), *_sparse(), *at_each_place("hdf5", {"": "refused"})]


def _metadata_with(**fields: Any) -> Change:
    return in_file(
        lambda file: file.attrs.__setitem__("embstore", json.dumps(json.loads(file.attrs["embstore"]) | fields))
    )


def _structures() -> list[Defect]:
    made: dict[str, tuple[Callable[[h5py.File], object], str]] = {
        "a loop of groups": (lambda file: file.__setitem__("occurrences/loop", file["/"]), "same"),
        "a group that is a link": (
            lambda file: (file.move("occurrences", "x"), file.__setitem__("occurrences", h5py.SoftLink("/x"))),
            "refused",
        ),
        "a group of another file": (
            lambda file: (file.move("types", "x"), file.__setitem__("types", h5py.ExternalLink(file.filename, "/x"))),
            "refused",
        ),
        "a group that is missing": (lambda file: file.__delitem__("occurrences"), "refused"),
        "an array in the place of a group": (
            lambda file: (file.__delitem__("occurrences"), file.__setitem__("occurrences", np.arange(3))),
            "refused",
        ),
        "an array too many": (lambda file: file.__setitem__("more", np.arange(3)), "same"),
        "another checksum": (lambda file: file["checksum"].__setitem__((), 1), "same"),
        "no checksum": (lambda file: file.__delitem__("checksum"), "refused"),
        "a torn record": (lambda file: file["commits"].__setitem__((1, 1), 2**63), "refused"),
        "a record of a row too many": (lambda file: file["commits"].__setitem__((1, 0), 45), "refused"),
        "a record of 2^62 rows": (lambda file: file["commits"].__setitem__((1, 0), 2**62), "refused"),
        "records of zeros": (lambda file: file["commits"].__setitem__(..., 0), "refused"),
        "a record of another partition": (
            lambda file: file["commits"].__setitem__((1, 1), file["commits"][0, 1]),
            "same",
        ),
        "another number": (lambda file: file["hidden_states"].__setitem__((1, 5, 3), 7), "other"),
        "a column of another number": (lambda file: file["occurrences/subwords"].__setitem__(5, 9), "other"),
    }
    return [Defect("hdf5", name, in_file(change), reads) for name, (change, reads) in made.items()]  # type: ignore[arg-type]


def _bytes() -> list[Defect]:
    made: dict[str, tuple[Callable[[bytearray], bytes | bytearray | None], str]] = {
        "nothing": (lambda data: b"", "refused"),
        "one byte": (lambda data: data[:1], "refused"),
        "the signature alone": (lambda data: data[:8], "refused"),
        "half a superblock": (lambda data: data[:20], "refused"),
        "cut at a tenth": (lambda data: data[: len(data) // 10], "refused"),
        "cut in half": (lambda data: data[: len(data) // 2], "refused"),
        "cut by a byte": (lambda data: data[:-1], "refused"),
        "zeros": (lambda data: bytes(len(data)), "refused"),
        "zeros for its first 64 bytes": (lambda data: put(data, 0, bytes(64)), "refused"),
        "another signature": (lambda data: put(data, 1, b"HDG"), "refused"),
        "another version of the superblock": (lambda data: put(data, 8, b"\x63"), "refused"),
        "another size of offsets": (lambda data: put(data, 9, b"\x03"), "refused"),
        "ones for its first 512 bytes": (lambda data: put(data, 8, b"\xff" * 504), "refused"),
        "512 bytes before it": (lambda data: bytes(512) + data, "same"),
        "a byte after it": (lambda data: data + b"x", "same"),
        "halves that are exchanged": (shifted, "refused"),
        "text": (lambda data: b"not at all " * 100, "refused"),
        "a Zarr node": (lambda data: b'{"zarr_format": 3, "node_type": "group"}', "refused"),
        "a zip": (lambda data: b"PK\x03\x04" + bytes(100), "refused"),
    }
    return [Defect("hdf5", f"{name}", patched("", change), reads) for name, (change, reads) in made.items()]  # type: ignore[arg-type]


def _sparse() -> list[Defect]:
    def without_chunks(file: h5py.File) -> None:
        del file["hidden_states"]
        file.create_dataset("hidden_states", (3, 300, 16), "<f2", chunks=(1, 64, 16), fillvalue=np.nan)

    def huge_chunk(file: h5py.File) -> None:
        del file["hidden_states"]
        file.create_dataset("hidden_states", (3, 300, 16), "<f2", chunks=(3, 300, 16), maxshape=(None,) * 3)
        attribute = json.loads(file.attrs["embstore"])
        assert attribute["n_rows"] == 300

    def huge_attribute(file: h5py.File) -> None:
        file.attrs["more"] = np.zeros(7000, np.int64)

    return [
        Defect("hdf5", "no chunk of its vectors", in_file(without_chunks), "other"),
        Defect("hdf5", "one chunk of all layers that is left out", in_file(huge_chunk), "other"),
        Defect("hdf5", "an attribute too many", in_file(huge_attribute), "same"),
        Defect("hdf5", "a hole at its end", lambda path: os.truncate(path, path.stat().st_size + 2**20), "same"),
    ]  # fmt: skip


def all_defects() -> list[Defect]:
    return [*on_both(), *of_zarr(), *of_hdf5()]

"""Defects of what is not a store: search indexes, probes, models, word vectors, corpora, tables and caches."""

from __future__ import annotations

import io
import json
import pickle
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import polars as pl

from embstore.store.storage.files import crc32c
from tests.analysis.test_index_files import CRAFTED, DAMAGE, crafted
from tests.corpus.test_errors import BAD_FILES
from tests.hostile_files.defects import (
    DEVICE,
    NOT_JSON,
    NOT_NUMBERS,
    Change,
    Defect,
    Reads,
    at_each_place,
    edited,
    flip,
    patched,
    put,
    removed,
    shifted,
)
from tests.probes.test_saved import DAMAGES
from tests.vectors.test_files import BINARY, NPY, TEXT, npy

INDEX = "hidden_states/.index/x"


# ---------------------------------------------------------------------------------------------------- search indexes


def _faiss(build: Callable[[], Any]) -> Change:
    """A defect: another index of faiss, which the metadata vouch for."""

    def make(path: Path) -> None:
        faiss.write_index(build(), str(path / INDEX / "index.faiss"))
        crafted(path / INDEX)

    return make


def _filled(size: int, rows: int, metric: int = faiss.METRIC_INNER_PRODUCT) -> Any:
    index = faiss.IndexFlat(size, metric)
    index.add(np.ones((rows, size), np.float32))
    return index


def _of_faiss(change: Callable[[bytearray], bytes | bytearray | None]) -> Change:
    """A defect of the bytes of the index, which the metadata vouch for."""

    def make(path: Path) -> None:
        patched(f"{INDEX}/index.faiss", change)(path)
        crafted(path / INDEX)

    return make


def of_indexes() -> list[Defect]:
    rows = 809
    built: dict[str, Callable[[], Any]] = {
        "another dimension": lambda: _filled(5, rows),
        "another metric": lambda: _filled(12, rows, faiss.METRIC_L2),
        "no rows": lambda: _filled(12, 0),
        "a row less": lambda: _filled(12, rows - 1),
        "a row more": lambda: _filled(12, rows + 1),
        "an index that is not trained": lambda: faiss.index_factory(12, "IVF8,Flat"),
    }
    changes: dict[str, Callable[[bytearray], bytes | bytearray | None]] = {
        "nothing": lambda data: b"",
        "four bytes": lambda data: data[:4],
        "half of it": lambda data: data[: len(data) // 2],
        "a pickle": lambda data: pickle.dumps([1]),
        "zeros": lambda data: bytes(len(data)),
        "an unknown type": lambda data: put(data, 0, b"XXXX"),
        "a dimension of 2^31 - 1": lambda data: put(data, 4, b"\xff\xff\xff\x7f"),
        "a negative dimension": lambda data: put(data, 4, b"\xff\xff\xff\xff"),
        "2^62 rows": lambda data: put(data, 8, (2**62).to_bytes(8, "little")),
        "-1 rows": lambda data: put(data, 8, b"\xff" * 8),
    }
    fields: dict[str, Callable[[dict[str, Any]], object]] = {
        "another store": lambda fields: fields["settings"].update(digest="0" * 64),
        "another layer": lambda fields: fields["settings"].update(layer=7),
        "another size": lambda fields: fields["settings"].update(hidden_size=13),
        "another name": lambda fields: fields.update(name="y"),
        "a newer format": lambda fields: fields.update(format_version=9),
        "an unknown metric": lambda fields: fields["settings"].update(metric="manhattan"),
        "no settings": lambda fields: fields.pop("settings"),
        "a key too many": lambda fields: fields.update(more=1),
    }
    found = [
        Defect("index", f"damaged, {name}", lambda path, make=make: make(path / INDEX))
        for name, make in {**DAMAGE, **CRAFTED}.items()
    ]
    found += [Defect("index", f"vouched for, {name}", _faiss(build)) for name, build in built.items()]
    found += [Defect("index", f"vouched for, {name}", _of_faiss(change)) for name, change in changes.items()]
    for name, change in fields.items():
        make = lambda path, change=change: crafted(path / INDEX, change)  # noqa: E731
        found.append(Defect("index", f"metadata of {name}", make))
    ignored = {
        "an unknown parameter": lambda path: crafted(path / INDEX, lambda fields: fields.update(parameters={"x": 3})),
    }
    found += [Defect("index", f"vouched for, {name}", make, "same", harmless=True) for name, make in ignored.items()]
    for name, text in NOT_JSON.items():
        found.append(Defect("index", f"metadata are {name}", patched(f"{INDEX}/index.json", lambda _, text=text: text)))
    files: dict[str, Reads] = {f"{INDEX}/{name}": "refused" for name in ("index.faiss", "index.json", "space.npz")}
    return found + at_each_place("index", files)


# ------------------------------------------------------------------------------------------------- probes and models


def _header(change: Callable[[dict[str, Any]], object]) -> Change:
    """A defect of the header of a file of safetensors."""

    def changed(data: bytearray) -> bytes:
        size = int.from_bytes(data[:8], "little")
        header = json.loads(data[8 : 8 + size])
        change(header)
        text = json.dumps(header).encode()
        return len(text).to_bytes(8, "little") + text + data[8 + size :]

    return patched("", changed)


def _first(header: dict[str, Any]) -> dict[str, Any]:
    entry: dict[str, Any] = header[min(name for name in header if name != "__metadata__")]
    return entry


def _overlap(header: dict[str, Any]) -> None:
    names = sorted((name for name in header if name != "__metadata__"), key=lambda name: header[name]["data_offsets"])
    header[names[1]]["data_offsets"][0] -= 4


TENSORS: dict[str, Callable[[dict[str, Any]], object]] = {
    "tensors that overlap": _overlap,
    "a tensor beyond the end": lambda header: _first(header).update(data_offsets=[0, 2**40]),
    "a tensor that ends before it begins": lambda header: _first(header).update(data_offsets=[8, 0]),
    "a negative offset": lambda header: _first(header).update(data_offsets=[-4, 4]),
    "an offset of text": lambda header: _first(header).update(data_offsets=["0", "4"]),
    "a shape of 2^62": lambda header: _first(header).update(shape=[2**62, 4]),
    "a negative shape": lambda header: _first(header).update(shape=[-1]),
    "another shape": lambda header: _first(header).update(shape=[1]),
    "an unknown dtype": lambda header: _first(header).update(dtype="F63"),
    "another dtype": lambda header: _first(header).update(dtype="I64"),
    "no dtype": lambda header: _first(header).pop("dtype"),
    "a tensor that is missing": lambda header: header.pop(max(header)),
    "a tensor that is null": lambda header: header.update({"x": None}),
}
RAW: dict[str, Callable[[bytearray], bytes | bytearray | None]] = {
    "nothing": lambda data: b"",
    "one byte": lambda data: b"x",
    "a header of 2^62 bytes": lambda data: put(data, 0, (2**62).to_bytes(8, "little")),
    "a header of 2^64 - 1 bytes": lambda data: put(data, 0, b"\xff" * 8),
    "a header of no bytes": lambda data: put(data, 0, bytes(8)),
    "a header that is longer by a byte": lambda data: put(data, 0, bytes([data[0] + 1])),
    "a header that is not UTF-8": lambda data: put(data, 12, b"\xff"),
    "a header of nested lists": lambda data: (200_000).to_bytes(8, "little") + b"[" * 200_000,
    "half of it": lambda data: data[: len(data) // 2],
    "a byte less": lambda data: data[:-1],
    "a byte more": lambda data: data + b"x",
    "a pickle": lambda data: pickle.dumps([1]),
    "a zip": lambda data: b"PK\x03\x04" + bytes(200),
    "zeros": lambda data: bytes(len(data)),
}


def of_probes() -> list[Defect]:
    found = [Defect("probes", name, make) for name, (make, _) in DAMAGES.items()]
    found += [Defect("probes", f"header with {name}", _header(change)) for name, change in TENSORS.items()]
    found += [Defect("probes", f"bytes: {name}", patched("", change)) for name, change in RAW.items()]
    return found + at_each_place("probes", {"": "refused"})


def _config(**fields: Any) -> Change:
    return edited("config.json", lambda config: config.update(fields))


def of_models() -> list[Defect]:
    weights = "model.safetensors"
    found = []
    for name, change in TENSORS.items():
        make = lambda path, change=change: _header(change)(path / weights)  # noqa: E731
        found.append(Defect("model", f"weights with {name}", make))
    found += [Defect("model", f"weights: {name}", patched(weights, change)) for name, change in RAW.items()]
    for file in ("config.json", "tokenizer.json"):
        for name, text in NOT_JSON.items():
            found.append(Defect("model", f"{file} is {name}", patched(file, lambda _, text=text: text)))
    for key in ("hidden_size", "num_hidden_layers", "vocab_size", "num_attention_heads"):
        for value, given in NOT_NUMBERS.items():
            if not (key == "num_hidden_layers" and value in ("0", "-1")):  # a model of the embeddings alone
                found.append(Defect("model", f"config.json: {key} is {value}", _config(**{key: given})))
    more: dict[str, Change] = {
        "config.json of an unknown model": _config(model_type="../../x"),
        "config.json of a list for its model": _config(model_type=["bert"]),
        "config.json without a model": edited("config.json", lambda config: config.pop("model_type")),
        "an unknown activation": _config(hidden_act="pickle"),
        "an index of weights elsewhere": lambda path: (path / "model.safetensors.index.json").write_text(
            json.dumps({"weight_map": {"x": "../../etc/passwd"}})
        ),
        "an index of weights that are missing": lambda path: (path / "model.safetensors.index.json").write_text(
            json.dumps({"weight_map": {"x": "part-1.safetensors"}})
        ),
        "an adapter": lambda path: (path / "adapter_config.json").write_text('{"base_model_name_or_path": "x"}'),
        "no weights": removed(weights),
        "no configuration": removed("config.json"),
        "no tokenizer": removed("tokenizer.json"),
        "a tokenizer of nothing": patched("tokenizer.json", lambda _: b"{}"),
        "a tokenizer of an unknown model": edited("tokenizer.json", lambda fields: fields["model"].update(type="X")),
        "a tokenizer whose ids are beyond the embeddings": edited("tokenizer.json", _far_ids),
    }
    found += [Defect("model", name, make) for name, make in more.items()]
    return found + at_each_place("model", {"": "refused", "config.json": "refused", weights: "refused"})


def _far_ids(fields: dict[str, Any]) -> None:
    vocabulary = fields["model"]["vocab"]
    vocabulary["the"] = 10**6


# -------------------------------------------------------------------------------------------- word vectors and corpora


def fasttext(**changes: Any) -> bytes:
    """A model of fastText of the words a and b, of two dimensions; `changes`: what its header says instead."""
    header = {"magic": 793712314, "version": 12, "dimensions": 2, "buckets": 0, "entries": 2, "words": 2, "pruned": -1}
    header |= changes
    numbers = [header["dimensions"], 5, 5, 1, 5, 1, 1, 2, header["buckets"], 3, 6, 100]
    begin = struct.pack("<2i12id", header["magic"], header["version"], *numbers, 1e-4)
    begin += struct.pack("<3i2q", header["entries"], header["words"], 0, 100, header["pruned"])
    words = b"".join(each + b"\0" + struct.pack("<qb", 5, 0) for each in changes.get("spelled", (b"a", b"b")))
    matrix = struct.pack("<?2q", changes.get("quantised", False), changes.get("rows", 2), changes.get("columns", 2))
    return begin + words + matrix + np.arange(4, dtype="<f4").tobytes()


FASTTEXT: dict[str, bytes] = {
    "its magic alone": fasttext()[:4],
    "half a header": fasttext()[:50],
    "no words": fasttext()[:94],
    "half its words": fasttext()[:98],
    "half its matrix": fasttext()[:-8],
    "no dimension": fasttext(dimensions=0),
    "a negative dimension": fasttext(dimensions=-2),
    "another dimension": fasttext(dimensions=3),
    "2^31 - 1 dimensions": fasttext(dimensions=2**31 - 1, columns=2**31 - 1),
    "2^31 - 1 buckets": fasttext(buckets=2**31 - 1, rows=2**31 + 1),
    "a negative number of buckets": fasttext(buckets=-1),
    "2^31 - 1 words": fasttext(entries=2**31 - 1, words=2**31 - 1),
    "a negative number of words": fasttext(words=-1),
    "more words than entries": fasttext(words=3),
    "a word twice": fasttext(spelled=(b"a", b"a")),
    "a quantised matrix": fasttext(quantised=True),
    "pruned n-grams": fasttext(pruned=0),
    "2^62 rows": fasttext(rows=2**62),
    "a word without an end": fasttext(spelled=(b"x" * 70_000,)),
}


def of_vectors() -> list[Defect]:
    found = []
    for kind, contents in (("text vectors", TEXT), ("binary vectors", BINARY)):
        for name, content in contents.items():
            found.append(Defect(kind, name, patched("", lambda _, content=content: content)))
    for name, (array, words, _) in NPY.items():
        make = lambda path, array=array, words=words: _write_npy(path, array, words)  # noqa: E731
        found.append(Defect("npy vectors", name, make))
    head = npy(np.ones((2, 2)))
    heads = {
        "a shape of 2^62": head.replace(b"(2, 2)", b"(%d, 2)" % 2**62),
        "a negative shape": head.replace(b"(2, 2)", b"(-2, 2)"),
        "a header that is code": head.replace(b"(2, 2)", b"exit()"),
        "a dtype of objects": head.replace(b"<f8", b"|O8"),
        "a header of 65,535 bytes": head[:8] + b"\xff\xff" + head[10:],
        "another version": head[:6] + b"\x09\x00" + head[8:],
    }
    found += [Defect("npy vectors", name, patched("", lambda _, data=data: data)) for name, data in heads.items()]
    found += [Defect("fastText", name, patched("", lambda _, data=data: data)) for name, data in FASTTEXT.items()]
    for kind in ("text vectors", "binary vectors", "npy vectors", "fastText"):
        found += at_each_place(kind, {"": "refused"})
    return found


def _write_npy(path: Path, array: np.ndarray | bytes, words: bytes | None) -> None:
    path.write_bytes(array if isinstance(array, bytes) else npy(array))
    path.with_suffix(".vocab").unlink()
    if words is not None:
        path.with_suffix(".vocab").write_bytes(words)


def of_documents() -> list[Defect]:
    """Documents that are read as they are: the options of ELMo, and the record of a fine-tuning."""
    found = []
    for kind in ("options of ELMo", "record"):
        found += [Defect(kind, name, patched("", lambda _, text=text: text)) for name, text in NOT_JSON.items()]
        found += at_each_place(kind, {"": "refused"})
    for value, given in NOT_NUMBERS.items():
        change = lambda options, given=given: options["lstm"].update(dim=given)  # noqa: E731
        make = lambda path, change=change: edited(path.name, change)(path.parent)  # noqa: E731
        is_large = isinstance(given, int) and given > 1  # the weights then differ from the options, and are refused
        reads: Reads = "other" if is_large else "refused"
        found.append(Defect("options of ELMo", f"dim is {value}", make, reads, harmless=is_large))
    return found


TREE = "1\ta\t_\t_\t_\t_\t{}\t_\t_\t_\n2\tb\t_\t_\t_\t_\t{}\t_\t_\t_\n\n"


def of_corpora() -> list[Defect]:
    def write(path: Path, name: str, content: str | bytes) -> None:
        (path / "a.txt").unlink()
        (path / name).write_bytes(content.encode() if isinstance(content, str) else content)

    found = [
        Defect("corpus", name, lambda path, name=file, content=content: write(path, name, content))
        for name, (file, content, _) in BAD_FILES.items()
    ]
    found.append(Defect("corpus", "parquet that is none", lambda path: write(path, "a.parquet", b"PAR1" * 9)))
    found.append(Defect("corpus", "parquet without sentences", lambda path: write(path, "a.parquet", _parquet())))
    found += at_each_place("corpus", {"": "refused", "a.txt": "refused"})
    heads = {
        "a head beyond the sentence": (0, 3), "a negative head": (0, -1), "a head that is text": (0, "x"),
        "a head that is the word itself": (1, 0), "a cycle": (2, 1), "a head of 5,000 digits": (0, "9" * 5000),
        "no head": (0, "_"),
    }  # fmt: skip
    for name, pair in heads.items():
        found.append(Defect("trees", name, patched("", lambda _, pair=pair: TREE.format(*pair).encode())))
    return found + at_each_place("trees", {"": "refused"}, but=("a pipe",))  # which is read


def _parquet() -> bytes:
    stream = io.BytesIO()
    pl.DataFrame({"x": [1]}).write_parquet(stream)
    return stream.getvalue()


# ---------------------------------------------------------------------------------------------------- tables and caches


def vouched(path: Path) -> None:
    """Give a table of a study the checksum of its bytes."""
    record = path / "tables" / "t.json"
    data = (path / "tables" / "t.parquet").read_bytes()
    record.write_text(json.dumps({**json.loads(record.read_text()), "crc32c": crc32c(np.frombuffer(data, np.uint8))}))


def of_studies() -> list[Defect]:
    """A table that cannot be read is made again, and is then what it was. No device is in its place: it is written."""
    table, record = "tables/t.parquet", "tables/t.json"
    bytes_of: dict[str, Callable[[bytearray], bytes | bytearray | None]] = {
        "cut in half": lambda data: data[: len(data) // 2],
        "nothing": lambda data: b"",
        "zeros": lambda data: bytes(len(data)),
        "a flipped bit": lambda data: flip(data, 40),
        "halves that are exchanged": shifted,
        "a pickle": lambda data: pickle.dumps([1]),
    }
    changes: dict[str, Change] = {f"a table of {name}": patched(table, change) for name, change in bytes_of.items()}
    for name, change in bytes_of.items():
        if name != "a flipped bit":
            changes[f"a table of {name}, vouched for"] = lambda path, change=change: (
                patched(table, change)(path),
                vouched(path),
            )
    changes |= {f"a record of {name}": patched(record, lambda _, text=text: text) for name, text in NOT_JSON.items()}
    changes |= {
        "no table": removed(table),
        "no record": removed(record),
        "a record of other settings": edited(record, lambda fields: fields.update(made_from={"x": 1})),
        "a record without a checksum": edited(record, lambda fields: fields.pop("crc32c")),
        "times that are no times": patched("tables/seconds.json", lambda _: b"[1]"),
    }
    found = [Defect("study", name, make, "same", harmless=True) for name, make in changes.items()]
    found += at_each_place("study", {table: "either", record: "either"}, but=(DEVICE,))
    return found + at_each_place("study", {"": "refused", "tables": "refused"}, but=("a folder", DEVICE))


def _cached(change: Callable[[bytearray], bytes | bytearray | None]) -> Change:
    return lambda path: [patched("", change)(file) for file in path.iterdir()]


def of_caches() -> list[Defect]:
    """A file of a cache that is not whole is downloaded again."""
    healed: dict[str, Change] = {
        "files cut in half": _cached(lambda data: data[: len(data) // 2]),
        "files of nothing": _cached(lambda data: b""),
        "files that are longer": _cached(lambda data: data + b"x"),
        "no files": lambda path: [file.unlink() for file in path.iterdir()],
        "no folder": shutil.rmtree,
        "files of others": lambda path: (path / "mine.txt").write_text("mine"),
    }
    found = [Defect("cache", name, make, "same", harmless=True) for name, make in healed.items()]
    found.append(Defect("cache", "files with a flipped bit", _cached(lambda data: flip(data, len(data) // 2))))
    found.append(Defect("cache", "files of zeros", _cached(lambda data: bytes(len(data)))))
    found.append(Defect("cache", "files with another index", _cached(lambda data: put(data, -30, b"12345678"))))
    return found + at_each_place("cache", {"": "refused"}, but=("a folder", DEVICE))


def all_defects() -> list[Defect]:
    tables = (of_indexes, of_probes, of_models, of_vectors, of_documents, of_corpora, of_studies, of_caches)
    return [defect for table in tables for defect in table()]

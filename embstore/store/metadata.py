"""The metadata of a store: its shape and everything that made it, as JSON in the attribute "embstore"."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from embstore.errors import InvalidValueError, StoreDamagedError, StoreFormatError, check_whole, quoted
from embstore.store.index import KINDS
from embstore.store.layout import CHUNK_ROWS, ITEM_NBYTES, RESIDUAL, SITES, Layout
from embstore.store.storage.files import REPAIR_HINT, crc32c

FORMAT_VERSION = 2
MAX_PARTITIONS = 2**20
MAX_LAYERS = 4096
MAX_SIZE = 2**36  # of any dimension of an array
MAX_PARTITION_NBYTES = 2**40
COUNTED = ("n_sentences", "n_words", "shared_subwords")  # of a corpus, where they are known
SIZES = ("max_length", "batch_subwords", "group_partitions")  # of an extraction, likewise


@dataclass(frozen=True)
class Dropped:
    """Words that have no row for one reason: how many, and some examples, named with their sentence."""

    reason: str
    count: int
    examples: tuple[str, ...]


@dataclass(frozen=True)
class Metadata:
    """The shape of a store and what made it; stores with equal `provenance` hold the same rows.

    `model`: the fields of ModelInfo. `corpus`: name, format, sha256, n_sentences, n_words, and the reader's options.
    `extraction`: unit, pooling, keep (which occurrences), max_length, context_window, attention_window, batching,
    batch_subwords, compute_dtype, seed. `sites`: the sites that are stored and the features of a vector of each, in the
    order of SITES; empty: the residual stream alone, whose vectors have `hidden_size` features. `software`: the
    versions of the packages that began the store, which are not part of the provenance. `fields`: the kind of the
    values of each field of documents, one of KINDS. `virtual`: whether vectors are computed again when
    they are read; that is not part of the provenance either.
    """

    n_rows: int
    layers: tuple[int, ...]
    hidden_size: int
    dtype: str
    partition_rows: int
    model: Mapping[str, Any]
    corpus: Mapping[str, Any]
    extraction: Mapping[str, Any]
    dropped: tuple[Dropped, ...] = ()
    software: Mapping[str, str] = field(default_factory=dict)
    format_version: int = FORMAT_VERSION
    sites: Mapping[str, int] = field(default_factory=dict)
    fields: Mapping[str, str] = field(default_factory=dict)
    virtual: bool = False

    @cached_property
    def layouts(self) -> tuple[Layout, ...]:
        """The layout of each site. Layer 0 has no block, and is stored of the residual stream only."""
        n_parts = -(-self.n_rows // self.partition_rows)
        return tuple(
            Layout(
                n_rows=self.n_rows,
                layers=self.layers if site == RESIDUAL else self.blocks,
                hidden_size=size,
                dtype=self.dtype,
                partition_rows=self.partition_rows,
                site=site,
                first=number * n_parts,
            )
            for number, (site, size) in enumerate((self.sites or {RESIDUAL: self.hidden_size}).items())
        )

    @property
    def layout(self) -> Layout:
        """The layout of the residual stream or, where it is not stored, of the first site."""
        return self.layouts[0]

    @property
    def blocks(self) -> tuple[int, ...]:
        """The layers that are the output of a block."""
        return tuple(layer for layer in self.layers if layer)

    @property
    def n_partitions(self) -> int:
        """The partitions of all sites."""
        return sum(layout.n_partitions for layout in self.layouts)

    @property
    def n_features(self) -> int:
        """The numbers of one row in all layers and sites."""
        return sum(len(layout.layers) * layout.hidden_size for layout in self.layouts)

    @property
    def row_nbytes(self) -> int:
        """The bytes of one row in all layers and sites."""
        return self.n_features * ITEM_NBYTES[self.dtype]

    @property
    def provenance(self) -> dict[str, Any]:
        """All fields that determine the rows: no software, and no name where a hash identifies the same thing."""
        fields = as_json(self)
        del fields["software"]
        fields.pop("virtual", None)
        for part, name in (("model", "name"), ("model", "revision"), ("corpus", "name")):
            fields[part].pop(name, None)
        return fields

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of the provenance; stored with the vectors too, to identify them when the metadata are damaged."""
        return hashlib.sha256(canonical(self.provenance)).hexdigest()


@dataclass(frozen=True)
class StoredArray:
    """The shape of an array that never changes once the store is created, and the CRC32C of its C-order bytes."""

    shape: tuple[int, ...]
    crc32c: int


def canonical(document: object) -> bytes:
    """Return the canonical bytes of a JSON document: sorted keys, no spaces, UTF-8."""
    text = json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return text.encode()


def as_json(metadata: Metadata) -> dict[str, Any]:
    """Return the fields as JSON objects. Raises InvalidValueError for what JSON cannot hold (NaN, bytes)."""
    try:
        given = {each.name: getattr(metadata, each.name) for each in dataclasses.fields(metadata)}
        given["dropped"] = [vars(each) for each in metadata.dropped]
        fields: dict[str, Any] = json.loads(canonical(given))
    except (TypeError, ValueError) as error:
        raise InvalidValueError(f"the metadata cannot be written as JSON: {error}") from error
    for name in ("sites", "fields"):
        if not fields[name]:
            del fields[name]
    if not metadata.virtual:
        del fields["virtual"]
    return fields


def document(metadata: Metadata, arrays: Mapping[str, StoredArray]) -> dict[str, Any]:
    """Return the value of the attribute "embstore": the metadata, the frozen arrays, and a checksum of both."""
    fields = as_json(metadata)
    fields["arrays"] = {
        path: {"shape": list(array.shape), "crc32c": array.crc32c} for path, array in sorted(arrays.items())
    }
    fields["crc32c"] = document_crc32c(fields)
    return dict(sorted(fields.items()))


def document_crc32c(fields: Mapping[str, Any]) -> int:
    """Return the CRC32C of the canonical JSON of all fields but the checksum itself."""
    covered = {key: value for key, value in fields.items() if key != "crc32c"}
    return crc32c(np.frombuffer(canonical(covered), np.uint8))


def parse(fields: object, *, path: str) -> tuple[Metadata, dict[str, StoredArray]]:
    """Parse the attribute "embstore" of the store at `path`."""
    if not isinstance(fields, dict) or "format_version" not in fields:
        raise StoreFormatError(f"{path} is not an embstore store: its root has no attribute 'embstore'")
    version = fields["format_version"]
    if type(version) is not int or version < 1:
        raise StoreFormatError(
            f"{path} has the store format {quoted(version)}, which is not a whole number from 1 on: {REPAIR_HINT}"
        )
    if version < FORMAT_VERSION:
        raise StoreFormatError(
            f"{path} has store format {version}, which is not read any more: remove it and extract its corpus again"
        )
    if version > FORMAT_VERSION:
        raise StoreFormatError(
            f"{path} has store format {version}, newer than {FORMAT_VERSION}, "
            "the newest that this version reads: upgrade embstore"
        )
    try:
        whole = fields.get("crc32c") == document_crc32c(fields)
    except (ValueError, RecursionError):  # NaN, lone surrogates: never written by this package
        whole = False
    if not whole:
        raise StoreDamagedError(f"the metadata of {path} was changed: {REPAIR_HINT}")
    try:
        dropped = tuple(Dropped(item["reason"], item["count"], tuple(item["examples"])) for item in fields["dropped"])
        kinds = {"n_rows": int, "hidden_size": int, "partition_rows": int, "dtype": str}
        given: dict[str, Any] = {name: kind(fields[name]) for name, kind in kinds.items()}
        for name in ("model", "corpus", "extraction", "software", "format_version"):
            given[name] = fields[name]
        given["fields"] = dict(fields.get("fields", {}))
        given["virtual"] = bool(fields.get("virtual", False))
        sizes = fields.get("sites", {})
        sites = {site: int(sizes[site]) for site in sorted(sizes, key=SITES.index)}
        metadata = Metadata(
            sites=sites, layers=tuple(int(layer) for layer in fields["layers"]), dropped=dropped, **given
        )
        check_metadata(metadata)
        arrays = {
            name: StoredArray(tuple(int(size) for size in item["shape"]), int(item["crc32c"]))
            for name, item in fields["arrays"].items()
        }
        for name, array in arrays.items():
            if not all(0 <= size <= MAX_SIZE for size in array.shape):
                raise InvalidValueError(f"{name} has the shape {list(array.shape)}")
        center = (len(metadata.layers), metadata.hidden_size)
        if "center" in arrays and (metadata.dtype != "int8" or arrays["center"].shape != center):
            raise InvalidValueError(f"center of {metadata.dtype} has the shape {list(arrays['center'].shape)}")
        return metadata, arrays
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise StoreDamagedError(f"the metadata of {path} is incomplete ({error}): {REPAIR_HINT}") from error


def check_metadata(metadata: Metadata) -> None:
    """Raise InvalidValueError for metadata that no store can be created from."""
    layers = metadata.layers
    if metadata.n_rows < 1:
        raise InvalidValueError("a store needs at least one row, but no word of the corpus is left to extract")
    if metadata.dtype not in ITEM_NBYTES:
        raise InvalidValueError(f"dtype {metadata.dtype!r} is not known: choose one of {', '.join(ITEM_NBYTES)}")
    if len(layers) > MAX_LAYERS:
        raise InvalidValueError(f"{len(layers):,} layers are more than {MAX_LAYERS:,}, the most that a store can have")
    if not layers or list(layers) != sorted(set(layers)) or layers[0] < 0:
        raise InvalidValueError(f"layers must be distinct ascending numbers from 0 on, not {list(layers)}")
    for name in ("hidden_size", "n_rows"):
        check_whole(name, getattr(metadata, name), 1, MAX_SIZE)
    if metadata.partition_rows < CHUNK_ROWS or metadata.partition_rows % CHUNK_ROWS:
        raise InvalidValueError(f"partition_rows must be a multiple of {CHUNK_ROWS}, not {metadata.partition_rows}")
    sites = metadata.sites
    if list(sites) != [site for site in SITES if site in sites]:
        raise InvalidValueError(
            f"the sites {list(sites)} are not known: choose among {', '.join(SITES)}, in this order"
        )
    for site, size in sites.items():
        check_whole(f"the features of {site}", size, 1, MAX_SIZE)
    if sites and metadata.dtype == "int8":
        raise InvalidValueError(
            "int8 is possible for the residual stream alone: choose another dtype, or no other site"
        )
    if set(sites) - {RESIDUAL} and not metadata.blocks:
        raise InvalidValueError("layer 0 comes before the first block and has no other site: choose layers from 1 on")
    for part, names, least in (("corpus", COUNTED, 0), ("extraction", SIZES, 1)):
        for name in names:
            if (value := getattr(metadata, part).get(name)) is not None:
                check_whole(f"{part}.{name}", value, least, MAX_SIZE)
    nbytes = metadata.row_nbytes * metadata.partition_rows
    check_whole("the size of a partition", nbytes, 1, MAX_PARTITION_NBYTES, unit="bytes")
    if metadata.n_partitions > MAX_PARTITIONS:
        raise InvalidValueError(
            f"{metadata.n_rows} rows in partitions of {metadata.partition_rows} are {metadata.n_partitions} "
            f"partitions, more than {MAX_PARTITIONS}: choose larger ones"
        )
    for name, kind in metadata.fields.items():
        if kind not in KINDS:
            raise InvalidValueError(f"the field {quoted(name)} has the kind {quoted(kind)}, not {', '.join(KINDS)}")
    for part, key in (("model", "name"), ("corpus", "name"), ("extraction", "unit")):
        if not isinstance(getattr(metadata, part).get(key), str):
            raise InvalidValueError(f"the metadata must have a string {part}.{key}")

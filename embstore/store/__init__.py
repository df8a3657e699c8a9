"""The store: where vectors stand on disk, how they get there, and how they are read back."""

from embstore.store.index import Index, Labels, Strings
from embstore.store.layout import Layout
from embstore.store.metadata import FORMAT_VERSION, Dropped, Metadata
from embstore.store.reader import Store, open_store
from embstore.store.selection import Block, Selection
from embstore.store.vectors import bfloat16_bits, float32_of_bfloat16, quantize
from embstore.store.writer import StoreWriter, create_store

__all__ = [
    "FORMAT_VERSION",
    "Block",
    "Dropped",
    "Index",
    "Labels",
    "Layout",
    "Metadata",
    "Selection",
    "Store",
    "StoreWriter",
    "Strings",
    "bfloat16_bits",
    "create_store",
    "float32_of_bfloat16",
    "open_store",
    "quantize",
]

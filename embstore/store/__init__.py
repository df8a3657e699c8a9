"""The store: where vectors stand on disk, how they get there, and how they are read back."""

from embstore.store.check.repair import repair_layout
from embstore.store.check.report import Fault, Report, damaged_partitions
from embstore.store.check.verify import verify
from embstore.store.convert.export import export
from embstore.store.convert.importers import import_hdf5
from embstore.store.index import Index, Labels, Strings
from embstore.store.layout import Layout
from embstore.store.metadata import FORMAT_VERSION, Dropped, Metadata
from embstore.store.selection import Block, Selection
from embstore.store.store import Store, open_store
from embstore.store.vectors import bfloat16_bits, float32_of_bfloat16, quantize
from embstore.store.writer import StoreWriter, create_store

open = open_store

__all__ = [
    "FORMAT_VERSION",
    "Block",
    "Dropped",
    "Fault",
    "Index",
    "Labels",
    "Layout",
    "Metadata",
    "Report",
    "Selection",
    "Store",
    "StoreWriter",
    "Strings",
    "bfloat16_bits",
    "create_store",
    "damaged_partitions",
    "export",
    "float32_of_bfloat16",
    "import_hdf5",
    "open",
    "open_store",
    "quantize",
    "repair_layout",
    "verify",
]

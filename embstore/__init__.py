"""embstore: extract the hidden states of a language model once, ask anything of them after.

The public names load their modules on first use, so that `import embstore` is quick.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from embstore import plot as plot
    from embstore.corpus import Keep as Keep
    from embstore.corpus import Sentence as Sentence
    from embstore.corpus import open_corpus as open_corpus
    from embstore.errors import EmbstoreError as EmbstoreError
    from embstore.extraction.bench import bench_extract as bench_extract
    from embstore.extraction.pipeline import Progress as Progress
    from embstore.extraction.pipeline import Timings as Timings
    from embstore.extraction.pipeline import extract as extract
    from embstore.extraction.plan import Plan as Plan
    from embstore.extraction.plan import plan as plan
    from embstore.models import load_encoder as load_encoder
    from embstore.query.bench import bench_query as bench_query
    from embstore.query.senses import cosine_neighbors as cosine_neighbors
    from embstore.query.senses import label_agreement as label_agreement
    from embstore.query.senses import labelled_occurrences as labelled_occurrences
    from embstore.query.torch_dataset import TorchDataset as TorchDataset
    from embstore.store import Selection as Selection
    from embstore.store import Store as Store
    from embstore.store import export as export
    from embstore.store import import_hdf5 as import_hdf5
    from embstore.store import open_store
    from embstore.store import verify as verify

    open = open_store

__version__ = "0.1.0"

_HOME = {
    "Sentence": ("embstore.corpus", "Sentence"),
    "open_corpus": ("embstore.corpus", "open_corpus"),
    "Keep": ("embstore.corpus", "Keep"),
    "EmbstoreError": ("embstore.errors", "EmbstoreError"),
    "bench_extract": ("embstore.extraction.bench", "bench_extract"),
    "Progress": ("embstore.extraction.pipeline", "Progress"),
    "Timings": ("embstore.extraction.pipeline", "Timings"),
    "extract": ("embstore.extraction.pipeline", "extract"),
    "Plan": ("embstore.extraction.plan", "Plan"),
    "plan": ("embstore.extraction.plan", "plan"),
    "load_encoder": ("embstore.models", "load_encoder"),
    "TorchDataset": ("embstore.query.torch_dataset", "TorchDataset"),
    "bench_query": ("embstore.query.bench", "bench_query"),
    "cosine_neighbors": ("embstore.query.senses", "cosine_neighbors"),
    "label_agreement": ("embstore.query.senses", "label_agreement"),
    "labelled_occurrences": ("embstore.query.senses", "labelled_occurrences"),
    "Selection": ("embstore.store", "Selection"),
    "Store": ("embstore.store", "Store"),
    "export": ("embstore.store", "export"),
    "import_hdf5": ("embstore.store", "import_hdf5"),
    "open": ("embstore.store", "open_store"),
    "verify": ("embstore.store", "verify"),
}

__all__ = [*_HOME, "__version__", "plot"]


def __getattr__(name: str) -> Any:
    if name == "plot":
        return import_module("embstore.plot")
    if name not in _HOME:
        raise AttributeError(f"module 'embstore' has no attribute {name!r}")
    module, attribute = _HOME[name]
    value = getattr(import_module(module), attribute)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)

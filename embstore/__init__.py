"""embstore: extract the hidden states of a language model once, ask anything of them after.

The public names load their modules on first use, so that `import embstore` is quick.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from embstore.corpus import Sentence as Sentence
    from embstore.corpus import open_corpus as open_corpus
    from embstore.errors import EmbstoreError as EmbstoreError
    from embstore.extract.pipeline import extract as extract
    from embstore.extract.plan import Plan as Plan
    from embstore.extract.plan import plan as plan
    from embstore.store import Selection as Selection
    from embstore.store import Store as Store
    from embstore.store import export as export
    from embstore.store import import_hdf5 as import_hdf5
    from embstore.store import open_store as open
    from embstore.store import verify as verify

__version__ = "0.1.0"

_HOME = {
    "Sentence": ("embstore.corpus", "Sentence"),
    "open_corpus": ("embstore.corpus", "open_corpus"),
    "EmbstoreError": ("embstore.errors", "EmbstoreError"),
    "extract": ("embstore.extract.pipeline", "extract"),
    "Plan": ("embstore.extract.plan", "Plan"),
    "plan": ("embstore.extract.plan", "plan"),
    "Selection": ("embstore.store", "Selection"),
    "Store": ("embstore.store", "Store"),
    "export": ("embstore.store", "export"),
    "import_hdf5": ("embstore.store", "import_hdf5"),
    "open": ("embstore.store", "open_store"),
    "verify": ("embstore.store", "verify"),
}

__all__ = [*_HOME, "__version__"]  # noqa: PLE0604


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'embstore' has no attribute {name!r}")
    module, attribute = _HOME[name]
    value = getattr(import_module(module), attribute)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)

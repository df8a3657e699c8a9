"""Extract the hidden states of language models once, store them, and query them at the speed of memory.

`plan` and `extract` write a store; `open`, `Store.select`, `geometry`, `neighbors`, `senses` and the others read it.
Each name loads its module on first use, so that `import embstore` is quick.
"""

from embstore import recomputing as _recomputing
from embstore.lazy import attach

_load, __dir__, __all__ = attach(__name__, __file__)


def _recompute(*arguments):  # type: ignore[no-untyped-def]
    """Load what runs models when a row of a virtual store is first read."""
    from embstore.extraction.recompute import recompute

    recompute(*arguments)


_recomputing.register(_recompute)


def __getattr__(name: str) -> object:
    if name == "__version__":  # of the tag that was built, which the installed package knows
        from importlib.metadata import version

        return version("embstore")
    return _load(name)

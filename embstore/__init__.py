"""Extract the hidden states of language models once, store them, and query them at the speed of memory.

The public names are listed in `__init__.pyi`; each loads its module on first use, so that `import embstore` is quick.
"""

import lazy_loader

from embstore import recomputing as _recomputing

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
__version__ = "0.1.0"


def _recompute(*arguments):  # type: ignore[no-untyped-def]
    """Load what runs models when a row of a virtual store is first read."""
    from embstore.extraction.recompute import recompute

    recompute(*arguments)


_recomputing.register(_recompute)

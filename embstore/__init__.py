"""Extract the hidden states of language models once, store them, and query them at the speed of memory.

The public names are listed in `__init__.pyi`; each loads its module on first use, so that `import embstore` is quick.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
__version__ = "0.1.0"

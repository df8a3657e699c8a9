"""Word vectors: one vector a word, files that hold them, training, and evaluation on word benchmarks."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

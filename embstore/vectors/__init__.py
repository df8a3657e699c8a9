"""Word vectors: one vector a word, files that hold them, training, and evaluation on word benchmarks."""

from embstore.lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)

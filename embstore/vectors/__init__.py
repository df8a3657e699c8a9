"""Word vectors: one vector a word, and files that hold them."""

from embstore.lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)

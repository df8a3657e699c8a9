"""Measures over stored vectors: geometry, nearest neighbours, senses, static vectors, and reducers of your own.

`embstore.geometry` and `embstore.neighbors` are functions at the top level; the packages here have the same names.
"""

from embstore.lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)

"""Stores of hidden states: open, select and read them, verify, copy and import them, and write your own."""

from embstore.lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)

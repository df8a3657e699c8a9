"""Figures of results, as matplotlib Figures; nothing is shown, and the backend of the process is left as it is."""

from embstore.lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)

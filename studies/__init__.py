"""Studies of the literature, run from extraction to report with one call."""

from embstore.lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)

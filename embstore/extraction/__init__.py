"""From a corpus to a filled store: plan, context windows and the extraction itself."""

from embstore.lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)

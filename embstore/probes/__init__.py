"""Probes: classifiers trained on frozen vectors, many at a time, to measure what the vectors of each layer encode."""

from embstore.lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)

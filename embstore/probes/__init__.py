"""Probes: classifiers trained on frozen vectors, many at a time, to measure what the vectors of each layer encode."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

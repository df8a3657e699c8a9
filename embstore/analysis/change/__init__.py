"""How words change between corpora and over time: distances, senses, tests, change points, and gold standards."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

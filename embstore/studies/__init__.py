"""Studies of the literature, run end to end: from a corpus and a model to tables and figures."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

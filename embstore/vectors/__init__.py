"""Tables of one vector a word: reading, writing and training them, and their evaluation on word benchmarks."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

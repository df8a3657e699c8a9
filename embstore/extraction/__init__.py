"""From a corpus to a filled store: plan, context windows and the extraction itself."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

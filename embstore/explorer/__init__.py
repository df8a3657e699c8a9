"""The explorer: stores to look at in a browser, by a server, as static files and as a widget in notebooks."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

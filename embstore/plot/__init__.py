"""Figures of results, as matplotlib Figures; nothing is shown, and the backend of the process is left as it is."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

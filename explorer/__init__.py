"""The explorer of stores, by a server in the browser and as a widget in notebooks, and reports as HTML pages.

It uses public names of embstore alone.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

"""The explorer of stores, by a server in the browser and as a widget in notebooks, and reports as HTML pages.

It uses public names of embstore alone.
"""

from embstore.lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)

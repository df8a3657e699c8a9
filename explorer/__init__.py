"""The explorer of stores, by a server in the browser and as a widget in notebooks, and reports as HTML pages.

It uses public names of embstore alone.
"""

from importlib import import_module

_MODULES = {
    "answer": "queries.registry",
    "explore": "notebook",
    "explored": "stores",
    "report": "reports.report",
    "serve": "serving",
}
__all__ = sorted(_MODULES)


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"No embstore_explorer attribute {name}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return __all__

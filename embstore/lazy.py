"""Public names that load their module on first use."""

from __future__ import annotations

from collections.abc import Callable

import lazy_loader

from embstore.errors import missing_package


def attach(name: str, file: str) -> tuple[Callable[[str], object], Callable[[], list[str]], list[str]]:
    """Return `__getattr__`, `__dir__` and `__all__` of a package whose stub (.pyi) lists its public names."""
    load, names, listed = lazy_loader.attach_stub(name, file)

    def __getattr__(attribute: str) -> object:
        try:
            return load(attribute)
        except ModuleNotFoundError as error:
            raise missing_package(error) from error

    return __getattr__, names, listed

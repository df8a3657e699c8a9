"""The versions of what makes a store, for its metadata."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

PACKAGES = ("embstore", "torch", "transformers", "tokenizers", "numpy")


def software() -> dict[str, str]:
    """Package name -> version, of the packages that decide what a store holds."""
    found = {}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found

"""The sizes of the project: lines, public names, members of a store, options of the command line, words of the pages.

`python -m tests.test_size` prints them. A new feature names what it replaces: a limit rises for a reason that a
stranger would accept.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from types import ModuleType

import pytest

import embstore
from tests.documents import PAGES
from tests.store_making import make_store
from tests.test_public_names import MAX_KNOBS, knobs

ROOT = Path(__file__).parents[1]
CODE = (".py", ".pyx", ".c", ".h")


def lines(*folders: str, suffixes: Iterable[str] = CODE) -> int:
    files = (path for folder in folders for path in (ROOT / folder).rglob("*") if path.suffix in suffixes)
    return sum(len(path.read_bytes().splitlines()) for path in files if not is_generated(path))


def is_generated(path: Path) -> bool:
    """Return whether Cython wrote a file, or npm installed it."""
    return (path.with_suffix(".pyx").exists() and path.suffix == ".c") or "node_modules" in path.parts


def names_in_packages() -> int:
    """Return how many public names the modules at the top level list."""
    modules = [getattr(embstore, name) for name in embstore.__all__]
    return sum(
        len(module.__all__) for module in modules if isinstance(module, ModuleType) and hasattr(module, "__all__")
    )


def words() -> int:
    return sum(len(page.read_text("utf-8").split()) for page in PAGES)


def members() -> int:
    """Return how many public members an open store has."""
    with tempfile.TemporaryDirectory() as folder:
        store = make_store(Path(folder) / "store.zarr").store
        return len([name for name in dir(store) if not name.startswith("_")])


# What is counted, how, and the most that it may be: a limit only falls. Decoders (lens, directions, probes of rows,
# packing, sinks, sites) raised those of code and of tests by 1,500 lines.
SIZES: list[tuple[str, Callable[[], int], int]] = [
    ("lines of embstore and cli", lambda: lines("embstore", "cli"), 43_350),
    ("lines of studies and explorer", lambda: lines("studies", "explorer", suffixes=(".py",)), 8_500),
    ("lines of benchmarks", lambda: lines("benchmarks"), 3_000),
    ("lines of tests", lambda: lines("tests"), 39_500),
    ("options and settings of the command line", lambda: sum(map(sum, knobs().values())), MAX_KNOBS),
    ("names at the top level", lambda: len(embstore.__all__), 28),
    ("names in packages", names_in_packages, 110),
    ("members of a store", members, 20),
    ("words of the documentation", words, 35_000),
]


@pytest.mark.parametrize(("what", "count", "most"), SIZES, ids=[size[0] for size in SIZES])
def test_the_size_is_within_its_limit(what: str, count: Callable[[], int], most: int) -> None:
    assert count() <= most, f"{count():,} {what}: at most {most:,}"


if __name__ == "__main__":
    for what, count, most in SIZES:
        print(f"{count():7,} {what} (at most {most:,})")

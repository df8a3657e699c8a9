"""The direction of imports, and what a bare import loads."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

# Part -> the parts that it may import.
ALLOWED = {
    "errors": set(),
    "executor": {"errors"},
    "schemas": set(),
    "allocator": set(),
    "kmeans": set(),
    "corpus": {"errors"},
    "wordvectors": {"errors", "corpus"},
    "evaluation": {"errors", "corpus", "kmeans", "wordvectors"},
    "store": {"errors", "schemas"},
    "models": {"errors", "store", "corpus", "wordvectors"},
    "extraction": {"allocator", "errors", "executor", "corpus", "store", "models", "schemas", "wordvectors"},
    "query": {"allocator", "errors", "executor", "kmeans", "store", "schemas", "wordvectors"},
    "nearest": {"errors", "corpus", "store", "models", "extraction", "query", "wordvectors"},
    "probe": {"allocator", "corpus", "errors", "query", "schemas", "store", "wordvectors"},
    "plot": {"errors", "store", "query", "probe"},
    "recipes": {"errors", "corpus", "wordvectors", "store", "models", "extraction", "query", "probe", "plot"},
    "cluster": {"errors", "executor", "store", "models", "extraction", "query"},
    "cli": {
        "errors",
        "executor",
        "cluster",
        "corpus",
        "wordvectors",
        "evaluation",
        "store",
        "models",
        "extraction",
        "query",
        "nearest",
        "plot",
        "probe",
        "recipes",
        "schemas",
    },
}
ONE_HOME = {
    "transformers": "models",
    "matplotlib": "plot",
    "typer": "cli",
    "rich": "cli",
    "zarr": "store",
    "h5py": "store",
    "numba": "query",
    "sklearn": "query",
    "umap": "query",
    "faiss": "query",
    "obstore": "store",
    "ray": "cluster",
}
ALSO = {("models", "h5py"), ("probe", "numba")}  # ELMo's published weights are HDF5; loops of edge probes
HEAVY = [
    "torch",
    "transformers",
    "zarr",
    "h5py",
    "faiss",
    "numba",
    "sklearn",
    "umap",
    "polars",
    "numpy",
    "matplotlib",
    "jsonschema",
    "rich",
    "obstore",
    "ray",
]


def modules() -> Iterator[tuple[str, Path]]:
    for path in (ROOT / "embstore").rglob("*.py"):
        parts = path.relative_to(ROOT / "embstore").with_suffix("").parts
        if parts != ("__init__",):
            yield parts[0], path
    for path in (ROOT / "cli").rglob("*.py"):
        yield "cli", path


def imported(path: Path) -> Iterator[str]:
    """Every module imported anywhere in a file, also inside functions and for typing only."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            yield node.module or ""


MODULES = list(modules())


def test_there_are_modules_to_read() -> None:
    assert {part for part, _ in MODULES} >= {"errors", "corpus", "store", "models", "extraction", "query", "cli"}


@pytest.mark.parametrize(("part", "path"), MODULES, ids=lambda value: str(value).removeprefix(str(ROOT)))
def test_imports_run_one_way(part: str, path: Path) -> None:
    for name in imported(path):
        package, _, rest = name.partition(".")
        if package == "embstore" and rest:
            other = rest.split(".")[0]
            assert other == part or other in ALLOWED[part], f"{path} imports {name}"
        if package == "embstore_cli":
            assert part == "cli", f"{path} imports {name}"
        if part == "store":
            assert package != "torch", f"{path} imports torch"
        home = ONE_HOME.get(package, part)
        assert home == part or (part, package) in ALSO, f"{path} imports {package}, which only {home} may"


@pytest.mark.parametrize(
    "statement",
    ["import embstore", "import embstore; embstore.__version__; dir(embstore)", "import embstore_cli.main"],
)
def test_bare_import_loads_nothing_heavy(statement: str) -> None:
    code = f"{statement}; import sys; print(*[name for name in {HEAVY!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


def test_every_public_name_resolves() -> None:
    import embstore

    for name in embstore.__all__:
        assert getattr(embstore, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = embstore.nonsense

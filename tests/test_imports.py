"""The direction of imports, and what a bare import loads."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from tests.store_making import make_store

ROOT = Path(__file__).parent.parent

# What every part may import, and what these may import of each other.
BASE: dict[str, set[str]] = {
    "arguments": {"errors"},
    "config": {"devices", "errors", "progress"},
    "devices": {"errors"},
    "errors": set(),
    "executors": {"arguments", "config", "devices", "errors"},
    "html": set(),
    "kernels": set(),
    "lazy": {"errors"},
    "progress": set(),
    "recomputing": set(),
    "schemas": set(),
    "intervals": set(),
}
# Part -> the other parts that it may import.
ALLOWED: dict[str, set[str]] = {
    "corpus": set(),
    "vectors": {"corpus", "store"},
    "store": {"corpus"},
    "models": {"corpus", "store", "vectors"},
    "extraction": {"corpus", "models", "store", "vectors"},
    "analysis": {"corpus", "models", "store", "vectors"},
    "probes": {"analysis", "corpus", "store", "vectors"},
    "database": {"analysis", "store", "vectors"},
    "plot": {"analysis", "probes", "store"},
}

# Folder beside the engine -> its name as a package. They import public names of embstore (test_public_names.py).
OUTSIDE = {"cli": "embstore_cli", "explorer": "embstore_explorer", "studies": "embstore_studies"}
USERS = {  # of these packages: the modules of commands
    "embstore_explorer": [ROOT / "cli" / "explore.py"],
    "embstore_studies": [ROOT / "cli" / "reproduce.py"],
}
# Package -> the only part that may import it.
HOME = {
    "transformers": "models", "matplotlib": "plot", "typer": "cli", "rich": "cli", "zarr": "store",
    "sklearn": "analysis", "umap": "analysis", "faiss": "analysis", "obstore": "store", "sentencex": "corpus",
    "spacy": "corpus", "ray": "executors", "duckdb": "database", "starlette": "explorer", "uvicorn": "explorer",
    "tqdm": "progress",
}  # fmt: skip
SLOW = ["pydantic", "scipy", "asyncio", "rich", "tqdm"]  # others that commands need not wait for
HEAVY = [
    "torch", "transformers", "zarr", "h5py", "faiss", "numba", "sklearn", "umap", "polars", "numpy", "matplotlib",
    "jsonschema", "rich", "obstore", "ray", "tqdm", "spacy", "sentencex",
]  # fmt: skip


def modules() -> Iterator[tuple[str, Path]]:
    """Yield (part, file) of every module of the package and of the command line."""
    for path in (ROOT / "embstore").rglob("*.py"):
        parts = path.relative_to(ROOT / "embstore").with_suffix("").parts
        if parts not in {("__init__",), ("__main__",)}:
            yield parts[0], path
    for folder in OUTSIDE:
        for path in (ROOT / folder).rglob("*.py"):
            yield folder, path


def statements(node: ast.AST) -> Iterator[ast.AST]:
    """Yield every statement under a node; expressions, which are most nodes, are left out."""
    for name in ("body", "handlers", "orelse", "finalbody", "cases"):
        for each in getattr(node, name, ()):
            yield each
            yield from statements(each)


@cache
def imported(path: Path) -> list[str]:
    """Return the dotted name of everything imported anywhere in a file, inside functions and for typing included."""
    found = []
    for node in statements(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found += [name.name for name in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            found += [f"{node.module}.{name.name}" for name in node.names]
    return found


MODULES = list(modules())


def allowed(part: str) -> set[str]:
    return BASE[part] if part in BASE else ALLOWED.get(part, set()) | BASE.keys()


def test_parts_import_one_way() -> None:
    assert {part for part, _ in MODULES} == {*BASE, *ALLOWED, *OUTSIDE} - {"schemas"}
    wrong = []
    for part, path in MODULES:
        for name in imported(path):
            package, _, rest = name.partition(".")
            other = rest.split(".")[0]
            if package == "embstore" and part not in {*OUTSIDE, other} and other not in allowed(part):
                wrong.append(f"{path.relative_to(ROOT)} ({part}) imports {name}")
            if package in OUTSIDE.values() and package != OUTSIDE.get(part) and path not in USERS.get(package, ()):
                wrong.append(f"{path.relative_to(ROOT)} imports {name}")
    assert not wrong, "\n".join(wrong)


def test_no_process_is_forked() -> None:
    """The threads of Polars, of torch and of clients of buckets do not survive a fork."""
    forks = re.compile(r"""os\.fork\(|get_context\((?!"spawn"\))|multiprocessing\.(Pool|Process)\(|["']fork["']""")
    assert all(map(forks.search, ("os.fork()", "get_context()", 'get_context("fork")', "multiprocessing.Pool(2)")))
    assert not forks.search('context = get_context("spawn")')
    assert not [path for _, path in MODULES if forks.search(path.read_text())]


def test_each_heavy_package_has_one_home() -> None:
    wrong = [
        f"{path.relative_to(ROOT)} imports {name}; only {HOME[package]} may"
        for part, path in MODULES
        for name in imported(path)
        if (package := name.partition(".")[0]) in HOME and part not in (HOME[package], "studies")
    ]
    wrong += [
        f"{path} imports torch"
        for part, path in MODULES
        if part == "store" and "torch" in set(imported(path)) and path.name != "torch_dataset.py"
    ]
    assert not wrong, "\n".join(wrong)


def file_of(name: str, files: dict[str, Path]) -> Path | None:
    """Return the file of a dotted name: a module, or the module that an imported object is in."""
    return files.get(name) or files.get(name.rpartition(".")[0])


def test_no_files_import_each_other_in_a_circle() -> None:
    files = {}
    for part, path in MODULES:
        root, top = (ROOT / part, OUTSIDE[part]) if part in OUTSIDE else (ROOT / "embstore", "embstore")
        files[".".join((top, *path.relative_to(root).with_suffix("").parts)).removesuffix(".__init__")] = path
    graph = {
        path: {other for name in imported(path) if (other := file_of(name, files)) not in (None, path)}
        for path in files.values()
    }
    try:
        tuple(TopologicalSorter(graph).static_order())
    except CycleError as error:
        raise AssertionError(" -> ".join(str(path.relative_to(ROOT)) for path in error.args[1])) from None


@pytest.mark.parametrize(
    "statement",
    ["import embstore; embstore.__version__; dir(embstore)", "import embstore_cli.main", "import embstore_explorer"],
)
def test_bare_import_loads_nothing_heavy(statement: str) -> None:
    code = f"{statement}; import sys; print(*[name for name in {HEAVY!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


COMMANDS = {  # each after those before it, with the packages that it may import
    "--help": set(),
    "info {store}": {"numpy"},
    "lookup {store} bank": {"numpy", "rich"},
    "neighbors {store} bank --layers 2 -k 2": {"numpy", "rich", "polars"},
    "sql {store} select/**/count(*)from/**/occurrences": {"numpy", "rich", "polars", "duckdb", "pyarrow", "pandas"},
}


@pytest.mark.slow
def test_commands_on_stores_load_only_what_they_need(tmp_path: Path) -> None:
    """The time of these commands is that of their imports."""
    make_store(tmp_path / "store.zarr")
    code = """
import sys
from embstore_cli.main import run
for command in sys.argv[1:]:
    sys.argv = ["embstore", *command.split()]
    try:
        run()
    except SystemExit as ended:
        assert not ended.code, command
    print(*{name.partition(".")[0] for name in sys.modules}, file=sys.stderr)
"""
    commands = [command.format(store=tmp_path / "store.zarr") for command in COMMANDS]
    done = subprocess.run([sys.executable, "-c", code, *commands], capture_output=True, text=True, check=True)
    for allowed, line in zip(COMMANDS.values(), done.stderr.splitlines(), strict=True):
        assert set(line.split()) & {*HEAVY, *SLOW} <= allowed


@pytest.mark.slow
def test_a_plan_loads_no_polars() -> None:
    """Once Polars is loaded, Ctrl-C no longer ends a blocking read of a corpus."""
    code = "import embstore.extraction.plan, embstore.models.loading, sys; print('polars' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False"]


def test_a_name_that_is_not_public_is_no_attribute() -> None:
    import embstore

    with pytest.raises(AttributeError, match="No embstore attribute nonsense"):
        _ = embstore.nonsense

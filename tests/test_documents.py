"""Every example of README and docs and every notebook runs as written, or says what it needs."""

from __future__ import annotations

import ast
import contextlib
import importlib
import inspect
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

import embstore as es
from tests.documents import PAGES, ROOT, Block, blocks, commands, commands_of, write_folder
from tests.models import tiny
from tests.object_server import bucket_environment
from tests.test_public_names import private_names

NEEDS = {"models from a hub", "a GPU", "a cluster", "a fresh machine", "minutes", "hours", "sae-lens"}


def test_examples_are_found_and_what_is_not_run_needs_what_is_missing_here() -> None:
    reasons = [block.reason for page in PAGES for block in blocks(page)]
    assert reasons.count(None) >= 20
    assert set(reasons) - {None} <= NEEDS


@pytest.fixture(scope="module")
def folder(minilm: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("documents") / "folder"
    path.mkdir()
    write_folder(path, minilm)
    return path


def examples_of_docstrings() -> Iterator[tuple[str, str]]:
    """Yield the code in the docstrings of public names: (name, code)."""

    def public(holder: Any, name: str) -> Iterator[tuple[str, Any]]:
        for inner in holder.__all__:
            value = getattr(holder, inner)
            yield from public(value, f"{name}.{inner}") if hasattr(value, "__all__") else [(f"{name}.{inner}", value)]
            if inspect.isclass(value):
                yield from ((f"{name}.{inner}.{each}", getattr(value, each)) for each in vars(value) if each[0] != "_")

    every = reversed(list(public(es, "es")))  # of an object with several names the first one counts
    for name, value in {id(value): (name, value) for name, value in every}.values():
        for found in re.findall(r"::\n\n((?:    .*\n?|\n)+)", inspect.getdoc(value) or ""):
            yield name, textwrap.dedent(found)


def run_python(block: Block, names: dict[str, object]) -> None:
    padding = "\n" * (block.line - 1)  # an error names the line of the page
    exec(compile(padding + block.code, str(block.page), "exec"), names)


def run_commands(block: Block, monkeypatch: pytest.MonkeyPatch) -> None:
    from embstore_cli.main import run

    for variables, words in commands_of(block):
        where = f"{block.page.name}:{block.line}: {shlex.join(words)}"
        assert words[0] == "embstore", f"{where} is not a command of embstore"
        with monkeypatch.context() as patch:
            for name, value in variables.items():
                patch.setenv(name, value)
            patch.setattr(sys, "argv", words)
            with pytest.raises(SystemExit) as ended:
                run()
        assert not ended.value.code, f"{where} ended with status {ended.value.code}"


def check_names(code: str, known: dict[str, Any]) -> None:
    """Check that what a block imports exists, and what it names in it, with the keywords of functions that it calls."""
    tree = ast.parse(code)
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and find_spec(str(node.module).partition(".")[0]):
            module = importlib.import_module(str(node.module))
            known |= {name.asname or name.name: getattr(module, name.name) for name in node.names}
        elif isinstance(node, ast.Import):
            known |= {name.asname or name.name: importlib.import_module(name.name) for name in node.names}

    def resolve(node: ast.expr) -> Any:
        if isinstance(node, ast.Name):
            return known.get(node.id)
        owner = resolve(node.value) if isinstance(node, ast.Attribute) else None
        return getattr(owner, node.attr) if inspect.ismodule(owner) or inspect.isclass(owner) else None  # type: ignore[attr-defined]

    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            resolve(node)
        elif isinstance(node, ast.Call) and (function := resolve(node.func)) is not None:
            inspect.signature(function).bind_partial(**{each.arg: None for each in node.keywords if each.arg})


SKIPPED = [block for page in PAGES for block in blocks(page) if block.reason and block.language == "python"]


@pytest.mark.slow
@pytest.mark.parametrize("block", SKIPPED, ids=lambda block: f"{block.page.stem}-{block.line}")
def test_what_is_not_run_has_names_that_exist(block: Block) -> None:
    check_names(block.code, {"es": es})


# Options of other programs of which the pages speak: allennlp, embedding-atlas, npm, pip, ray, Slurm, tensorboard.
OTHERS = re.compile(
    "--(all|average|top|use-sentence-keys|output|x|y|neighbors|no-deps|head|address|block|disable-usage-stats"
    "|gpus-per-node|nodes|ntasks|ntasks-per-node|requeue|logdir|python|tiny)"
)


@pytest.mark.slow
def test_options_that_pages_name_exist() -> None:
    options = {"--help", "--write-config"}
    for command in commands().values():
        for parameter in command.params:
            options |= {*parameter.opts, *parameter.secondary_opts}
    for page in PAGES:
        if page.stem in ("changelog", "release"):
            continue
        text = page.read_text()
        named = set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", text)) - options
        assert not (wrong := [name for name in named if not OTHERS.fullmatch(name)]), f"{page.name}: {wrong}"


@pytest.mark.slow
@pytest.mark.parametrize(
    "page",
    [page for page in PAGES if any(blocks(page))],
    ids=lambda page: page.stem if page.stem != "index" else page.parent.name,
)
def test_examples_run(
    page: Path, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    """Run the blocks of a page in order: its Python in one namespace, its commands in this process."""
    work = tmp_path / "work"
    shutil.copytree(folder, work, symlinks=True)
    monkeypatch.chdir(work)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    if page.stem == "buckets":
        proxy, held = request.getfixturevalue("object_server")
        held.create_bucket("bucket", "us-east-1")
        for name, value in bucket_environment(proxy).items():
            monkeypatch.setenv(name, value)
    names: dict[str, object] = {"__name__": "example"}
    for block in blocks(page):
        if block.language == "toml":
            (work / block.code.splitlines()[0].removeprefix("# ")).write_text(block.code)
        elif block.reason is None and block.language == "python":
            run_python(block, names)
        elif block.reason is None:
            run_commands(block, monkeypatch)


@pytest.mark.slow
def test_examples_of_docstrings_run(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(folder, tmp_path / "work", symlinks=True)
    monkeypatch.chdir(tmp_path / "work")
    examples = list(examples_of_docstrings())
    assert {"es.open", "es.ClassProbe", "es.Store.select"} <= {name for name, _ in examples}
    for name, code in examples:
        exec(compile(code, name, "exec"), {"es": es, "store": es.open("demo.zarr")})


NOTEBOOKS = sorted((ROOT / "examples" / "notebooks").glob("*.ipynb"))
RUNNER = "from tests.test_documents import show; import sys; show(sys.argv[1])"


def cells(path: Path) -> list[str]:
    """Return the code of each cell of code."""
    return [
        "".join(cell["source"]) for cell in json.loads(path.read_text("utf-8"))["cells"] if cell["cell_type"] == "code"
    ]


def show(path: str) -> None:
    """Run the cells of a notebook in one namespace, and print what a notebook would show of each last expression."""
    names: dict[str, object] = {"__name__": "notebook"}
    for code in cells(Path(path)):
        body = ast.parse(code).body
        last = ast.Expression(body.pop().value) if isinstance(body[-1], ast.Expr) else None
        exec(compile(ast.Module(body, []), path, "exec"), names)
        if last is not None:
            value = eval(compile(last, path, "eval"), names)
            html = getattr(value, "_repr_html_", None)
            with contextlib.suppress(ImportError):
                from matplotlib.figure import Figure

                if isinstance(value, Figure):
                    value.savefig(os.devnull, format="png")
                    html = "<Figure>".__str__
            print(html() if html else value)


def test_notebooks_have_no_outputs() -> None:
    assert len(NOTEBOOKS) == 4
    for path in NOTEBOOKS:
        notebook = json.loads(path.read_text("utf-8"))
        assert not [cell for cell in notebook["cells"] if cell.get("outputs") or cell.get("execution_count")]
        assert not [name for code in cells(path) for name in private_names(code)]


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(path: Path, data: Path, minilm: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="figures need matplotlib")
    decoder = {"EMBSTORE_DECODER": str(tiny.save("gpt2", tmp_path / "gpt"))} if "decoder" in path.stem else {}
    done = subprocess.run(
        [sys.executable, "-c", RUNNER, path],
        cwd=ROOT,
        env={
            **os.environ,
            "EMBSTORE_DATA": str(data),
            "EMBSTORE_MODEL": str(minilm),
            **decoder,
            "TMPDIR": str(tmp_path),
            "OMP_NUM_THREADS": "1",  # threads that wait for each other on busy cores multiply the time of small probes
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.count("<Figure>") >= 1
    assert "<table" in done.stdout

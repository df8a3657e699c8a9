"""The notebooks run from the first cell to the last, and what they show is shown."""

from __future__ import annotations

import ast
import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.documents import ROOT
from tests.test_public_names import private_names

NOTEBOOKS = sorted((ROOT / "examples" / "notebooks").glob("*.ipynb"))
RUNNER = "from tests.test_notebooks import show; import sys; show(sys.argv[1])"


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


def test_there_are_three_without_outputs() -> None:
    assert [path.stem for path in NOTEBOOKS] == ["senses_in_a_novel", "sparse_autoencoder", "syntax_in_a_treebank"]
    for path in NOTEBOOKS:
        notebook = json.loads(path.read_text("utf-8"))
        assert not [cell for cell in notebook["cells"] if cell.get("outputs") or cell.get("execution_count")]
        assert not [name for code in cells(path) for name in private_names(code)]


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(path: Path, data: Path, minilm: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="figures need matplotlib")
    done = subprocess.run(
        [sys.executable, "-c", RUNNER, path],
        cwd=ROOT,
        env={
            **os.environ,
            "EMBSTORE_DATA": str(data),
            "EMBSTORE_MODEL": str(minilm),
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

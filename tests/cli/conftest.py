"""A tiny model, corpora and stores of a few sentences, and two ways to run the command."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest
import typer

import embstore as es
from tests.models import tiny

SENTENCES = """a man sat on the bank of the river .
the old bank of the town lends money .
Café naïve rivers flow to the sea .
the court dismissed the suit .
"""


@dataclass(frozen=True)
class Ran:
    """What a run of the command left: its exit status and what it printed."""

    status: int
    out: str
    err: str


class Work:
    """A folder with a model `model`, a corpus `corpus.txt` and a store `store.zarr`, where commands are run."""

    def __init__(self, folder: Path, run: Callable[..., Ran], kept: Path) -> None:
        self.folder = folder
        self.run = run
        self.kept = kept

    def __truediv__(self, name: str) -> Path:
        return self.folder / name

    def does(self, *arguments: object) -> Ran:
        """Run a command that succeeds and names on standard error the files that it writes, and nothing else."""
        ran = self.run(*arguments)
        said = {f"embstore: {file} is written" for option, file in pairwise(arguments) if option in ("--out", "--plot")}
        assert (ran.status, set(ran.err.splitlines())) == (0, said), ran.err
        return ran

    def refuses(self, command: str, *says: str, status: int = 2) -> None:
        """Check that a command ends in one line with all of `says`, and leaves every file as it was."""
        before = self.contents()
        ran = self.run(*command.split())
        assert (ran.status, ran.out) == (status, ""), ran.err
        assert ran.err.startswith("embstore: "), ran.err
        assert ran.err.count("\n") == 1, ran.err
        for part in says:
            assert part in ran.err, ran.err
        assert "EMBSTORE_DEBUG" not in ran.err, "an error that was not foreseen"
        assert self.contents() == before

    def put(self, make: Callable[[Work], object]) -> Work:
        """Put the files here that `make` writes into a folder: they are made once and copied for each test."""
        folder = self.kept / f"{make.__module__}.{make.__name__}"
        if not folder.exists():
            folder.mkdir()
            make(Work(folder, self.run, self.kept))
        shutil.copytree(folder, self.folder, dirs_exist_ok=True)
        return self

    def write(self, name: str, text: str | bytes) -> Path:
        path = self.folder / name
        path.write_bytes(text.encode() if isinstance(text, str) else text)
        return path

    def contents(self) -> dict[str, bytes | None]:
        """Every path under the folder, hidden ones too, with a file's bytes (None for a folder)."""
        found = sorted(self.folder.rglob("*"))
        return {str(path.relative_to(self.folder)): path.read_bytes() if path.is_file() else None for path in found}


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.save("bert", tmp_path_factory.mktemp("models") / "tiny-bert")


@pytest.fixture(scope="session")
def made(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model, a corpus and a store of it."""
    folder = tmp_path_factory.mktemp("made")
    shutil.copytree(tiny_model, folder / "model")
    (folder / "corpus.txt").write_text(SENTENCES)
    plan = es.plan(folder / "corpus.txt", model=folder / "model", calibrate=False)
    es.extract(plan, folder / "store.zarr")
    return folder


@pytest.fixture(autouse=True, scope="session")
def parser_made_once() -> Iterator[None]:
    """Build the parser once: typer builds it for every run, which takes longer than most commands."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("typer.main.get_command", cache(typer.main.get_command))
        yield


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Ran]]:
    """Run the command in this process."""
    monkeypatch.setenv("COLUMNS", "120")  # pytest-xdist hands on the width of its own terminal
    from embstore_cli.main import run as run_application

    def call(*arguments: object) -> Ran:
        capfd.readouterr()
        monkeypatch.setattr(sys, "argv", ["embstore", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            run_application()
        out, err = capfd.readouterr()
        return Ran(int(ended.value.code or 0), out, err)

    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)
    before = signal.getsignal(signal.SIGTERM)
    yield call
    signal.signal(signal.SIGTERM, before)


@pytest.fixture(scope="session")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("kept")


@pytest.fixture
def work(made: Path, kept: Path, tmp_path: Path, run: Callable[..., Ran], monkeypatch: pytest.MonkeyPatch) -> Work:
    folder = tmp_path / "work"
    shutil.copytree(made, folder)
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    monkeypatch.chdir(folder)
    return Work(folder, run, kept)


def settings(**values: object) -> tuple[str, ...]:
    """Return `--config` with a file of these values, in the folder of temporary files."""
    with tempfile.NamedTemporaryFile("w", suffix=".toml", delete=False) as file:
        file.writelines(f"{key} = {json.dumps(value)}\n" for key, value in values.items())
    return ("--config", file.name)


COMMAND = [sys.executable, "-m", "embstore"]


def environment(**more: str) -> dict[str, str]:
    return {**os.environ, "HF_HUB_OFFLINE": "1", **more}


def run_process(*arguments: object, cwd: Path, env: dict[str, str] | None = None) -> Ran:
    """Run the real command in its own process."""
    done = subprocess.run(
        [*COMMAND, *map(str, arguments)], cwd=cwd, env=env or environment(), capture_output=True, text=True, timeout=600
    )
    return Ran(done.returncode, done.stdout, done.stderr)

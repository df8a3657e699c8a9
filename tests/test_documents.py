"""Every example of README and docs runs as written; what cannot run here says what it needs."""

from __future__ import annotations

import shlex
import shutil
import sys
from pathlib import Path

import pytest

from tests.documents import PAGES, Block, blocks, write_folder

NEEDS = {
    "a bucket",
    "a cluster",
    "a GPU",
    "a model from a hub",
    "a fresh machine",
    "minutes",
    "hours",
    "data of your own",
    "sae-lens",
}


def test_the_examples_are_found() -> None:
    assert sum(block.reason is None for page in PAGES for block in blocks(page)) >= 20


def test_what_is_not_run_needs_what_is_missing_here() -> None:
    reasons = {block.reason for page in PAGES for block in blocks(page)} - {None}
    assert reasons <= NEEDS


@pytest.fixture(scope="module")
def folder(minilm: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("documents") / "folder"
    path.mkdir()
    write_folder(path, minilm)
    return path


def run_python(block: Block, names: dict[str, object]) -> None:
    padding = "\n" * (block.line - 1)  # an error names the line of the page
    exec(compile(padding + block.code, str(block.page), "exec"), names)


def run_commands(block: Block, monkeypatch: pytest.MonkeyPatch) -> None:
    from embstore_cli.main import run

    for line in block.code.replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        if not words:
            continue
        assert words[0] == "embstore", f"{block.page.name}:{block.line}: {line} is not a command of embstore"
        monkeypatch.setattr(sys, "argv", words)
        with pytest.raises(SystemExit) as ended:
            run()
        assert not ended.value.code, f"{block.page.name}:{block.line}: {line} ended with status {ended.value.code}"


@pytest.mark.slow
@pytest.mark.parametrize(
    "page",
    [page for page in PAGES if any(blocks(page))],
    ids=lambda page: page.stem if page.stem != "index" else page.parent.name,
)
def test_examples_run(page: Path, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the blocks of a page in order: its Python in one namespace, its commands in this process."""
    work = tmp_path / "work"
    shutil.copytree(folder, work, symlinks=True)
    monkeypatch.chdir(work)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    names: dict[str, object] = {"__name__": "example"}
    for block in blocks(page):
        if block.reason is None and block.language == "python":
            run_python(block, names)
        elif block.reason is None:
            run_commands(block, monkeypatch)

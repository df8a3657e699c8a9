"""Where the targets of edge probing are: folders of JSON lines, single files, and corpora that contain tasks."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import embstore as es
from embstore.errors import CorpusNotFoundError, InvalidValueError

if TYPE_CHECKING:
    Edges = Path | list[es.corpus.EdgeSentence]


def find_tasks(
    paths: Sequence[Path],
    *,
    dev: Path | None = None,
    test: Path | None = None,
    derive: Sequence[str] = (),
    repair: bool = False,
) -> dict[str, dict[str, Edges]]:
    """Return the targets of each task by split, by the name of the task.

    A folder has train, dev and test; a single file is train, and `dev` and `test` are given. `derive`: the tasks to
    take from corpora; not needed if a corpus contains one. Raises InvalidValueError, CorpusError.
    """
    given = {name: path for name, path in (("dev", dev), ("test", test)) if path is not None}
    for name, path in given.items():
        if len(paths) > 1 or paths[0].is_dir():
            raise InvalidValueError(f"--set {name}={path} goes with one file of train targets: folders have their own")
    found: dict[str, dict[str, Edges]] = {}
    for path in (*paths, *given.values()):
        _require_exists(path)
    for path in paths:
        files = (_split_files(path) if path.is_dir() else {"train": path}) | given
        stem = path.absolute().name if path.is_dir() else es.probes.task_name(path)
        for task in _derived(files["train"], derive) or (None,):
            name = stem if task is None else task
            if name in found:
                raise InvalidValueError(f"two tasks are called {name}: give each once")
            found[name] = {split: _targets(file, task, repair) for split, file in files.items()}
    return found


def find_targets(paths: Sequence[Path], tasks: Sequence[str], *, split: str, repair: bool = False) -> list[Edges]:
    """Return the targets of each task in a split: of a task's folder, a folder of such folders, a file or a corpus."""
    is_only = len(tasks) == 1 and len(paths) == 1
    for path in paths:
        _require_exists(path)
    return [_targets_of(paths, task, split, is_only, repair) for task in tasks]


def _require_exists(path: Path) -> None:
    if not path.exists():
        raise CorpusNotFoundError(f"no targets at {path}: give an existing file or folder")


def _targets_of(paths: Sequence[Path], task: str, split: str, is_only: bool, repair: bool) -> Edges:
    for path in paths:
        if path.is_dir():
            files = es.probes.split_files(path / task)
            if split not in files and (is_only or path.absolute().name == task):
                files = es.probes.split_files(path)
            if split in files:
                return files[split]
            corpus = _corpora(path).get(split)
            if corpus is not None and task in es.corpus.derivable_tasks(corpus):
                return _targets(corpus, task, repair)
            continue
        derivable = es.corpus.derivable_tasks(path)
        if task in derivable:
            return _targets(path, task, repair)
        if not derivable and (is_only or task in (path.name.split(".")[0], path.absolute().parent.name)):
            return path
    raise InvalidValueError(
        f"there are no {split} targets of {task} at {', '.join(map(str, paths))}: give its folder, a folder of such "
        f"folders, or a corpus that contains it"
    )


def _targets(file: Path, task: str | None, repair: bool) -> Edges:
    if task is None or not es.corpus.derivable_tasks(file):
        return file
    return es.corpus.derived_edges(file, task, repair=repair)


def _derived(train: Path, derive: Sequence[str]) -> Sequence[str]:
    """Return the tasks to take from a file; none if it has targets itself."""
    derivable = es.corpus.derivable_tasks(train)
    if not derivable and derive:
        raise InvalidValueError(f"--task {derive[0]} is for corpora (.conllu, .conll): {train} has targets itself")
    for task in derive:
        if task not in derivable:
            raise InvalidValueError(f"{train} does not contain the task {task!r}: choose {' or '.join(derivable)}")
    if len(derivable) > 1 and not derive:
        raise InvalidValueError(
            f"{train} contains several tasks: give --task {', '.join(derivable[:-1])} or {derivable[-1]}"
        )
    return derive or derivable


def _split_files(folder: Path) -> dict[str, Path]:
    """Return the files of a folder by split."""
    files = es.probes.split_files(folder) or _corpora(folder)
    if "train" not in files:
        raise InvalidValueError(f"{folder} has no train.jsonl: give folders of a task, or its file of train targets")
    return files


def _corpora(folder: Path) -> dict[str, Path]:
    """Return the corpora of a folder by split: those with train, dev or test in their names."""
    found: dict[str, Path] = {}
    for path in sorted(folder.iterdir()):
        named = re.search(r"(?<![a-z])(train|dev|test)(?![a-z])", path.name.lower())
        if named is None or not path.is_file() or not es.corpus.derivable_tasks(path):
            continue
        if named[1] in found:
            raise InvalidValueError(
                f"{folder} has two files called {named[1]}, {found[named[1]].name} and {path.name}: give files"
            )
        found[named[1]] = path
    return found

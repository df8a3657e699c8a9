"""Where the targets of edge probing are: folders of JSON lines, single files, and corpora that hold tasks."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from embstore.errors import CorpusNotFoundError, InvalidValueError

if TYPE_CHECKING:
    from embstore.corpus import EdgeSentence

    Edges = Path | list[EdgeSentence]


def find_tasks(
    paths: Sequence[Path], dev: Path | None, test: Path | None, *, derive: Sequence[str] = (), repair: bool = False
) -> dict[str, dict[str, Edges]]:
    """The targets of each task by split, by the name of the task.

    A folder has train, dev and test; a file is train, beside `dev` and `test`. `derive`: the tasks to take from
    corpora, which may be left out where a corpus holds one. Raises InvalidValueError, CorpusError.
    """
    from embstore.probes import task_name

    given = {name: path for name, path in (("dev", dev), ("test", test)) if path is not None}
    if given and (len(paths) > 1 or paths[0].is_dir()):
        raise InvalidValueError(f"--{next(iter(given))} goes with one file of train targets: folders have their own")
    found: dict[str, dict[str, Edges]] = {}
    for path in paths:
        _require_there(path)
        files = (_folder(path) if path.is_dir() else {"train": path}) | given
        named = path.absolute().name if path.is_dir() else task_name(path)
        for name in _derived(files["train"], derive) or (None,):
            own = named if name is None else name
            if own in found:
                raise InvalidValueError(f"two tasks are called {own}: give each once")
            found[own] = {split: _targets(file, name, repair) for split, file in files.items()}
    return found


def _require_there(path: Path) -> None:
    if not path.exists():
        raise CorpusNotFoundError(f"no corpus at {path}: give a file or folder that is there")


def find_targets(paths: Sequence[Path], tasks: Sequence[str], *, split: str, repair: bool = False) -> list[Edges]:
    """The targets of each task in a split: in a folder of the task, a folder of such folders, a file, or a corpus."""
    only = len(tasks) == 1 and len(paths) == 1
    return [_found(paths, task, split, only, repair) for task in tasks]


def _found(paths: Sequence[Path], task: str, split: str, only: bool, repair: bool) -> Edges:
    from embstore.corpus import derivable_tasks
    from embstore.probes import split_file

    for path in paths:
        _require_there(path)
        if path.is_dir():
            inside = split_file(path / task, split)
            if inside is None and (only or path.absolute().name == task):
                inside = split_file(path, split)
            corpus = _corpora(path).get(split)
            if inside is not None:
                return inside
            if corpus is not None and task in derivable_tasks(corpus):
                return _targets(corpus, task, repair)
        elif task in derivable_tasks(path):
            return _targets(path, task, repair)
        elif not derivable_tasks(path) and (only or task in (path.name.split(".")[0], path.absolute().parent.name)):
            return path
    raise InvalidValueError(
        f"there are no {split} targets of {task} at {', '.join(map(str, paths))}: give its folder, a folder of such "
        f"folders, or a corpus that holds it"
    )


def _targets(file: Path, task: str | None, repair: bool) -> Edges:
    from embstore.corpus import derivable_tasks, derived_edges

    if task is None or not derivable_tasks(file):
        return file
    return derived_edges(file, task, repair=repair)


def _derived(train: Path, derive: Sequence[str]) -> Sequence[str]:
    """The tasks to take from a file; none where it has targets itself."""
    from embstore.corpus import derivable_tasks

    held = derivable_tasks(train)
    if not held and derive:
        raise InvalidValueError(f"--task {derive[0]} is for corpora (.conllu, .conll): {train} has targets itself")
    for task in derive:
        if task not in held:
            raise InvalidValueError(f"{train} does not hold the task {task!r}: choose {' or '.join(held)}")
    if len(held) > 1 and not derive:
        raise InvalidValueError(f"{train} holds several tasks: give --task {', '.join(held[:-1])} or {held[-1]}")
    return derive or held


def _folder(folder: Path) -> dict[str, Path]:
    """The files of a folder by split."""
    from embstore.probes import split_file

    held = {
        split: path for split in ("train", "dev", "test") if (path := split_file(folder, split)) is not None
    } or _corpora(folder)
    if "train" not in held:
        raise InvalidValueError(f"{folder} has no train.jsonl: give folders of a task, or its file of train targets")
    return held


def _corpora(folder: Path) -> dict[str, Path]:
    """The corpora of a folder by split: those with train, dev or test in their names."""
    from embstore.corpus import derivable_tasks

    held: dict[str, Path] = {}
    for path in sorted(folder.iterdir()):
        named = re.search(r"(?<![a-z])(train|dev|test)(?![a-z])", path.name.lower())
        if named is None or not path.is_file() or not derivable_tasks(path):
            continue
        if named[1] in held:
            raise InvalidValueError(
                f"{folder} has two files called {named[1]}, {held[named[1]].name} and {path.name}: give files"
            )
        held[named[1]] = path
    return held

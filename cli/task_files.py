"""Where the targets of edge probing are: folders of JSON lines, and of corpora that contain tasks."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import embstore as es
from embstore.errors import CorpusNotFoundError, InvalidValueError

if TYPE_CHECKING:
    Edges = Path | list[es.corpus.EdgeSentence]


def find_tasks(paths: Sequence[Path], *, derive: Sequence[str] = ()) -> dict[str, dict[str, Edges]]:
    """Return the targets of each task by split, by the name of the task.

    `derive`: the tasks to take from corpora; not needed if a corpus contains one.
    """
    found: dict[str, dict[str, Edges]] = {}
    for path in paths:
        if not path.is_dir():
            raise CorpusNotFoundError(f"no targets at {path}: give an existing folder")
        files = es.probes.split_files(path) or _corpora(path)
        if "train" not in files:
            raise InvalidValueError(f"{path} has no train.jsonl: give folders of a task")
        for task in _derived(files["train"], derive) or (None,):
            name = path.absolute().name if task is None else task
            if name in found:
                raise InvalidValueError(f"two tasks are called {name}: give each once")
            found[name] = {
                split: file if task is None else es.corpus.derived_edges(file, task) for split, file in files.items()
            }
    return found


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

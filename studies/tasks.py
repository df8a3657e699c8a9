"""Folders of edge probing tasks, and the sentences of all tasks, which a study extracts once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from embstore.corpus import Sentence, read_edges
from embstore.corpus.sentence import distinct_sentences
from embstore.errors import InvalidValueError
from embstore.probes.edges.tasks import Sample, check_task, split_files
from embstore.probes.splits import SPLITS

Files = Mapping[str, Path]
ALL = Sample()
# By the folders that tasks are in, as the figures of Tenney et al. call them and in their order.
TASKS = {
    "pos": "POS",
    "constituents": "Consts.",
    "dependencies": "Deps.",
    "entities": "Entities",
    "semantic-roles": "SRL",
    "coreference": "Coref.",
    "protoroles": "SPR",
    "relations": "Relations",
}


def find_tasks(folder: Path, tasks: Sequence[str] | None, sample: Sample = ALL) -> dict[str, Files]:
    """Return the files of each task in a folder of tasks: those of the paper in its order, then others by name.

    Every file is read and its sample checked, so that none is refused after hours of extraction. Raises
    InvalidValueError, CorpusError.
    """
    if not folder.is_dir():
        raise InvalidValueError(f"{folder} is not a folder: give one with a folder per task")
    by_name: dict[str, Files] = {path.name: split_files(path) for path in sorted(folder.iterdir())}
    found = {name: files for name, files in by_name.items() if "train" in files}
    if not found:
        raise InvalidValueError(f"{folder} has no task: give a folder of folders, each with train.jsonl and dev.jsonl")
    for name in tasks or ():
        if name not in found:
            raise InvalidValueError(f"there is no task {name!r} in {folder}: it has {', '.join(found)}")
    in_order = dict.fromkeys((*TASKS, *found))
    chosen = {name: found[name] for name in in_order if name in found and name in (tasks or found)}
    for name, files in chosen.items():
        if "dev" not in files:
            raise InvalidValueError(f"{folder / name} has no dev.jsonl, which early stopping needs")
        check_task(files, name=name, sample=sample)
    return chosen


@dataclass(frozen=True)
class Sentences:
    """The sentences of all splits of some tasks, or a sample of each split; each text once."""

    tasks: Mapping[str, Files]
    sample: Sample

    def __iter__(self) -> Iterator[Sentence]:
        paths = [path for files in self.tasks.values() for path in files.values()]
        drawn = (self.sample.draw(list(read_edges(path))) for path in paths)
        return distinct_sentences(sentence.words for sentence in chain.from_iterable(drawn))


def treebank_files(folder: Path) -> dict[str, Path]:
    """Return the CoNLL-U file of each split of a treebank, which has the name of the split in its own."""
    if not folder.is_dir():
        raise InvalidValueError(f"{folder} is not a folder: give one with train, dev and test of a treebank in CoNLL-U")
    files = {}
    for split in SPLITS:
        found = sorted(path for path in folder.glob("*.conllu") if split in path.stem)
        if len(found) != 1:
            raise InvalidValueError(
                f"{folder} has {len(found)} files *{split}*.conllu: give a folder with one for each of train, dev, test"
            )
        files[split] = found[0]
    return files

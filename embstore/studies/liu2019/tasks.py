"""The tasks of the study: those of a folder, and those derived from a treebank."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from embstore.corpus import EdgeSentence, Sentence, derived_edges, read_edges
from embstore.corpus.edge_tasks import LAST_INDEX
from embstore.corpus.sentence import distinct_sentences
from embstore.errors import InvalidValueError
from embstore.probes.edges.tasks import Sample, split_file
from embstore.studies.liu2019.settings import Liu2019
from embstore.studies.study import digest_of
from embstore.studies.tasks import SPLITS, find_tasks, treebank_files

PROBED = ("upos", "arcs", "dependencies")
# Of tasks of word order: the labels to find in a sentence. Generalisation: of sentences where the first word of the
# labels is another one, so that its place among them does not tell which it is.
ELEMENTS = {"main-auxiliary": ("main", "auxiliary"), "subject": ("subject", "noun")}
POSITIONS = tuple(str(number) for number in range(1, LAST_INDEX + 1))
ORDER_TASKS = ("index", *ELEMENTS)
GENERALISATION = "generalisation"
INDEXED = range(10, 31)  # the words of a sentence of the task index, as in the code of Lin et al.


@dataclass(frozen=True)
class Task:
    """The drawn sentences of a task by split; `digests`: of the files that they are from."""

    splits: Mapping[str, list[EdgeSentence]]
    digests: Mapping[str, str]

    def __iter__(self) -> Iterator[EdgeSentence]:
        return chain.from_iterable(self.splits.values())


@dataclass(frozen=True)
class Sentences:
    """The different sentences of some tasks."""

    tasks: Mapping[str, Task]

    def __iter__(self) -> Iterator[Sentence]:
        return distinct_sentences(each.words for each in chain.from_iterable(self.tasks.values()))


def load_tasks(settings: Liu2019, data: Path) -> dict[str, Task]:
    """Read and draw all tasks, those of word order last. Raises InvalidValueError, CorpusError."""
    if not data.is_dir():
        raise InvalidValueError(f"{data} is not a folder: give one with a folder per task, or a treebank in CoNLL-U")
    sample = Sample(settings.sentences, settings.seed)
    own = [each.name for each in sorted(data.iterdir()) if split_file(each, "train") is not None]
    treebank = settings.treebank or (data if any(data.glob("*.conllu")) else None)
    if not own and treebank is None:
        raise InvalidValueError(
            f"{data} has no folder of a task with train.jsonl and no treebank, train, dev and test in CoNLL-U: give one"
        )
    derived = [name for name in (*PROBED, *ORDER_TASKS) if name not in own] if treebank is not None else []
    for name in settings.tasks:
        if name not in (*own, *derived):
            raise InvalidValueError(f"there is no task {name!r}: choose {', '.join((*own, *derived))}")
    wanted = settings.tasks or (*own, *derived)
    tasks = {}
    if chosen := [name for name in own if name in wanted]:
        for name, files in find_tasks(data, chosen).items():
            splits = {split: sample.draw(with_targets(list(read_edges(path)))) for split, path in files.items()}
            tasks[name] = Task(splits, {split: digest_of(path) for split, path in files.items()})
    if chosen := [name for name in derived if name in wanted]:
        files = treebank_files(Path(treebank or data))
        digests = {split: digest_of(path) for split, path in files.items()}
        tasks |= {name: Task(derived_splits(name, files, sample), digests) for name in chosen}
    return tasks


def with_targets(sentences: list[EdgeSentence]) -> list[EdgeSentence]:
    return [each for each in sentences if each.targets]


def derived_splits(name: str, files: Mapping[str, Path], sample: Sample) -> dict[str, list[EdgeSentence]]:
    """Derive a task from a treebank and draw its sentences."""
    held = {split: with_targets(derived_edges(files[split], name)) for split in SPLITS}
    if name == "index":
        held = {split: [each for each in found if len(each.targets) in INDEXED] for split, found in held.items()}
    if name in ELEMENTS:
        first = {split: [is_first(name, each) for each in found] for split, found in held.items()}
        others = [each for split in SPLITS for each, ok in zip(held[split], first[split], strict=True) if not ok]
        held = {
            split: [each for each, ok in zip(found, first[split], strict=True) if ok] for split, found in held.items()
        }
        held |= {GENERALISATION: others} if others else {}
    for split, found in held.items():
        if not found:
            raise InvalidValueError(f"{files[split]} has no sentence for the task {name}: choose other tasks")
    return {split: sample.draw(found) for split, found in held.items()}


def is_first(name: str, sentence: EdgeSentence) -> bool:
    """Return whether the element to find is the first word of its kind: the first auxiliary, or the first noun."""
    label, _ = ELEMENTS[name]
    return next(target.labels[0] for target in sentence.targets if target.labels[0] in ELEMENTS[name]) == label

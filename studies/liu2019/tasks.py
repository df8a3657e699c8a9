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
from embstore.probes.edges.tasks import Sample, split_files
from embstore.probes.splits import SPLITS
from embstore_studies.liu2019.settings import Liu2019
from embstore_studies.study import digest_of
from embstore_studies.tasks import find_tasks, treebank_files

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
    sample = Sample(settings.n_sentences, settings.seed)
    in_folder = [folder.name for folder in sorted(data.iterdir()) if "train" in split_files(folder)]
    treebank = settings.treebank or (data if any(data.glob("*.conllu")) else None)
    if not in_folder and treebank is None:
        raise InvalidValueError(
            f"{data} has no folder of a task with train.jsonl and no treebank, train, dev and test in CoNLL-U: give one"
        )
    from_treebank = [] if treebank is None else [name for name in (*PROBED, *ORDER_TASKS) if name not in in_folder]
    known = (*in_folder, *from_treebank)
    for name in settings.tasks:
        if name not in known:
            raise InvalidValueError(f"there is no task {name!r}: choose {', '.join(known)}")
    wanted = settings.tasks or known
    in_folder = [name for name in in_folder if name in wanted]
    from_treebank = [name for name in from_treebank if name in wanted]
    tasks = {}
    if in_folder:
        for name, files in find_tasks(data, in_folder).items():
            splits = {split: sample.draw(with_targets(list(read_edges(path)))) for split, path in files.items()}
            tasks[name] = Task(splits, {split: digest_of(path) for split, path in files.items()})
    if from_treebank:
        files = treebank_files(Path(treebank or data))
        digests = {split: digest_of(path) for split, path in files.items()}
        tasks |= {name: Task(derived_splits(name, files, sample), digests) for name in from_treebank}
    return tasks


def with_targets(sentences: list[EdgeSentence]) -> list[EdgeSentence]:
    return [each for each in sentences if each.targets]


def derived_splits(name: str, files: Mapping[str, Path], sample: Sample) -> dict[str, list[EdgeSentence]]:
    """Derive a task from a treebank and draw its sentences."""
    splits = {split: with_targets(derived_edges(files[split], name)) for split in SPLITS}
    if name == "index":
        splits = {split: [s for s in sentences if len(s.targets) in INDEXED] for split, sentences in splits.items()}
    if name in ELEMENTS:
        not_first = [s for sentences in splits.values() for s in sentences if not is_first(name, s)]
        splits = {split: [s for s in sentences if is_first(name, s)] for split, sentences in splits.items()}
        if not_first:
            splits[GENERALISATION] = not_first
    for split, sentences in splits.items():
        if not sentences:
            raise InvalidValueError(f"{files[split]} has no sentence for the task {name}: choose other tasks")
    return {split: sample.draw(sentences) for split, sentences in splits.items()}


def is_first(name: str, sentence: EdgeSentence) -> bool:
    """Return whether the element to find is the first word of its kind: the first auxiliary, or the first noun."""
    label, _ = ELEMENTS[name]
    return next(target.labels[0] for target in sentence.targets if target.labels[0] in ELEMENTS[name]) == label

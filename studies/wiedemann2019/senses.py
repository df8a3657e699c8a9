"""Corpora of word senses with a train and a test part: Wiki-PSE markup, and the folders of CoarseWSD-20."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from pathlib import Path

import polars as pl

from embstore.corpus import Sentence, open_corpus
from embstore.corpus.lines import Lines
from embstore.errors import CorpusError, InvalidValueError, quoted

TRAIN, TEST = "train", "test"
SUPERSENSES = ("noun.", "verb.")  # how the names of WordNet's lexicographer classes begin


@dataclass(frozen=True)
class SenseCorpus:
    """Sentences with the label columns `sense`, `target` (which word it is) and `split` at each word with a sense."""

    sentences: Sequence[Sentence]

    def __iter__(self) -> Iterator[Sentence]:
        return iter(self.sentences)

    @cached_property
    def table(self) -> pl.DataFrame:
        """One row for each word with a sense: `split, target, sense`."""
        rows = [
            (sentence.labels["split"][place], sentence.labels["target"][place], sense)
            for sentence in self.sentences
            for place, sense in enumerate(sentence.labels["sense"])
            if sense is not None
        ]
        return pl.DataFrame(rows, schema=dict.fromkeys(("split", "target", "sense"), pl.String), orient="row")

    @cached_property
    def ambiguous(self) -> list[str]:
        """The words of test that have two senses or more in train."""
        train, test = (self.table.filter(split=split) for split in (TRAIN, TEST))
        several = train.group_by("target").agg(pl.col("sense").n_unique()).filter(pl.col("sense") > 1)
        return test.join(several, on="target", how="semi")["target"].unique().sort().to_list()

    @cached_property
    def digest(self) -> str:
        """A hash of all sentences and their labels, whatever their order."""
        lines = sorted(repr((list(each.words), dict(each.labels))) for each in self.sentences)
        return blake2b("\n".join(lines).encode(), digest_size=16).hexdigest()

    @property
    def has_supersenses(self) -> bool:
        """Whether the senses are WordNet's lexicographer classes."""
        return all(name.startswith(SUPERSENSES) for name in self.table["sense"].unique())

    def require_both(self, source: Path, k: int) -> None:
        """Raise InvalidValueError for an empty train or test part, no ambiguous word, or too large a k."""
        table = self.table
        if not len(table):
            raise InvalidValueError(
                f"{source} has no word with a sense: mark senses as @word@-class, or give CoarseWSD-20"
            )
        for split in (TRAIN, TEST):
            if not len(table.filter(split=split)):
                raise InvalidValueError(f"the {split} part of {source} is empty: draw more sentences")
        train = table.filter(split=TRAIN)
        if not set(train["target"]) & set(table.filter(split=TEST)["target"]):
            raise InvalidValueError(f"no test word of {source} has a train example: draw more sentences")
        if not self.ambiguous:
            raise InvalidValueError(f"no test word of {source} has two senses in train: draw more sentences")
        counts = train.filter(pl.col("target").is_in(self.ambiguous)).group_by("target").len()
        most = int(counts.select(pl.col("len").max()).item())
        if k > most:
            raise InvalidValueError(f"ks: {k} is more than the {most} train examples of any ambiguous word: give less")


def read_senses(path: Path, *, n_sentences: int | None, test_share: float, seed: int) -> SenseCorpus:
    """Read a folder of CoarseWSD-20, which has its own split, or a corpus in Wiki-PSE markup, split by sentence.

    Raises InvalidValueError, CorpusError with file and line.
    """
    if path.is_dir():
        words = sorted(folder for folder in path.iterdir() if (folder / "train.data.txt").is_file())
        if words:
            return SenseCorpus([each for word in words for each in _word(word)])
        if not (path / "corpus.txt").is_file():
            raise InvalidValueError(f"{path} has no folder of a word with train.data.txt and no corpus.txt: give one")
        path = path / "corpus.txt"
    labelled = [each for each in open_corpus(path, format="pse") if any(each.labels["class"])]
    drawn = sorted(labelled, key=lambda each: _draw(seed, each))[:n_sentences]
    return SenseCorpus([_split(each, _draw(seed + 1, each) < test_share) for each in drawn])


def _draw(seed: int, sentence: Sentence) -> float:
    """A number in [0, 1) that depends on the seed and the text alone."""
    text = f"{seed} {' '.join(sentence.words)}"
    return int.from_bytes(blake2b(text.encode(), digest_size=6).digest()) / 2**48


def _split(sentence: Sentence, is_test: bool) -> Sentence:
    """Label each target with its form, in lower case, and the part that its sentence is in."""
    forms = [word.lower() for word in sentence.words]
    for start, stop in sentence.targets:
        forms[start] = " ".join(forms[start:stop])
    split = TEST if is_test else TRAIN
    return Sentence(sentence.words, _columns(sentence.labels["class"], forms, split), sentence.targets)


def _columns(senses: Sequence[str | None], targets: Iterable[str], split: str) -> dict[str, list[str | None]]:
    return {
        "sense": list(senses),
        "target": [target if sense else None for sense, target in zip(senses, targets, strict=True)],
        "split": [split if sense else None for sense in senses],
    }


def _word(folder: Path) -> Iterator[Sentence]:
    """Yield the sentences of a word of CoarseWSD-20.

    A line of train.data.txt and test.data.txt is the position of the word, a tab, and words joined by spaces; the same
    line of the gold file has the number of its class, which classes_map.txt names, if it exists.
    """
    names: dict[str, str] = {}
    for file in (folder / "classes_map.txt", folder / "class_map.txt"):
        if file.is_file():
            try:
                names = {str(key): str(name) for key, name in json.loads(file.read_text("utf-8")).items()}
            except (ValueError, AttributeError):
                raise CorpusError(f"{file}: is not a JSON object of class names") from None
    for split in (TRAIN, TEST):
        lines = Lines(folder / f"{split}.data.txt")
        given, gold = (list(each) for each in (lines, Lines(folder / f"{split}.gold.txt")))
        if len(given) != len(gold):
            raise CorpusError(f"{folder}: {len(given)} lines of {split}.data.txt and {len(gold)} of {split}.gold.txt")
        if not given:
            raise CorpusError(f"{folder}: {split}.data.txt has no line")
        for number, (line, sense) in enumerate(zip(given, gold, strict=True), 1):
            position, _, text = line.partition("\t")
            words = text.split()
            if not (position.isdecimal() and int(position) < len(words) and sense.strip()):
                raise lines.error(number, f"{quoted(line)} is not the position of a word, a tab and words")
            name = names.get(sense.strip(), sense.strip())
            senses = [name if at == int(position) else None for at in range(len(words))]
            yield Sentence(words, _columns(senses, [folder.name] * len(words), split))

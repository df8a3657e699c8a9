"""Labelled rows of a store and their splits: by a column, by conditions, or drawn by document or word."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cached_property
from hashlib import blake2b
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from embstore.analysis.scan import labelled
from embstore.errors import InvalidValueError
from embstore.intervals import MIN_UNITS
from embstore.probes.classes.examples import LabelledExamples, StoredExamples
from embstore.probes.control import ControlTask
from embstore.probes.splits import SPLITS, draw, given_split, some
from embstore.store import Selection
from embstore.store.index import Index

DRAWN = ("document", "word")  # the units by which splits are drawn
Numbers = NDArray[np.int64]


class Units(NamedTuple):
    """The documents or words, by their keys, whose split was drawn: those of train and of dev."""

    train: Numbers
    dev: Numbers


class LabelledRows:
    """The labelled `rows` of a selection, ascending; of each its label, a place in `names`, and the split `places`.

    `keys`: the document of each row, or its word where the split is by word: what is independent. `units`: those whose
    split was drawn; where all were, any other is of test, as train has not seen it.
    """

    def __init__(
        self, selection: Selection, label: str, split: str | Mapping[str, str], units: Units | None = None
    ) -> None:
        self.store, self._index, self.is_drawn = selection.store, selection.store.index, split in DRAWN
        self.rows, column = labelled(selection, label)
        self.is_field, self.names, self.codes = label in self._index.fields, list(column.names), column.codes[self.rows]
        self.keys = keys_of(self._index, self.rows, "word" if split == "word" else "document")
        self.places = given_split(self.store, self.rows, split) if not self.is_drawn else np.zeros_like(self.codes)
        if units is not None:
            self._divide(units)

    def _divide(self, units: Units) -> None:
        if self.is_drawn:
            self.places = np.where(np.isin(self.keys, units.train), 0, 2)
        self.places = np.where((self.places != 1) & np.isin(self.keys, units.dev), 1, self.places)

    def draw(self, shares: Mapping[str, float], seed: int) -> Units:
        """Draw splits for the units of train rows, for each split a share of those that are left, and return them."""
        drawn, left = {"dev": self.keys[:0]}, np.unique(self.keys[self.places == 0])
        for split, share in shares.items():
            chosen = draw(len(left), share, seed)
            if not chosen.any() or chosen.all():
                raise InvalidValueError(
                    f"a share of {share:g} of {len(left):,} documents or words leaves none for {split} or train: give "
                    "more of them, another share, or a column that says the split"
                )
            drawn[split], left = left[chosen], left[~chosen]
        units = Units(left, drawn["dev"])
        self._divide(units)
        return units

    def checked(self) -> tuple[tuple[str, ...], list[str]]:
        """Return the labels of train, and notes of what is left out or weak; refuses what tells nothing of the vectors.

        Where all rows of a document have one label, no document may be in train and another split.
        """
        what, train = self.store.path.stem, self.places == 0
        used = [self.names[code] for code in np.unique(self.codes[train]).tolist()]
        if len(used) < 2:
            raise InvalidValueError(f"{len(used)} labels are in train: give two or more, or change the split")
        others = np.unique(self.codes[self.places > 0]).tolist()
        if absent := [self.names[code] for code in others if self.names[code] not in used]:
            raise InvalidValueError(
                f"{len(absent):,} labels of dev or test are not in train: {some(absent)}: leave them out, such as with "
                "select(labels=...), or change the split"
            )
        documents, notes = self._index.document_of(np.asarray(self._index.sentence[self.rows])), []
        for place, split in enumerate(SPLITS[1:], 1):
            own = self.places == place
            mine = np.unique(self.keys[own])
            n_shared, n_equal = (len(np.intersect1d(of[own], of[train])) for of in (documents, self.keys))
            if n_shared and self.one_label and not self.is_drawn:
                raise InvalidValueError(
                    f"{n_shared:,} of {len(mine):,} {split} documents have train rows too, each with one label: give "
                    "split 'document', or change the column"
                )
            if split == "test" and len(mine) == 1 and (self.one_label or self.is_drawn):
                raise InvalidValueError("test has 1 document or word only: give more of them, or a larger share")
            if n_equal:
                why = "have train rows too, or the text of a train document: they are not independent"
                notes.append(f"{what}: {n_equal:,} of {len(mine):,} {split} documents {why}")
            if 0 < len(mine) < MIN_UNITS:
                notes.append(f"{what}: {split}: no intervals of {len(mine)} documents or words, less than {MIN_UNITS}")
        if n_out := int((self.places < 0).sum()):
            notes.append(f"{what}: {n_out:,} labelled rows are in no split and left out")
        pairs = np.unique(np.stack([self.codes[train], self.keys[train]]), axis=1)[0]
        rare = [self.names[code] for code in np.flatnonzero(np.bincount(pairs) < MIN_UNITS) if (pairs == code).any()]
        if rare:
            notes.append(f"{what}: labels in less than {MIN_UNITS} train documents or words: {some(rare)}")
        return tuple(used if self.is_field else sorted(used)), notes

    @cached_property
    def one_label(self) -> bool:
        """Whether all rows of a document have one label."""
        pairs = np.unique(np.stack([self.keys, self.codes]), axis=1)
        return len(np.unique(self.keys)) == int(pairs.shape[1])

    @property
    def control_unit(self) -> str:
        """What control labels are drawn by: the document where it has one label, else the word."""
        is_shared = self.one_label and len(np.unique(self.keys)) < len(self.keys)
        return "document" if self.is_field or is_shared else "word"

    def gold(self, classes: tuple[str, ...]) -> Numbers:
        """Return the place of each label among the classes, -1 for others."""
        places = {name: place for place, name in enumerate(classes)}
        return np.array([places.get(name, -1) for name in self.names], np.int64)[self.codes]

    def control(self, task: ControlTask, unit: str) -> Numbers:
        """Return the labels of a control task."""
        keys, inverse = np.unique(keys_of(self._index, self.rows, unit), return_inverse=True)
        return np.asarray(task.gold([str(key) for key in keys.tolist()]).argmax(1)[inverse])

    def examples(self, split: str, labels: list[Numbers], n_classes: int) -> LabelledExamples:
        """Return the rows of a split; `labels`: those of each task."""
        own = self.places == SPLITS.index(split)
        kinds, group = np.unique(np.stack([each[own] for each in labels]), axis=1, return_inverse=True)
        targets = np.concatenate([np.eye(n_classes, dtype=bool)[each] for each in kinds], 1)
        return LabelledExamples(StoredExamples(self.store, self.rows[own]), group.reshape(-1), targets)


def keys_of(index: Index, rows: Numbers, unit: str) -> Numbers:
    """Return a number for the unit of each row, the same in every store: a hash of the word, or of the document's text.

    Documents that differ in white space alone are one.
    """
    if unit == "word":
        types, inverse = np.unique(index.type[rows], return_inverse=True)
        return _hashes(index.words[number] for number in types.tolist())[inverse]
    documents, inverse = np.unique(index.document_of(np.asarray(index.sentence[rows])), return_inverse=True)
    of_sentences = index.document_of(np.arange(len(index.text)))
    bounds = zip(*(np.searchsorted(of_sentences, documents, side).tolist() for side in ("left", "right")), strict=True)
    texts = (" ".join(index.text.slice(start, stop)) for start, stop in bounds)
    return _hashes(" ".join(text.split()) for text in texts)[inverse]


def _hashes(texts: Iterable[str]) -> Numbers:
    return np.frombuffer(b"".join(blake2b(text.encode(), digest_size=8).digest() for text in texts), np.int64)

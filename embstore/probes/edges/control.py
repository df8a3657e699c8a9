"""Control tasks of edge probing (Hewitt & Liang 2019): labels drawn by the forms of spans, for memory alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from embstore.probes.control import CONTROL, ControlTask
from embstore.probes.edges.tasks import EdgeSplit, EdgeTask
from embstore.store import Store


def control_task(task: EdgeTask, store: Store, *, seed: int) -> EdgeTask:
    """The same targets with labels drawn at random, as often as train has them.

    What a target gets depends on the forms of the rows of its spans, on the seed and on the labels of train alone:
    the same forms get the same in all splits. A target gets the labels of one target of train, so one label where
    all have one.
    """
    train = task.splits["train"]
    kinds, counts = np.unique(train.gold, axis=0, return_counts=True)
    drawing = ControlTask(seed, kinds, counts.astype(np.int64))
    forms = _Forms(store)
    splits = {}
    for name, split in task.splits.items():
        gold = drawing.gold(list(forms.of(split)))
        splits[name] = replace(split, gold=gold, unknown=np.zeros(len(split), np.int64))
    return replace(task, name=f"{task.name}: {CONTROL}", splits=splits)


class _Forms:
    """The spelling of spans of a store, words once read are kept."""

    def __init__(self, store: Store) -> None:
        self._index = store.index
        self._known: dict[int, str] = {}

    def of(self, split: EdgeSplit) -> Iterator[str]:
        """The forms of each target: words joined by a space, spans by a tab."""
        for spans in zip(*(kind.tolist() for kind in split.spans), strict=True):
            yield "\t".join(" ".join(self._words(start, stop)) for start, stop in spans)

    def _words(self, start: int, stop: int) -> Iterator[str]:
        for number in self._index.type[start:stop].tolist():
            if number not in self._known:
                self._known[number] = self._index.words[number]
            yield self._known[number]

"""The label of an occurrence as its nearest labelled neighbours have it: exact k-nearest-neighbour classification."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from embstore.analysis.neighbors.exact import ArrayVectors, Exclusion, Hits, StoreVectors, exact_search
from embstore.analysis.neighbors.hubness import QUERIES_AT_ONCE, space_name
from embstore.analysis.neighbors.space import Space, space_of
from embstore.analysis.neighbors.splits import Asking, asking_of, groups_of
from embstore.store import Selection, Store

WORDS_AT_ONCE = 2**15  # occurrences gathered together, of words that are searched one by one
SCHEMA = {
    "task": pl.String,
    "layer": pl.Int64,
    "split": pl.String,
    "k": pl.Int64,
    "space": pl.String,
    "metric": pl.String,
    "item": pl.String,
    "value": pl.Float64,
    "baseline": pl.Float64,
    "count": pl.Int64,
    "seed": pl.Int64,
}


def knn_labels(
    source: Store | Selection,
    *,
    label: str,
    layers: int | Sequence[int] | None = None,
    k: int = 1,
    split: str | None = None,
    train_words: Iterable[str] | None = None,
    test_words: Iterable[str] | None = None,
    metric: str = "cosine",
    center: bool = False,
    components: int = 0,
    sample: int | None = None,
    seed: int = 0,
    device: str = "cpu",
    progress: Callable[[int], object] | None = None,
) -> pl.DataFrame:
    """How often the k nearest labelled occurrences have the label of an occurrence, by layer and label.

    The most frequent label of the k wins, of equally frequent ones the one that is nearest. `split` says which
    occurrences are asked and which are their neighbours:
    `words`: those of `test_words` and of `train_words` (all other words, where these are not given); the default where
    words are given. `leave-one-word-out`: all, and those of all other words; the default otherwise. `within-word`:
    those of words of two or more labels, and the other ones of the same word, none of the same sentence.

    Rows are `task, layer, split, k, space, metric, item, value, baseline, count, seed`: `accuracy` over the `count`
    occurrences asked, `recall` of each label (`item`; over its occurrences), `macro_recall`, the mean of these over
    `count` labels. `baseline` is the same figure for the most frequent label among those that an occurrence could have
    had as neighbours. `task` is the label column. Occurrences that have no neighbour at all are not asked.

    `center`, `components`: the mean and so many principal components, learnt from all that is selected, are taken away
    first. `sample`: as many occurrences are asked, drawn with the `seed`. `progress`: is told how many are done, of
    `layers * count`.

    Raises InvalidValueError (no such column, split or layer; word lists that overlap or that the store lacks; k of 0 or
    beyond the neighbours there are), MissingRowsError, NonFiniteError.
    """
    asking = asking_of(source, label, layers, k, split, train_words, test_words, sample, seed)
    frames = []
    for place, layer in enumerate(asking.selection.layers):
        space = space_of(asking.selection, layer, metric=metric, center=center, components=components)
        found = _found(asking, layer, k, space, device, _advance(progress, place * len(asking.queries)))
        told = {"task": label, "layer": layer, "split": asking.split, "k": k, "space": space_name(space), "seed": seed}
        frames.append(_scored(asking, found, told))
    return pl.concat(frames)


def knn_predictions(
    source: Store | Selection,
    *,
    label: str,
    layer: int,
    k: int = 1,
    split: str | None = None,
    train_words: Iterable[str] | None = None,
    test_words: Iterable[str] | None = None,
    metric: str = "cosine",
    center: bool = False,
    components: int = 0,
    sample: int | None = None,
    seed: int = 0,
    device: str = "cpu",
    progress: Callable[[int], object] | None = None,
) -> pl.DataFrame:
    """The label that the nearest labelled occurrences give each occurrence asked, in one layer; see `knn_labels`.

    One row an occurrence: `occurrence, word, label, predicted, nearest, nearest_word, score`; `nearest` is the row of
    the nearest neighbour that has the predicted label, `score` how near it is in the metric.
    """
    asking = asking_of(source, label, layer, k, split, train_words, test_words, sample, seed)
    space = space_of(asking.selection, layer, metric=metric, center=center, components=components)
    found = _found(asking, layer, k, space, device, _advance(progress, 0))
    asked = found.predicted >= 0
    index = asking.selection.store.index
    names = np.array([*index.labels[label].names, ""], object)

    def words(rows: NDArray[np.int64]) -> list[str]:
        return [index.words[number] for number in index.type[rows].tolist()]

    return pl.DataFrame(
        {
            "occurrence": asking.queries[asked],
            "word": words(asking.queries[asked]),
            "label": names[asking.codes[asking.queries[asked]]].tolist(),
            "predicted": names[found.predicted[asked]].tolist(),
            "nearest": found.nearest[asked],
            "nearest_word": words(found.nearest[asked]),
            "score": found.scores[asked],
        },
        schema_overrides=dict.fromkeys(("word", "label", "predicted", "nearest_word"), pl.String),
    )


@dataclass(frozen=True, eq=False)
class _Found:
    """Of each query the label predicted (-1: it has no neighbour), the nearest row that has it, and its score."""

    predicted: NDArray[np.int64]
    nearest: NDArray[np.int64]
    scores: NDArray[np.float64]


def _found(asking: Asking, layer: int, k: int, space: Space, device: str, advance: Callable[[int], object]) -> _Found:
    count = len(asking.queries)
    found = _Found(np.full(count, -1), np.full(count, -1), np.full(count, np.nan))
    search = _among_all if asking.one_pool else _word_by_word
    for places, hits in search(asking, layer, k, space, device):
        predicted, first = _vote(np.where(hits.rows < 0, -1, asking.codes[hits.rows]))
        at = np.arange(len(places)), first
        found.predicted[places], found.nearest[places], found.scores[places] = predicted, hits.rows[at], hits.scores[at]
        advance(len(places))
    return found


def _among_all(
    asking: Asking, layer: int, k: int, space: Space, device: str
) -> Iterator[tuple[NDArray[np.int64], Hits]]:
    """The neighbours of all queries among all candidates: which queries, and their hits."""
    vectors = StoreVectors(asking.selection.store, layer)
    for start in range(0, len(asking.queries), QUERIES_AT_ONCE):
        rows = asking.queries[start : start + QUERIES_AT_ONCE]
        exclude = [Exclusion(asking.left, asking.left[rows])]
        hits = exact_search(
            vectors, vectors.gather(rows), k=k, space=space, rows=asking.candidates, exclude=exclude, device=device
        )
        yield np.arange(start, start + len(rows)), hits


def _word_by_word(
    asking: Asking, layer: int, k: int, space: Space, device: str
) -> Iterator[tuple[NDArray[np.int64], Hits]]:
    """The neighbours of each query among the candidates of its own pool, which are few."""
    store = asking.selection.store
    is_asked = np.zeros(store.n_rows, bool)
    is_asked[asking.queries] = True
    pools = [asking.candidates[members] for members in groups_of(asking.pool)]
    batch = np.cumsum([len(rows) for rows in pools]) // WORDS_AT_ONCE
    for number in np.unique(batch).tolist():
        together = pools[np.searchsorted(batch, number) : np.searchsorted(batch, number, "right")]
        vectors = store.gather(np.concatenate(together), layer)
        edges = np.cumsum([len(rows) for rows in together])[:-1]
        for rows, own in zip(together, np.split(vectors, edges), strict=True):
            asked = np.flatnonzero(is_asked[rows])
            if not len(asked):
                continue
            left = asking.left[rows]
            exclude = [Exclusion(left, left[asked])]
            hits = exact_search(
                ArrayVectors(own), own[asked], k=k, space=space, exclude=exclude, device=device, threads=1
            )
            places = np.searchsorted(asking.queries, rows[asked])
            yield places, Hits(np.where(hits.rows < 0, -1, rows[hits.rows]), hits.scores)


def _vote(codes: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The label of most of each row's codes [q, k] (-1: none), of equals the first, and where it stands first."""
    if codes.shape[1] == 1:
        return codes[:, 0].astype(np.int64), np.zeros(len(codes), np.int64)
    votes = np.stack([(codes == codes[:, place, None]).sum(1) for place in range(codes.shape[1])], 1)
    first = np.where(codes < 0, 0, votes).argmax(1)
    return codes[np.arange(len(codes)), first].astype(np.int64), first


def _scored(asking: Asking, found: _Found, told: dict[str, object]) -> pl.DataFrame:
    asked = found.predicted >= 0
    names = asking.selection.store.index.labels[str(told["task"])].names
    true = asking.codes[asking.queries[asked]]
    counts = np.bincount(true, minlength=len(names))
    shares = []
    for guessed in (found.predicted[asked], asking.usual[asked]):
        right = np.bincount(true, weights=guessed == true, minlength=len(names))
        shares.append((right, right / np.maximum(counts, 1)))
    (right, recall), (usual, usual_recall) = shares
    known = np.flatnonzero(counts)
    total = int(counts.sum())
    rows = [("accuracy", "", right.sum() / total, usual.sum() / total, total)] if total else []
    if total:
        rows.append(("macro_recall", "", recall[known].mean(), usual_recall[known].mean(), len(known)))
    rows += [("recall", names[code], recall[code], usual_recall[code], int(counts[code])) for code in known.tolist()]
    columns = ("metric", "item", "value", "baseline", "count")
    return pl.DataFrame([told | dict(zip(columns, row, strict=True)) for row in rows], schema=SCHEMA)


def _advance(progress: Callable[[int], object] | None, before: int) -> Callable[[int], object]:
    done = before

    def advance(queries: int) -> None:
        nonlocal done
        done += queries
        if progress is not None:
            progress(done)

    return advance

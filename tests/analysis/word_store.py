"""Stores of chosen vectors, word by word, shuffled over sentences, and the same vectors as they read back."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from embstore.store import Labels, Store, Strings, Text
from tests.probes.class_store import write_rows as write_store
from tests.store.example import encoded


@dataclass(frozen=True)
class Written:
    """A store, and of each word (by name) its rows, ascending; `values` [layer, row, feature] float64."""

    store: Store
    rows: dict[str, list[int]]
    values: np.ndarray

    def of(self, word: str, layer: int) -> np.ndarray:
        """The vectors of a word in a layer, float64 [n, feature]."""
        return np.array([self.values[self.store.layers.index(layer), row] for row in self.rows[word]])


def write_words(
    path: Path,
    vectors: Sequence[tuple[str, np.ndarray]],
    *,
    layers: tuple[int, ...] = (2,),
    dtype: str = "float32",
    seed: int = 0,
    texts: Sequence[str] | None = None,
    written: bool = True,
) -> Written:
    """Write words with their vectors, [n, feature] or [layer, n, feature] each, in an order that mixes them.

    A sentence has four words; `texts` gives them other texts. Partitions have 256 rows; with `written=False` the
    last one is not written.
    """
    rng = np.random.default_rng(seed)
    names = [word for word, _ in vectors]
    held = [np.broadcast_to(array, (len(layers), *array.shape[-2:])) for _, array in vectors]
    order = rng.permutation(sum(array.shape[1] for array in held))
    types = np.repeat(np.arange(len(names)), [array.shape[1] for array in held])[order]
    together = np.concatenate(held, axis=1)[:, order]
    options = {"layers": layers, "dtype": dtype, "texts": texts, "written": written}
    return write_rows(path, names, types, together, **options)  # type: ignore[arg-type]


def write_rows(
    path: Path,
    names: Sequence[str],
    types: np.ndarray,
    vectors: np.ndarray,
    *,
    layers: tuple[int, ...] = (2,),
    dtype: str = "float32",
    texts: Sequence[str] | None = None,
    written: bool = True,
    sentence_words: int = 4,
    labels: Mapping[str, Labels] | None = None,
) -> Written:
    """Write occurrences in their order: `types` [row] among the words `names`, `vectors` [layer, row, feature]."""
    rows = np.arange(len(types))
    texts = texts or [f"text number {number}" for number in range(rows[-1] // sentence_words + 1)]
    store = write_store(
        path, vectors, layers, dtype, written=written,
        type=types.astype(np.int32), sentence=rows // sentence_words, position=(rows % sentence_words).astype(np.int32),
        words=Strings.of(names), text=Text.of_words(map(str.split, texts)), labels=dict(labels or {}),
    )  # fmt: skip
    _, values, _ = encoded(vectors.astype(np.float32), dtype)
    places: dict[str, list[int]] = {name: [] for name in names}
    for row, number in enumerate(types.tolist()):
        places[names[number]].append(row)
    return Written(store, places, np.asarray(values, np.float64))


def write_senses(path: Path, listed: list[tuple[str, str | None, list[float]]], *, sentence: int = 3) -> Store:
    """A store of one layer with the label column `class`: the occurrences given as word, label and vector, in order."""
    words = sorted({word for word, _, _ in listed})
    names = sorted({label for _, label, _ in listed if label is not None})
    codes = np.array([-1 if label is None else names.index(label) for _, label, _ in listed], np.int32)
    types = np.array([words.index(word) for word, _, _ in listed])
    vectors = np.array([[vector for _, _, vector in listed]])
    labels = {"class": Labels(codes, Strings.of(names))}
    texts = [f"sentence {number}" for number in range(-(-len(listed) // sentence))]
    return write_rows(path, words, types, vectors, texts=texts, sentence_words=sentence, labels=labels).store


def one_line(call: Callable[[], object], kind: type[Exception], *parts: str) -> None:
    """Require that a call raises an error of one line that has all these parts."""
    with pytest.raises(kind) as caught:
        call()
    message = str(caught.value)
    assert all(part in message for part in parts), message


def awkward_words(hidden_size: int = 12, *, seed: int = 0) -> list[tuple[str, np.ndarray]]:
    """Words of every kind that a spectrum could stumble over, with more and with fewer occurrences than features."""
    rng = np.random.default_rng(seed)

    def normal(count: int) -> np.ndarray:
        return rng.normal(size=(count, hidden_size))

    common = 30 * rng.normal(size=hidden_size)
    same = rng.normal(size=(1, hidden_size))
    zero = np.zeros((1, hidden_size))
    words = [(f"random{count}", normal(count)) for count in (1, 2, 3, 5, 5, 7, 8, 9, 11, 12, 13, 40, 90)]
    words = [(f"{name}-{place}", array) for place, (name, array) in enumerate(words)]
    words += [(f"anisotropic{count}", common + normal(count)) for count in (2, 6, 12, 50)]
    words += [(f"lengths{count}", normal(count) * 10.0 ** rng.uniform(-3, 2, (count, 1))) for count in (4, 10, 30)]
    words += [(f"outlier{count}", np.concatenate([1000 * same, normal(count)])) for count in (3, 10, 60)]
    words += [(f"equal{count}", np.repeat(same, count, 0)) for count in (2, 5, 12, 20)]
    words += [("pairs", np.repeat(normal(4), 2, 0)), ("pairs-many", np.repeat(normal(10), 2, 0))]
    words += [("zero-one", zero), ("zero-few", np.repeat(zero, 4, 0)), ("zero-many", np.repeat(zero, 15, 0))]
    words += [("zero-among-few", np.concatenate([normal(3), zero])), ("zero-first", np.concatenate([zero, normal(16)]))]
    words += [("orthogonal", 3 * np.eye(hidden_size)[:5]), ("line", normal(9)[:, :1] * same)]
    return words

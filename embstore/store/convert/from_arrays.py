"""Make a store of texts and arrays, however they were computed."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from importlib.metadata import version
from itertools import chain
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from embstore.arguments import checked
from embstore.config import settings
from embstore.errors import InvalidValueError
from embstore.store.convert.filling import PartitionBuffer, fill_store, require_free_path
from embstore.store.index import IndexBuilder
from embstore.store.layout import Layout
from embstore.store.metadata import Metadata
from embstore.store.storage.location import ObjectPath, parse_location
from embstore.store.store import Store


@checked
def write_arrays(
    out: str | os.PathLike[str] | ObjectPath,
    sentences: Iterable[Sequence[str]],
    arrays: Iterable[Any],
    *,
    model: str,
    layers: Sequence[int] | None = None,
    dtype: Literal["float32", "float16", "bfloat16"] = "float16",
    corpus: str = "unknown",
) -> Store:
    """Make a store of the words of sentences and their vectors, read one sentence at a time.

    Parameters
    ----------
    out : str or path
        A new .zarr or .h5, or the URL of a .zarr in a bucket. The same call resumes an interrupted one.
    sentences : iterable of lists of str
        The words of each sentence, at least one, without spaces.
    arrays : iterable of arrays
        For each sentence floats [layer, word, feature], in the same order.
    model, corpus : str
        What made the vectors, and what the sentences are, for the metadata.
    layers : list of int, optional
        The number of each layer, ascending; from 0 by default.
    dtype : str
        What is stored; `embstore.export` converts it to int8.

    Returns
    -------
    Store

    Raises
    ------
    InvalidValueError
        For a path that is taken, words with spaces, and arrays that do not fit the sentences.
    NonFiniteError
        For values that the dtype cannot hold.
    """
    path = parse_location(out)
    require_free_path(path)
    builder = IndexBuilder()
    for number, words in enumerate(sentences):
        if isinstance(words, str) or not len(words) or not all(map(_is_word, words)):
            raise InvalidValueError(f"sentence {number} is not a list of words without spaces: {str(words)[:60]!r}")
        builder.add(number, list(words))
    index, rest = builder.build(), iter(arrays)
    first = np.asarray(next(rest, np.empty(0)))
    if first.ndim != 3 or not builder.n_rows:
        raise InvalidValueError(f"arrays of shape {first.shape} are not allowed: give [layer, word, feature]")
    n_layers, _, hidden_size = first.shape
    numbers = tuple(range(n_layers)) if layers is None else tuple(layers)
    layout = Layout.of(n_rows=builder.n_rows, layers=numbers, hidden_size=hidden_size, dtype=dtype)
    metadata = Metadata(
        n_rows=builder.n_rows,
        layers=numbers,
        hidden_size=hidden_size,
        dtype=dtype,
        partition_rows=layout.partition_rows,
        model={
            "name": model,
            "architecture": "unknown",
            "revision": None,
            "num_hidden_layers": max(numbers, default=0),
            "hidden_size": hidden_size,
            "max_subwords": None,
        },
        corpus={
            "name": corpus,
            "format": "words",
            "n_sentences": len(index.text),
            "n_words": builder.n_rows,
            "sha256": builder.text_sha256,
        },
        extraction={"unit": "word", "pooling": "unknown"},
        software={package: version(package) for package in ("embstore", "numpy")},
    )
    rows = _Rows(chain([first], rest), index.indptr, (n_layers, hidden_size))
    return fill_store(
        path, metadata=metadata, index=index, center=None, fill=rows.fill, progress=settings().progress, label="write"
    )


def _is_word(word: object) -> bool:
    return isinstance(word, str) and bool(word) and " " not in word


def _named(sentence: int, first: int, word: int) -> str:
    return f"sentence {sentence}, word {first + word}"


class _Rows:
    """The rows of arrays, of which one is held at a time; partitions are filled in ascending order."""

    def __init__(self, arrays: Iterator[Any], indptr: NDArray[np.int64], shape: tuple[int, int]) -> None:
        self._arrays, self._indptr, self._shape = arrays, indptr, shape
        self._sentence = -1
        self._array: NDArray[Any] = np.empty(0)

    def fill(self, buffer: PartitionBuffer, start: int, stop: int) -> None:
        row = start
        while row < stop:
            sentence = int(self._indptr.searchsorted(row, "right")) - 1
            begin, end = self._indptr[sentence : sentence + 2].tolist()
            array = self._array_of(sentence)[:, row - begin : min(end, stop) - begin]
            buffer.put(0, row - start, array, where=partial(_named, sentence, row - begin))
            row += array.shape[1]

    def _array_of(self, sentence: int) -> NDArray[Any]:
        while self._sentence < sentence:
            self._sentence += 1
            self._array = np.asarray(next(self._arrays, np.empty(0)))
            n_layers, hidden_size = self._shape
            n_words = int(np.diff(self._indptr[self._sentence : self._sentence + 2])[0])
            if self._array.shape != (n_layers, n_words, hidden_size) or self._array.dtype.kind != "f":
                raise InvalidValueError(
                    f"the array of sentence {self._sentence} is {self._array.dtype} {self._array.shape}, not floats "
                    f"({n_layers}, {n_words}, {hidden_size})"
                )
        return self._array

"""Make a store of hidden states that another tool has extracted."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from embstore.arguments import checked
from embstore.errors import CorpusError, StorageError
from embstore.progress import Progress
from embstore.spacing import ATTACHED
from embstore.store.convert.filling import (
    PartitionBuffer,
    fill_store,
    require_dtype,
    require_free_path,
    require_storable,
    sample_rows,
)
from embstore.store.index import Index, IndexBuilder
from embstore.store.layout import Layout, resolve_layers
from embstore.store.metadata import Metadata
from embstore.store.storage.location import ObjectPath, parse_location
from embstore.store.store import Layers, Store

if TYPE_CHECKING:
    from embstore.store.convert.sentence_file import SentenceFile

Words = Sequence[str]


@checked
def import_store(
    source: str | os.PathLike[str],
    out: str | os.PathLike[str] | ObjectPath,
    *,
    corpus: Iterable[Words] | None = None,
    layers: Layers = None,
    dtype: str = "float16",
    progress: Progress = None,
) -> Store:
    """Make the store `out` of an HDF5 file that NeuroX or `allennlp elmo` wrote, with one dataset for each sentence.

    `corpus`: the words of every sentence, in the order of the datasets' numbers; required where the file does not name
    all its sentences, or names them by pieces of byte-level BPE. `layers`: some of the file's, counted from 0; -1 or
    "last" is the last one. `progress`: a function of (rows written, rows in all), or False for no bar. The same call
    resumes an interrupted import.

    Raises StoreNotFoundError or StoreFormatError for any other file, CorpusError where the words do not fit the
    datasets, NonFiniteError for values that the dtype cannot hold, InvalidValueError for a path that is taken,
    StorageError.
    """
    from embstore.store.convert.sentence_file import SentenceFile

    require_dtype(dtype)
    path = parse_location(out)
    require_free_path(path)
    with SentenceFile(Path(source)) as file:
        chosen = resolve_layers(layers, range(file.n_layers), ascending=True)
        builder = _build_index(file, corpus)
        metadata = _metadata(file, builder, chosen, dtype)
        rows = _Rows(file, builder.build(), metadata.layout)
        return fill_store(
            path,
            metadata=metadata,
            index=rows.index,
            center=rows.center() if dtype == "int8" else None,
            fill=rows.fill,
            progress=progress,
            label="import",
        )


def _build_index(file: SentenceFile, corpus: Iterable[Words] | None) -> IndexBuilder:
    builder = IndexBuilder()
    missing = dict(zip(file.numbers, file.n_words.tolist(), strict=True))
    if corpus is None:
        for number, count in missing.items():
            if count:
                builder.add(number, _checked(file.words_of(number, count), number))
        return builder
    for number, sentence in enumerate(corpus):
        words = _checked(sentence, number)
        if number not in missing and words:
            raise CorpusError(
                f"{file.path} has no dataset '{number}' for sentence {number} of the corpus: give the corpus that the "
                "file was made of"
            )
        count = missing.pop(number, 0)
        if len(words) != count:
            raise CorpusError(
                f"{file.path}: dataset '{number}' has {count} words and sentence {number} of the corpus {len(words)}: "
                "give the corpus that the file was made of, split into the same words"
            )
        if words:
            builder.add(number, words)
    if missing:
        number = min(missing)
        raise CorpusError(
            f"{file.path} has a dataset '{number}' and the corpus no sentence {number}: give the whole corpus that the "
            "file was made of"
        )
    return builder


def _checked(sentence: Any, number: int) -> list[str]:
    if isinstance(sentence, str | bytes):
        raise CorpusError(f"sentence {number} of the corpus is {type(sentence).__name__}, not a list of words")
    try:
        words = list(sentence)
        for word in words:
            if not word or " " in word or ATTACHED in word:
                raise CorpusError(
                    f"sentence {number} of the corpus has a word {word!r}: words are not empty and have neither a "
                    "space nor U+001F"
                )
            word.encode()
    except UnicodeEncodeError:
        raise CorpusError(f"sentence {number} of the corpus has half a surrogate pair, which is not text") from None
    except (TypeError, AttributeError):
        raise CorpusError(f"sentence {number} of the corpus is not a list of words: {str(sentence)[:60]!r}") from None
    return words


def _metadata(file: SentenceFile, builder: IndexBuilder, layers: tuple[int, ...], dtype: str) -> Metadata:
    layout = Layout.of(n_rows=builder.n_rows, layers=layers, hidden_size=file.hidden_size, dtype=dtype)
    try:
        with file.path.open("rb") as stream:
            sha256 = hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError as error:
        raise StorageError(f"cannot read {file.path}: {error.strerror}") from error
    return Metadata(
        n_rows=builder.n_rows,
        layers=layers,
        hidden_size=file.hidden_size,
        dtype=dtype,
        partition_rows=layout.partition_rows,
        model={
            "name": f"imported from {file.path.name}",
            "architecture": "unknown",
            "revision": None,
            "num_hidden_layers": file.n_layers - 1,
            "hidden_size": file.hidden_size,
            "max_subwords": None,
        },
        corpus={
            "name": file.path.name,
            "format": "hdf5",
            "n_sentences": len(file.numbers),
            "n_words": builder.n_rows,
            "sha256": builder.text_sha256,
        },
        extraction={
            "unit": "word",
            "pooling": "unknown",
            "import": {"n_layers": file.n_layers, "sha256": sha256},
        },
        software={package: version(package) for package in ("embstore", "h5py", "numpy")},
    )


class _Rows:
    """The rows of the store, read from the file one sentence at a time."""

    def __init__(self, file: SentenceFile, index: Index, layout: Layout) -> None:
        self.index = index
        self._file = file
        self._layout = layout

    def fill(self, buffer: PartitionBuffer, start: int, stop: int) -> None:
        """Put rows `[start, stop)` into the buffer."""
        row = start
        while row < stop:
            vectors, where = self._read(row, stop)
            for position, layer in enumerate(self._layout.layers):
                buffer.put(position, row - start, vectors[layer], where=where)
            row += vectors.shape[1]

    def center(self) -> NDArray[np.float32]:
        """Return the mean of each layer over a sample of the rows."""
        total = np.zeros((len(self._layout.layers), self._layout.hidden_size))
        sample = sample_rows(self._layout.n_rows)
        for row in sample.tolist():
            vectors, where = self._read(row, row + 1)
            for position, layer in enumerate(self._layout.layers):
                require_storable(vectors[layer], dtype="int8", layer=layer, where=where)
                total[position] += vectors[layer, 0]
        return (total / len(sample)).astype(np.float32)

    def _read(self, row: int, stop: int) -> tuple[NDArray[Any], Callable[[int], str]]:
        """Return rows `[row, stop)` as far as they are of one sentence [layer, n, feature], and how to name each."""
        sentence = int(self.index.sentence[row])
        begins, ends = self.index.indptr[sentence : sentence + 2].tolist()
        number, first = int(self.index.source[sentence]), row - begins
        vectors = self._file.read(number, first, min(ends, stop) - begins)
        return vectors, lambda word: f"sentence {number}, word {first + word} of {self._file.path}"

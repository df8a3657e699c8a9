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
from embstore.errors import CorpusError, InvalidValueError, StorageError, check_choice, quoted
from embstore.progress import Progress
from embstore.spacing import ATTACHED
from embstore.store.convert.filling import (
    PartitionBuffer,
    fill_store,
    require_free_path,
    require_storable,
    sample_rows,
)
from embstore.store.convert.token_files import (
    Sequences,
    TokenIndex,
    load_tokenizer,
    open_sequences,
    tokenizer_sha256,
)
from embstore.store.index import Index, IndexBuilder
from embstore.store.layout import Layers, Layout, resolve_layers
from embstore.store.metadata import MAX_LAYERS, Metadata
from embstore.store.storage.location import ObjectPath, parse_location
from embstore.store.store import Store
from embstore.store.vectors import DTYPES

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
    model: str | os.PathLike[str] | None = None,
    dtype: str = "float16",
    progress: Progress = None,
) -> Store:
    """Make the store `out` of hidden states that another tool has written.

    An HDF5 file of NeuroX or `allennlp elmo`, with one dataset for each sentence. `corpus`: the words of every
    sentence, in the order of the datasets' numbers; required where the file does not name all its sentences, or names
    them by pieces of byte-level BPE. `layers`: some of the file's, counted from 0; -1 or "last" is the last one.

    Or token sequences, whose tokens become rows (unit subword): a .safetensors file, or a folder of them, of vLLM or
    speculators; a folder that SAELens' CacheActivationsRunner wrote. `model`: the folder or name of the model, or a
    tokenizer.json, whose tokenizer must have all token ids. `corpus`: the text of every sequence, or its words, with
    which the ids are compared. `layers`: the numbers of the model's layers that a safetensors file holds, in its order.

    `progress`: a function of (rows written, rows in all), or False for no bar. The same call
    resumes an interrupted import.

    Raises StoreNotFoundError or StoreFormatError for any other file, CorpusError where the words do not fit the
    datasets, NonFiniteError for values that the dtype cannot hold, InvalidValueError for a path that is taken,
    StorageError.
    """
    from embstore.store.convert.sentence_file import SentenceFile

    check_choice("dtype", dtype, DTYPES)
    path = parse_location(out)
    require_free_path(path)
    sequences = open_sequences(Path(source))
    if sequences is not None:
        return _import_tokens(sequences, Path(source), path, corpus, layers, model, dtype, progress)
    if model is not None:
        raise InvalidValueError(f"model {quoted(str(model))} is for token sequences: {source} holds words")
    with SentenceFile(Path(source)) as file:
        chosen = resolve_layers(layers, range(file.n_layers), ascending=True)
        builder = _build_index(file, corpus)
        metadata = _metadata(file, builder, chosen, dtype)
        return _Rows(file, builder.build(), metadata.layout).write(path, metadata, progress)


def _import_tokens(
    sequences: Sequences,
    source: Path,
    path: Path | ObjectPath,
    corpus: Iterable[Words] | None,
    layers: Layers,
    model: str | os.PathLike[str] | None,
    dtype: str,
    progress: Progress,
) -> Store:
    tokenizer = load_tokenizer(model)
    texts = None if corpus is None else (text if isinstance(text, str) else " ".join(text) for text in corpus)
    tokens = TokenIndex(sequences, tokenizer, texts)
    n_layers, hidden_size = tokens.shape
    if sequences.layers is None and layers is None:
        raise InvalidValueError(f"{source} holds {n_layers} layers and does not say which: name them with layers")
    numbers = resolve_layers(layers, sequences.layers or range(MAX_LAYERS), ascending=False)
    if len(numbers) != n_layers or list(numbers) != sorted(numbers):
        raise InvalidValueError(f"layers {list(numbers)} do not fit {source}, which holds {n_layers}, ascending")
    layout = Layout.of(n_rows=len(tokens.index.type), layers=numbers, hidden_size=hidden_size, dtype=dtype)
    metadata = Metadata(
        n_rows=layout.n_rows,
        layers=numbers,
        hidden_size=hidden_size,
        dtype=dtype,
        partition_rows=layout.partition_rows,
        model={
            "name": Path(str(model)).name if Path(str(model)).exists() else str(model),
            "architecture": "unknown",
            "revision": None,
            "num_hidden_layers": numbers[-1],
            "hidden_size": hidden_size,
            "max_subwords": None,
            "tokenizer_sha256": tokenizer_sha256(tokenizer),
        },
        corpus={
            "name": source.name,
            "format": "token ids",
            "n_sentences": len(sequences),
            "n_words": layout.n_rows,
            "sha256": tokens.sha256,
        },
        extraction={"unit": "subword", "pooling": "none", "import": {"n_layers": n_layers}},
        software={package: version(package) for package in ("embstore", "numpy", "tokenizers")},
    )
    return _TokenRows(sequences, tokens.index, layout).write(path, metadata, progress)


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
            "n_sentences": file.numbers[-1] + 1,
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

    def __init__(self, file: Any, index: Index, layout: Layout) -> None:
        self.index = index
        self._file = file
        self._layout = layout

    def write(self, path: Path | ObjectPath, metadata: Metadata, progress: Progress) -> Store:
        """Make the store of these rows."""
        made: dict[str, Any] = {"metadata": metadata, "index": self.index, "progress": progress, "label": "import"}
        return fill_store(path, center=self.center() if metadata.dtype == "int8" else None, fill=self.fill, **made)

    def fill(self, buffer: PartitionBuffer, start: int, stop: int) -> None:
        """Put rows `[start, stop)` into the buffer."""
        row = start
        while row < stop:
            vectors, where = self._read(row, stop)
            for position, layer in enumerate(self._layers):
                buffer.put(position, row - start, vectors[layer], where=where)
            row += vectors.shape[1]

    @property
    def _layers(self) -> Sequence[int]:
        """The position in the file of each stored layer."""
        return self._layout.layers

    def center(self) -> NDArray[np.float32]:
        """Return the mean of each layer over a sample of the rows."""
        total = np.zeros((len(self._layout.layers), self._layout.hidden_size))
        sample = sample_rows(self._layout.n_rows)
        for row in sample.tolist():
            vectors, where = self._read(row, row + 1)
            for position, layer in enumerate(self._layers):
                require_storable(vectors[layer], dtype="int8", layer=self._layout.layers[position], where=where)
                total[position] += vectors[layer, 0]
        return (total / len(sample)).astype(np.float32)

    def _read(self, row: int, stop: int) -> tuple[NDArray[Any], Callable[[int], str]]:
        """Return rows `[row, stop)` as far as they are of one sentence [layer, n, feature], and how to name each."""
        sentence = int(self.index.sentence[row])
        begins, ends = self.index.indptr[sentence : sentence + 2].tolist()
        number, first = int(self.index.source[sentence]), row - begins
        vectors = self._file.read(number, first, min(ends, stop) - begins)
        return vectors, lambda word: f"sentence {number}, word {first + word} of {self._file.path}"


class _TokenRows(_Rows):
    """The rows of token sequences, of which the last one read is held."""

    _held: tuple[int, NDArray[Any]] | None = None

    @property
    def _layers(self) -> Sequence[int]:
        return range(len(self._layout.layers))

    def _read(self, row: int, stop: int) -> tuple[NDArray[Any], Callable[[int], str]]:
        number = int(self.index.sentence[row])
        begins, ends = self.index.indptr[number : number + 2].tolist()
        if self._held is None or self._held[0] != number:
            self._held = number, self._file.read(number)[1]
        vectors = self._held[1][row - begins : min(ends, stop) - begins].transpose(1, 0, 2)
        return vectors, lambda token: f"token {row - begins + token} of {self._file.where(number)}"

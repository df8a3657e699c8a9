"""HDF5 files with one dataset for each sentence, as NeuroX and `allennlp elmo` write them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from embstore.errors import CorpusError, EmbstoreError, StorageError, StoreFormatError, StoreNotFoundError

MAPPING = "sentence_to_index"
_NUMBER = re.compile(r"0|[1-9][0-9]{0,17}")
_CONTINUED = re.compile(r"(?<=.)##(?=[^#])")  # between two pieces of WordPiece: mu##rta##ugh
_GIVE_CORPUS = "give the corpus that the file was made of"
_REPEATED = re.compile(r"(?s)(.*) \(Occurrence [0-9]+\)")


class SentenceFile:
    """An open file with datasets "0", "1", ..., each [layer, word, feature], or [word, feature] for one layer.

    `numbers`: the numbers of its datasets, ascending. `n_words`: int64, the words of each. `sentences`: number ->
    sentence, where the file names it. A context manager. Raises StoreNotFoundError, StoreFormatError, StorageError.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = _open(path)
        try:
            with _reading(path):
                self.numbers = self._numbers()
                self.n_layers, self.hidden_size, self.n_words = self._shapes()
                self.sentences = self._sentences()
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> SentenceFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    def words_of(self, number: int, count: int) -> list[str]:
        """Return the words of a sentence, which the file must name; the pieces of a word are joined.

        NeuroX adds " (Occurrence 2)" to a repeated sentence; of equal sentences AllenNLP names only the last one.
        Raises CorpusError where the words are not known.
        """
        sentence = self.sentences.get(number)
        if sentence is None:
            raise CorpusError(
                f"{self.path} does not say what the sentence of dataset '{number}' is (of equal sentences AllenNLP "
                f"names only the last one): {_GIVE_CORPUS}"
            )
        repeated = _REPEATED.fullmatch(sentence)
        for text in [sentence, repeated[1]] if repeated else [sentence]:
            for words in (text.split(), [word for word in text.split(" ") if word]):
                if len(words) == count:
                    return [self._joined(word, number) for word in words]
        raise CorpusError(
            f"{self.path}: dataset '{number}' has {count} words and its sentence {len(sentence.split())}: "
            f"{_GIVE_CORPUS}"
        )

    def _joined(self, word: str, number: int) -> str:
        """Return a word that NeuroX wrote as its pieces without the marks of WordPiece and SentencePiece."""
        if word.startswith("\u0120"):
            raise CorpusError(
                f"{self.path}: the sentence of dataset '{number}' has the word {word[:40]!r}, made of pieces of "
                f"byte-level BPE: {_GIVE_CORPUS}"
            )
        return _CONTINUED.sub("", word.removeprefix("\u2581")) or word

    def read(self, number: int, start: int, stop: int) -> NDArray[Any]:
        """Return the vectors of words `[start, stop)` of a sentence; floats [layer, n, feature]."""
        with _reading(self.path):
            dataset = self._file[str(number)]
            values = dataset[start:stop][None] if dataset.ndim == 2 else dataset[:, start:stop]
            return np.asarray(values)

    def _numbers(self) -> list[int]:
        if "embstore" in self._file.attrs:
            raise StoreFormatError(f"{self.path} is an embstore store already: copy it with `embstore export`")
        names = [name for name in self._file if name != MAPPING]
        for name in names:
            if not isinstance(name, str) or not _NUMBER.fullmatch(name):
                raise StoreFormatError(
                    f"{self.path}: {_shown(name)} is not the number of a sentence: the datasets of a file of NeuroX or "
                    'AllenNLP (without --use-sentence-keys) are named "0", "1", ...'
                )
        if not names:
            raise StoreFormatError(f"{self.path} holds no dataset of a sentence")
        return sorted(map(int, names))

    def _shapes(self) -> tuple[int, int, NDArray[np.int64]]:
        """Return the number of layers, of features, and of words in each dataset; empty datasets may differ."""
        counts = np.zeros(len(self.numbers), np.int64)
        first: tuple[int, int, int] | None = None
        for position, number in enumerate(self.numbers):
            layers, words, features = self._shape(number)
            counts[position] = words
            if not words:
                continue
            if first is None:
                first = layers, features, number
            if (layers, features) != first[:2]:
                raise StoreFormatError(
                    f"{self.path}: dataset '{number}' has {layers} layers of {features} features, dataset '{first[2]}' "
                    f"{first[0]} of {first[1]}"
                )
        if first is None:
            raise StoreFormatError(f"{self.path} holds no word: all its datasets are empty")
        return first[0], first[1], counts

    def _shape(self, number: int) -> tuple[int, int, int]:
        dataset = self._file[str(number)]
        if not isinstance(dataset, h5py.Dataset) or dataset.dtype.kind != "f" or dataset.ndim not in (2, 3):
            found = f"{dataset.dtype} {dataset.shape}" if isinstance(dataset, h5py.Dataset) else "a group"
            raise StoreFormatError(f"{self.path}: '{number}' is {found}, not floats [layer, word, feature]")
        layers, words, features = (1, *dataset.shape) if dataset.ndim == 2 else dataset.shape
        if words and not (layers and features):
            raise StoreFormatError(
                f"{self.path}: dataset '{number}' has the shape {dataset.shape}, which holds nothing"
            )
        return layers, words, features

    def _sentences(self) -> dict[int, str]:
        if MAPPING not in self._file:
            return {}
        stored = self._file[MAPPING]
        if not isinstance(stored, h5py.Dataset) or stored.size != 1:
            raise StoreFormatError(f"{self.path}: {MAPPING} is not a single string")
        try:
            mapping = json.loads(stored[()] if stored.ndim == 0 else stored[...].reshape(-1)[0])
            named = {int(number): sentence for sentence, number in mapping.items()}
        except (ValueError, TypeError, AttributeError, IndexError, KeyError, RecursionError) as error:
            raise StoreFormatError(
                f"{self.path}: {MAPPING} is not a JSON object of sentences and numbers ({_first_line(error)})"
            ) from error
        unknown = sorted(set(named) - set(self.numbers))
        if unknown:
            raise StoreFormatError(f"{self.path}: {MAPPING} names dataset '{unknown[0]}', which does not exist")
        return named


def _open(path: Path) -> h5py.File:
    if path.is_dir():
        raise StoreFormatError(f"{path} is a folder, not an HDF5 file")
    try:
        with path.open("rb") as stream:
            start = stream.read(1)
    except FileNotFoundError:
        raise StoreNotFoundError(f"there is no file at {path}") from None
    except OSError as error:
        raise StorageError(f"cannot read {path}: {error.strerror}") from error
    with _reading(path):
        if start in (b"{", b"["):
            raise StoreFormatError(
                f"{path} is JSON, which is not imported: let NeuroX write HDF5 (--output_type hdf5, a file .hdf5), or "
                "AllenNLP (`allennlp elmo`)"
            )
        if not h5py.is_hdf5(path):
            raise StoreFormatError(f"{path} is not an HDF5 file")
        return h5py.File(path, "r", locking=False)


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Turn any error of the HDF5 library about a damaged file into a StoreFormatError of one line."""
    try:
        yield
    except EmbstoreError:
        raise
    except Exception as error:
        raise StoreFormatError(f"{path} is damaged: the HDF5 library says {_first_line(error)}") from error


def _shown(name: str | bytes) -> str:
    return repr(name) if len(name) <= 40 else f"{name[:40]!r}..."


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]

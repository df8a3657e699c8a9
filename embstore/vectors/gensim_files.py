"""gensim's own files of word vectors: read through gensim, once nothing but vectors is known to be in them."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embstore.errors import MissingPackageError, WordVectorsError
from embstore.vectors.lookup import VectorTable, array_table
from embstore.vectors.mapped import sha256_of_files

# A pickle may name any function and have it run: these are all that gensim's models are made of.
_ALLOWED = {
    "builtins": {"hash", "int", "object", "set", "frozenset"},
    "_codecs": {"encode"},
    "collections": {"defaultdict", "OrderedDict"},
    "copyreg": {"_reconstructor"},
    "gensim.models.fasttext": {"FastText", "FastTextKeyedVectors"},
    "gensim.models.keyedvectors": {"CompatVocab", "KeyedVectors", "Vocab"},
    "gensim.models.word2vec": {"Word2Vec"},
    "gensim.utils": {"call_on_class_only"},
    "numpy": {"dtype", "ndarray"},
    "numpy.core.multiarray": {"_reconstruct", "scalar"},
    "numpy._core.multiarray": {"_reconstruct", "scalar"},
    "numpy.random._mt19937": {"MT19937"},
    "numpy.random._pickle": {"__bit_generator_ctor", "__randomstate_ctor"},
}


def gensim_models(what: str) -> Any:
    """Import gensim's models; raises MissingPackageError, which says `what` needs them."""
    try:
        return import_module("gensim.models")
    except ImportError as error:
        raise MissingPackageError(f'{what}: pip install "embstore[vectors]"') from error


def open_gensim(path: Path) -> VectorTable:
    """Open a file that gensim's `save` wrote: KeyedVectors, Word2Vec or FastText, arrays beside it memory-mapped.

    The file is a pickle. It is refused where it names anything that such a model is not made of, so that opening
    it runs nothing else. Raises WordVectorsError, and MissingPackageError without gensim.
    """
    models = gensim_models(f"{path} is a file of gensim's, which reads it")
    beside = sorted(path.parent.glob(f"{path.name}.*.npy"))
    _refuse_strange_names(path)
    try:
        loaded = models.KeyedVectors.load(str(path), mmap="r")
    except FileNotFoundError as error:
        raise WordVectorsError(f"{path}: the file {Path(str(error.filename)).name} beside it is missing") from None
    except Exception as error:
        raise WordVectorsError(f"{path}: gensim cannot read it: {_line(error)}") from None
    vectors = getattr(loaded, "wv", loaded)
    if not isinstance(vectors, models.KeyedVectors) or getattr(vectors, "vectors", None) is None:
        raise WordVectorsError(f"{path}: holds a {type(loaded).__name__} of gensim, which has no word vectors")
    if vectors.vectors.ndim != 2 or not len(vectors.index_to_key) or not vectors.vectors.shape[1]:
        raise WordVectorsError(f"{path}: holds no word")
    sha256 = sha256_of_files([path, *beside])
    words = [str(word) for word in vectors.index_to_key]
    table = array_table(words, vectors.vectors, name=str(path), sha256=sha256)
    return _Composing(vectors, table) if isinstance(vectors, models.fasttext.FastTextKeyedVectors) else table


class _Composing(VectorTable):
    """gensim's FastText: words that it does not hold are made of their n-grams."""

    def __init__(self, vectors: Any, table: VectorTable) -> None:
        self.dimensions, self.sha256 = table.dimensions, table.sha256
        self._vectors = vectors
        self._table = table
        self._hashes = import_module("gensim.models.fasttext").ft_ngram_hashes

    def holds(self, word: str) -> bool:
        return self._table.holds(word)

    def has(self, word: str) -> bool:
        return self.holds(word) or bool(self._vectors.bucket and self._ngrams(word))

    def _ngrams(self, word: str) -> Sequence[int]:
        vectors = self._vectors
        rows: Sequence[int] = self._hashes(word, vectors.min_n, vectors.max_n, vectors.bucket)
        return rows

    def vectors_of(self, words: Sequence[str]) -> NDArray[np.float32]:
        vectors = np.empty((len(words), self.dimensions), np.float32)
        held = [row for row, word in enumerate(words) if self.holds(word)]
        if held:
            vectors[held] = self._table.vectors_of([words[row] for row in held])
        for row in set(range(len(words))).difference(held):
            vectors[row] = self._vectors.get_vector(words[row])
        return vectors


class _Names(pickle.Unpickler):
    """Takes a pickle apart and refuses names that are not allowed before they are used."""

    def find_class(self, module: str, name: str) -> Any:
        if name not in _ALLOWED.get(module, ()):
            raise pickle.UnpicklingError(f"it names {module}.{name}, which no gensim model is made of")
        return super().find_class(module, name)


def _refuse_strange_names(path: Path) -> None:
    try:
        with path.open("rb") as file:
            found = _Names(file, encoding="latin1").load()
        for part in (found, *(getattr(found, name) for name in getattr(found, "__recursive_saveloads", ()))):
            if getattr(part, "__scipys", None):  # gensim would read these from pickles of their own
                raise pickle.UnpicklingError("it has sparse matrices, which no gensim model of word vectors has")
    except OSError as error:
        raise WordVectorsError(f"{path}: cannot be read: {error.strerror or error}") from None
    except Exception as error:
        raise WordVectorsError(f"{path}: is no file of gensim's word vectors: {_line(error)}") from None


def _line(error: BaseException) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__

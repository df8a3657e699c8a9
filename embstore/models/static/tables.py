"""Tables of static vectors on the device, and the row of each word or subword."""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from embstore.errors import ModelError
from embstore.models.checkpoint import Loaded
from embstore.models.elmo.words import WordNumbers
from embstore.models.encoder import Tokenized
from embstore.models.static.shorthand import Missing
from embstore.models.transformer.tokens import SubwordTokenizer
from embstore.vectors.word_vectors import PHRASE_JOINS, RandomVectors, VectorTable

NO_ROW = -1
FIRST_ROWS = 1024

_Ids = NDArray[np.int32]
T = TypeVar("T", np.int64, np.int8)


class StaticTable(ABC):
    """Words or subwords with one vector each, independent of the sentence.

    `matrix`: the vectors [n_rows, n_dimensions] on the device. The other attributes are those of `ModelInfo`.
    """

    matrix: torch.Tensor
    architecture: str
    revision: str | None = None
    weights_sha256: str
    tokenizer_sha256: str

    @abstractmethod
    def tokenize(self, sentences: Sequence[Sequence[str]]) -> Tokenized:
        """Split sentences into the units of the table."""

    @abstractmethod
    def text(self, index: int) -> str:
        """Return the spelling of an id."""

    @abstractmethod
    def rows(self, ids: _Ids) -> NDArray[np.int64]:
        """Return the rows of ids, reading vectors into `matrix` if necessary; -1 for an id without a vector."""

    @abstractmethod
    def plain_vector(self, index: int) -> torch.Tensor | None:
        """Return the vector of one id, float32, read for itself without `rows`; None if it has none."""

    def without_vector(self, ids: _Ids) -> NDArray[np.bool_]:
        """Return which ids have no vector, without reading any."""
        return np.zeros(len(ids), np.bool_)

    def phrases(self, ids: _Ids, starts: NDArray[np.int64], lengths: NDArray[np.int64]) -> _Ids:
        """Return the id of each run of ids that is one entry of the table, -1 for the others: int32 [n_runs]."""
        return np.full(len(starts), NO_ROW, np.int32)


class WordTable(StaticTable):
    """Words, each one subword; the vectors of those that occur are read once and stored on the device.

    Words without an entry get random vectors from N(0, I), seeded by `seed` and the word, or no vector.
    """

    def __init__(
        self, table: VectorTable, *, missing: Missing, seed: int, device: torch.device, dtype: torch.dtype
    ) -> None:
        self._table = table
        self._random = RandomVectors(table.dimensions, seed=seed) if missing == "random" else None
        self._numbers = WordNumbers()
        self._row_of: NDArray[np.int64] = np.empty(0, np.int64)
        self._known: NDArray[np.int8] = np.empty(0, np.int8)
        self._phrases: dict[tuple[int, ...], int] = {}
        self._n_rows = 0
        self.matrix = torch.empty(FIRST_ROWS, table.dimensions, dtype=dtype, device=device)
        self.weights_sha256 = table.sha256
        rules: dict[str, object] = {
            "subword": "word",
            "lookup": ["exact", "lower"],
            "phrases": PHRASE_JOINS,
            "missing": missing,
        }
        if isinstance(table, RandomVectors):
            self.architecture = f"RandomVectors(seed={table.seed})"
        elif missing == "random":
            self.architecture = f"WordVectors(missing=random, seed={seed})"
            rules["seed"] = seed
        else:
            self.architecture = "WordVectors(missing=drop)"
        self.tokenizer_sha256 = hashlib.sha256(json.dumps(rules, sort_keys=True).encode()).hexdigest()

    def tokenize(self, sentences: Sequence[Sequence[str]]) -> Tokenized:
        """Make every word one subword."""
        return self._numbers.tokenize(sentences)

    def text(self, index: int) -> str:
        """Return the word of an id."""
        return self._numbers.word(index)

    def rows(self, ids: _Ids) -> NDArray[np.int64]:
        """Return the rows of words; see `StaticTable.rows`."""
        self._row_of = _grown(self._row_of, ids, -2)
        unread = self._row_of[ids] == -2
        if unread.any():
            self._read(np.unique(ids[unread]))
        return self._row_of[ids]

    def plain_vector(self, index: int) -> torch.Tensor | None:
        """Return the vector of one word from its table, not from `matrix`; None if it has none."""
        word = self._numbers.word(index)
        table = self._table if self._table.has(word) else self._random
        return None if table is None else torch.from_numpy(table.vectors_of([word])[0])

    def without_vector(self, ids: _Ids) -> NDArray[np.bool_]:
        """Return which words have no vector."""
        if self._random is not None:
            return np.zeros(len(ids), np.bool_)
        self._known = _grown(self._known, ids, -1)
        for number in np.unique(ids[self._known[ids] < 0]).tolist():
            self._known[number] = self._table.has(self._numbers.word(number))
        mask: NDArray[np.bool_] = self._known[ids] == 0
        return mask

    def phrases(self, ids: _Ids, starts: NDArray[np.int64], lengths: NDArray[np.int64]) -> _Ids:
        """Return the ids of phrases that have an entry, their words joined by "_" or a space."""
        found = np.empty(len(starts), np.int32)
        for index, (start, length) in enumerate(zip(starts.tolist(), lengths.tolist(), strict=True)):
            run = tuple(ids[start : start + length].tolist())
            if run not in self._phrases:
                entry = self._table.phrase([self._numbers.word(number) for number in run])
                self._phrases[run] = NO_ROW if entry is None else int(self._numbers.tokenize([[entry]]).ids[0])
            found[index] = self._phrases[run]
        return found

    def _read(self, ids: _Ids) -> None:
        """Read the vectors of new words; raises ModelError for a vector that the dtype cannot represent."""
        words = [self._numbers.word(number) for number in ids.tolist()]
        known = np.fromiter(map(self._table.has, words), np.bool_, len(words))
        for table, mask in ((self._table, known), (self._random, ~known)):
            if table is None:
                self._row_of[ids[mask]] = NO_ROW
            elif mask.any():
                chosen = [words[index] for index in np.flatnonzero(mask).tolist()]
                vectors = torch.from_numpy(table.vectors_of(chosen)).to(self.matrix.dtype)
                if not bool(torch.isfinite(vectors).all()):
                    word = chosen[int(torch.isfinite(vectors).all(1).int().argmin())]
                    dtype = str(vectors.dtype).removeprefix("torch.")
                    raise ModelError(f"the vector of {word!r} has numbers beyond {dtype}: compute in float32")
                start = self._append(vectors)
                self._row_of[ids[mask]] = np.arange(start, start + len(chosen))

    def _append(self, vectors: torch.Tensor) -> int:
        """Add rows to `matrix`, which doubles when full; return the first of them."""
        start, stop = self._n_rows, self._n_rows + len(vectors)
        if stop > len(self.matrix):
            larger = self.matrix.new_empty(max(2 * len(self.matrix), stop), self.matrix.shape[1])
            larger[:start] = self.matrix[:start]
            self.matrix = larger
        self.matrix[start:stop] = vectors.to(self.matrix.device)
        self._n_rows = stop
        return start


def _grown(array: NDArray[T], ids: _Ids, fill: int) -> NDArray[T]:
    needed = int(ids.max(initial=-1)) + 1
    if needed <= len(array):
        return array
    return np.concatenate([array, np.full(max(needed, 2 * len(array)) - len(array), fill, array.dtype)])


class SubwordTable(StaticTable):
    """The input embeddings of a model, as its tokenizer splits words; the rest of the model is freed."""

    def __init__(self, loaded: Loaded) -> None:
        weight = getattr(loaded.model.get_input_embeddings(), "weight", None)
        if not isinstance(weight, torch.Tensor) or weight.ndim != 2:
            raise ModelError(f"the model {loaded.name!r} has no table of subwords: it computes words in another way")
        self.matrix = weight.detach().clone()
        self._tokenizer = SubwordTokenizer(loaded.tokenizer, vocabulary=len(self.matrix))
        self.architecture = f"SubwordTable({type(loaded.model).__name__})"
        self.revision = loaded.revision
        self.weights_sha256 = loaded.weights_sha256
        self.tokenizer_sha256 = self._tokenizer.sha256()

    def tokenize(self, sentences: Sequence[Sequence[str]]) -> Tokenized:
        """Split every word into its subwords."""
        return self._tokenizer.tokenize(sentences)

    def text(self, index: int) -> str:
        """Return the spelling of a subword."""
        return self._tokenizer.subword_text(index)

    def rows(self, ids: _Ids) -> NDArray[np.int64]:
        """Return the ids, which are the rows."""
        return ids.astype(np.int64)

    def plain_vector(self, index: int) -> torch.Tensor:
        """Return the embedding of one subword, in float32."""
        return self.matrix[index].float().cpu()

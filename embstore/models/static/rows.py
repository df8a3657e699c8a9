"""Rows of vectors on the device, and which row each word or subword has."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Protocol, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from embstore.errors import ModelError
from embstore.models.elmo.words import WordNumbers
from embstore.models.encoder import Tokenized
from embstore.models.loading import Loaded
from embstore.models.static.names import Missing
from embstore.models.transformer.tokens import SubwordTokenizer
from embstore.vectors import RandomVectors
from embstore.vectors.table import PHRASE_JOINS, VectorTable

NO_ROW = -1
FIRST_ROWS = 1024
_Ids = NDArray[np.int32]
T = TypeVar("T", np.int64, np.int8)


class StaticRows(Protocol):
    """Words or subwords with one vector each, whatever the sentence.

    `matrix`: the vectors [rows, dimensions] on the device. The hashes are those of ModelInfo.
    """

    @property
    def matrix(self) -> torch.Tensor: ...

    @property
    def architecture(self) -> str: ...

    @property
    def revision(self) -> str | None: ...

    @property
    def weights_sha256(self) -> str: ...

    @property
    def tokenizer_sha256(self) -> str: ...

    def tokenize(self, sentences: Sequence[Sequence[str]]) -> Tokenized: ...

    def piece(self, index: int) -> str: ...

    def rows(self, ids: NDArray[np.int32]) -> NDArray[np.int64]:
        """Return the rows of ids, reading vectors into `matrix` where need be; -1 where there is none."""
        ...

    def lacking(self, ids: NDArray[np.int32]) -> NDArray[np.bool_]:
        """Say which ids have no vector, without reading any."""
        ...

    def phrases(self, ids: NDArray[np.int32], starts: NDArray[np.int64], lengths: NDArray[np.int64]) -> _Ids:
        """Return an id for each run of ids that has a vector as one, -1 for the others: int32 [runs]."""
        ...

    def plain(self, ids: Sequence[int]) -> list[NDArray[np.float32] | None]:
        """Return the vector of each id, looked up afresh, without `matrix`."""
        ...

    def plain_phrase(self, ids: Sequence[int]) -> NDArray[np.float32] | None:
        """Return the vector that a run of ids has as one, looked up afresh."""
        ...


class WordRows:
    """Words of a table, each one subword; the vectors of those that occur are read once and kept on the device.

    Words that the table has not are drawn from N(0, I), seeded by `seed` and the word, or have no vector.
    """

    revision: str | None = None

    def __init__(
        self, table: VectorTable, *, missing: Missing, seed: int, device: torch.device, dtype: torch.dtype
    ) -> None:
        self._table = table
        self._drawn = RandomVectors(table.dimensions, seed=seed) if missing == "random" else None
        self._numbers = WordNumbers()
        self._row_of: NDArray[np.int64] = np.empty(0, np.int64)
        self._known: NDArray[np.int8] = np.empty(0, np.int8)
        self._phrases: dict[tuple[int, ...], int] = {}
        self._used = 0
        self.matrix = torch.empty(FIRST_ROWS, table.dimensions, dtype=dtype, device=device)
        self.weights_sha256 = table.sha256
        drawn = isinstance(table, RandomVectors)
        self.architecture = (
            f"RandomVectors(seed={table.seed})"
            if isinstance(table, RandomVectors)
            else f"WordVectors(missing=random, seed={seed})"
            if missing == "random"
            else "WordVectors(missing=drop)"
        )
        rules = {"subword": "word", "lookup": ["exact", "lower"], "phrases": PHRASE_JOINS, "missing": missing}
        seeded = {} if missing == "drop" or drawn else {"seed": seed}
        self.tokenizer_sha256 = hashlib.sha256(json.dumps({**rules, **seeded}, sort_keys=True).encode()).hexdigest()

    def tokenize(self, sentences: Sequence[Sequence[str]]) -> Tokenized:
        return self._numbers.tokenize(sentences)

    def piece(self, index: int) -> str:
        return self._numbers.word(index)

    def rows(self, ids: NDArray[np.int32]) -> NDArray[np.int64]:
        self._row_of = _grown(self._row_of, ids, -2)
        rows = self._row_of[ids]
        if (rows == -2).any():
            self._read(np.unique(ids[rows == -2]))
            rows = self._row_of[ids]
        return rows

    def lacking(self, ids: NDArray[np.int32]) -> NDArray[np.bool_]:
        if self._drawn is not None:
            return np.zeros(len(ids), np.bool_)
        self._known = _grown(self._known, ids, -1)
        for number in np.unique(ids[self._known[ids] < 0]).tolist():
            self._known[number] = self._table.has(self._numbers.word(number))
        lacks: NDArray[np.bool_] = self._known[ids] == 0
        return lacks

    def phrases(self, ids: NDArray[np.int32], starts: NDArray[np.int64], lengths: NDArray[np.int64]) -> _Ids:
        found = np.empty(len(starts), np.int32)
        for place, (start, many) in enumerate(zip(starts.tolist(), lengths.tolist(), strict=True)):
            run = tuple(ids[start : start + many].tolist())
            number = self._phrases.get(run)
            if number is None:
                entry = self._table.phrase([self._numbers.word(each) for each in run])
                number = NO_ROW if entry is None else int(self._numbers.tokenize([[entry]]).ids[0])
                self._phrases[run] = number
            found[place] = number
        return found

    def plain(self, ids: Sequence[int]) -> list[NDArray[np.float32] | None]:
        words = [self._numbers.word(number) for number in ids]
        found: dict[str, NDArray[np.float32]] = {}
        for table in (self._drawn, self._table):  # the table's own vectors come last, and count
            some = words if table is self._drawn else [word for word in words if self._table.has(word)]
            if table is not None and some:
                found |= zip(some, table.vectors_of(some), strict=True)
        return [found.get(word) for word in words]

    def plain_phrase(self, ids: Sequence[int]) -> NDArray[np.float32] | None:
        entry = self._table.phrase([self._numbers.word(number) for number in ids])
        return None if entry is None else np.asarray(self._table.vectors_of([entry])[0])

    def _read(self, ids: NDArray[np.int32]) -> None:
        """Give ids their rows; raises ModelError for a vector that the dtype cannot hold."""
        words = [self._numbers.word(number) for number in ids.tolist()]
        held = np.fromiter(map(self._table.has, words), np.bool_, len(words))
        for table, chosen in ((self._table, held), (self._drawn, ~held)):
            places = np.flatnonzero(chosen)
            if not len(places):
                continue
            if table is None:
                self._row_of[ids[places]] = NO_ROW
                continue
            some = [words[place] for place in places.tolist()]
            vectors = torch.from_numpy(table.vectors_of(some)).to(self.matrix.dtype)
            if not bool(torch.isfinite(vectors).all()):
                word = some[int(torch.isfinite(vectors).all(1).int().argmin())]
                raise ModelError(
                    f"the vector of {word!r} has numbers beyond {str(vectors.dtype).removeprefix('torch.')}: "
                    "compute in float32"
                )
            self._append(vectors)
            self._row_of[ids[places]] = np.arange(self._used - len(places), self._used)

    def _append(self, vectors: torch.Tensor) -> None:
        if self._used + len(vectors) > len(self.matrix):
            larger = max(2 * len(self.matrix), self._used + len(vectors))
            grown = self.matrix.new_empty(larger, self.matrix.shape[1])
            grown[: self._used] = self.matrix[: self._used]
            self.matrix = grown
        self.matrix[self._used : self._used + len(vectors)] = vectors.to(self.matrix.device)
        self._used += len(vectors)


def _grown(array: NDArray[T], ids: NDArray[np.int32], fill: int) -> NDArray[T]:
    needed = int(ids.max(initial=-1)) + 1
    if needed <= len(array):
        return array
    return np.concatenate([array, np.full(max(needed, 2 * len(array)) - len(array), fill, array.dtype)])


class SubwordRows:
    """The table of a model's subwords, as its tokenizer splits words; the model itself is let go."""

    def __init__(self, loaded: Loaded) -> None:
        weight = getattr(loaded.model.get_input_embeddings(), "weight", None)
        if not isinstance(weight, torch.Tensor) or weight.ndim != 2:
            raise ModelError(f"the model {loaded.name!r} has no table of subwords: it makes words in another way")
        self.matrix = weight.detach().clone()
        self._tokenizer = SubwordTokenizer(loaded.tokenizer, vocabulary=len(weight))
        self.architecture = f"SubwordTable({type(loaded.model).__name__})"
        self.revision = loaded.revision
        self.weights_sha256 = loaded.weights_sha256
        self.tokenizer_sha256 = self._tokenizer.sha256()

    def tokenize(self, sentences: Sequence[Sequence[str]]) -> Tokenized:
        return self._tokenizer.tokenize(sentences)

    def piece(self, index: int) -> str:
        return self._tokenizer.piece(index)

    def rows(self, ids: NDArray[np.int32]) -> NDArray[np.int64]:
        return ids.astype(np.int64)

    def lacking(self, ids: NDArray[np.int32]) -> NDArray[np.bool_]:
        return np.zeros(len(ids), np.bool_)

    def phrases(self, ids: NDArray[np.int32], starts: NDArray[np.int64], lengths: NDArray[np.int64]) -> _Ids:
        return np.full(len(starts), NO_ROW, np.int32)

    def plain(self, ids: Sequence[int]) -> list[NDArray[np.float32] | None]:
        return [np.asarray(self.matrix[index].float().cpu().numpy(), np.float32) for index in ids]

    def plain_phrase(self, ids: Sequence[int]) -> NDArray[np.float32] | None:
        return None

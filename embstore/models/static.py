"""Encoders without context: word vectors, random vectors, a model's subwords, and bags of any of these."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from embstore.corpus.sentence import Sentence
from embstore.errors import ModelError
from embstore.models.batched import BatchedEncoder, Prepared, States
from embstore.models.batching import Batch
from embstore.models.checkpoint import Loaded
from embstore.models.elmo.words import WordNumbers
from embstore.models.encoder import By, ModelInfo, Scope, Split, Tokenized, indptr, ragged_indices
from embstore.models.names import public_name
from embstore.models.running import RunningBatch, SpanWork
from embstore.models.transformer.tokens import SubwordTokenizer
from embstore.vectors.word_vectors import PHRASE_JOINS, RandomVectors, VectorTable

Missing = Literal["random", "drop"]
BATCH_SUBWORDS = {"cpu": 4096, "cuda": 65536}  # lookups that fill a core's cache, and a GPU
FIRST_ROWS = 1024  # of a matrix, which doubles when it is full

_Ids = NDArray[np.int32]


class WordTable:
    """Words, each one subword; the vectors of those that occur are read once and stored on the device.

    Words without an entry get random vectors from N(0, I), seeded by `seed` and the word, or are no subwords ("drop").
    `matrix`: the vectors read so far [n_rows, n_dimensions]. The other attributes are those of `ModelInfo`.
    """

    revision: str | None = None
    has_vocabulary = reads_text = False

    def __init__(
        self, table: VectorTable, *, missing: Missing, seed: int, device: torch.device, dtype: torch.dtype
    ) -> None:
        self._table = table
        self._random = RandomVectors(table.dimensions, seed=seed) if missing == "random" else None
        self._numbers = WordNumbers()
        self._has = cache(lambda number: table.has(self._numbers.word(number)))
        self._row_of = np.empty(0, np.int64)
        self._n_rows = 0
        self.matrix = torch.empty(FIRST_ROWS, table.dimensions, dtype=dtype, device=device)
        self.weights_sha256 = table.sha256
        rules = {"subword": "word", "lookup": ["exact", "lower"], "phrases": PHRASE_JOINS, "missing": missing}
        if isinstance(table, RandomVectors):
            self.architecture = f"RandomVectors(seed={table.seed})"
        else:
            options = f"missing=random, seed={seed}" if missing == "random" else "missing=drop"
            self.architecture = f"WordVectors({options})"
            rules["options"] = options
        self.tokenizer_sha256 = hashlib.sha256(json.dumps(rules, sort_keys=True).encode()).hexdigest()

    def tokenize(self, sentences: Sequence[Sentence], *, scope: Scope = "sentence", by: By = "text") -> Split:
        split = self._numbers.tokenize(sentences)
        if self._random is not None:
            return split
        known = np.fromiter(map(self._has, split.ids.tolist()), np.bool_, len(split.ids))
        each = indptr(known.astype(np.int64))
        ids, start, stop = (column[known] for column in (split.ids, split.start, split.stop))
        return Split(ids, each[split.indptr], split.indptr, each[:-1], each[1:], start, stop)

    def text(self, index: int) -> str:
        return self._numbers.word(index)

    def vectors(self, ids: _Ids) -> torch.Tensor:
        """Return the vectors of ids on the device, reading those of new words."""
        missing = int(ids.max(initial=-1)) + 1 - len(self._row_of)
        if missing > 0:
            self._row_of = np.concatenate([self._row_of, np.full(max(missing, len(self._row_of)), -1)])
        if len(new := np.unique(ids[self._row_of[ids] < 0])):
            self._row_of[new] = self._append(self._read([self._numbers.word(number) for number in new.tolist()]))
        return self.matrix.index_select(0, torch.from_numpy(self._row_of[ids]).to(self.matrix.device))

    def plain_vector(self, index: int) -> torch.Tensor:
        """Return the vector of one id, float32, read for itself without `vectors`."""
        word = self._numbers.word(index)
        table = self._table if self._random is None or self._table.has(word) else self._random
        return torch.from_numpy(table.vectors_of([word])[0])

    def phrase(self, ids: _Ids) -> int:
        """Return the id of the entry that these words are together, joined by "_" or a space; -1 if there is none."""
        entry = self._table.phrase([self._numbers.word(number) for number in ids.tolist()])
        return -1 if entry is None else int(self._numbers.numbers([entry], 1)[0])

    def _read(self, words: list[str]) -> torch.Tensor:
        """Return the vectors of words; raises ModelError for a vector that the dtype cannot represent."""
        known = np.fromiter(map(self._table.has, words), np.bool_, len(words))
        vectors = np.empty((len(words), self.matrix.shape[1]), np.float32)
        for table, mask in ((self._table, known), (self._random, ~known)):
            if table is not None and mask.any():
                vectors[mask] = table.vectors_of([words[index] for index in np.flatnonzero(mask).tolist()])
        cast = torch.from_numpy(vectors).to(self.matrix.dtype)
        if not bool(torch.isfinite(cast).all()):
            word = words[int(torch.isfinite(cast).all(1).int().argmin())]
            dtype = str(cast.dtype).removeprefix("torch.")
            raise ModelError(f"the vector of {word!r} has numbers beyond {dtype}: compute in float32")
        return cast

    def _append(self, vectors: torch.Tensor) -> NDArray[np.int64]:
        """Add rows to `matrix`, which doubles when full; return their numbers."""
        start, stop = self._n_rows, self._n_rows + len(vectors)
        if stop > len(self.matrix):
            larger = self.matrix.new_empty(max(2 * len(self.matrix), stop), self.matrix.shape[1])
            larger[:start] = self.matrix[:start]
            self.matrix = larger
        self.matrix[start:stop] = vectors.to(self.matrix.device)
        self._n_rows = stop
        return np.arange(start, stop)


class SubwordTable:
    """The input embeddings of a model, as its tokenizer splits text; the rest of the model is freed."""

    has_vocabulary = True

    def __init__(self, loaded: Loaded) -> None:
        weight = getattr(loaded.model.get_input_embeddings(), "weight", None)
        if not isinstance(weight, torch.Tensor) or weight.ndim != 2:
            raise ModelError(f"the model {loaded.name!r} has no table of subwords: it computes words in another way")
        self.matrix = weight.detach().clone()
        tokenizer = SubwordTokenizer(loaded.tokenizer, vocabulary=len(self.matrix))
        self.tokenize, self.text = tokenizer.tokenize, tokenizer.subword_text
        self.reads_text = tokenizer.reads_text
        self.architecture = f"SubwordTable({type(loaded.model).__name__})"
        self.revision = loaded.revision
        self.weights_sha256, self.tokenizer_sha256 = loaded.weights_sha256, tokenizer.sha256()

    def vectors(self, ids: _Ids) -> torch.Tensor:
        """Return the vectors of ids on the device."""
        return self.matrix.index_select(0, torch.from_numpy(ids.astype(np.int64)).to(self.matrix.device))

    def plain_vector(self, index: int) -> torch.Tensor:
        """Return the vector of one id, float32."""
        return self.matrix[index].float().cpu()


class StaticEncoder(BatchedEncoder):
    """An encoder whose subwords have one vector each, in any sentence; it has only layer 0.

    A span has the pooled vectors of its subwords, or that of the entry of the table that they are together. With `bag`
    every span has the mean over all subwords of its sentence. `source`: the name by which another process loads it;
    empty if no name says how it was made.
    """

    n_specials = 0
    check_batch_subwords = 64  # so that the few sentences of the check are several batches

    def __init__(self, table: WordTable | SubwordTable, *, name: str, source: str = "", bag: bool = False) -> None:
        super().__init__(source, table.matrix.device, table.matrix.dtype)
        self.table = table
        self.bag = bag
        self.has_vocabulary, self.reads_text = table.has_vocabulary, table.reads_text
        self.info = ModelInfo(
            name=public_name(name),
            architecture=f"BagOfContext({table.architecture})" if bag else table.architecture,
            revision=table.revision,
            weights_sha256=table.weights_sha256,
            tokenizer_sha256=table.tokenizer_sha256,
            num_hidden_layers=0,
            hidden_size=int(table.matrix.shape[1]),
        )

    @property
    def default_batch_subwords(self) -> int:
        return BATCH_SUBWORDS.get(self.device.type, 4096)

    def subword_text(self, index: int) -> str:
        return self.table.text(index)

    def plain_states(self, sentence: Tokenized, reach: int | None, site: str, deepest: int | None = None) -> States:
        """Return the vectors of a sentence's subwords, each looked up for itself: one layer [n_subwords, hidden_size].

        In a bag each is the sum of the vectors of all subwords, divided by their number.
        """
        vectors = list(map(self.table.plain_vector, sentence.ids.tolist()))
        if self.bag:
            vectors = [sum(vectors, torch.zeros(self.info.hidden_size)) / len(vectors)] * len(vectors)
        return {0: torch.stack(vectors)}

    def projected_nbytes(self, *, n_features: int, batch_subwords: int) -> int:
        """Estimate the memory of the vectors read so far and of one batch."""
        matrix = self.table.matrix
        return matrix.element_size() * (matrix.numel() + 3 * batch_subwords * self.info.hidden_size)

    def tokenize(self, sentences: Sequence[Sentence], *, scope: Scope = "sentence", by: By = "text") -> Split:
        return self.table.tokenize(sentences, scope=scope, by=by)

    def _running(self, work: SpanWork) -> Iterator[RunningBatch | None]:
        def prepare(batch: Batch) -> Prepared:
            lengths = work.lengths[batch.sentences]
            columns = np.cumsum(lengths) - lengths
            ids = work.tokenized.ids[ragged_indices(work.starts[batch.sentences], lengths)]
            in_row = Batch(batch.sentences, np.zeros_like(columns), columns, (1, len(ids)))
            rows, starts, counts = work.spans_of(in_row, before=0)
            if isinstance(self.table, WordTable) and not self.bag:
                several = np.flatnonzero(counts > 1).tolist()
                runs = [ids[starts[row] : starts[row] + counts[row]] for row in several]
                entries = np.array([self.table.phrase(run) for run in runs], np.int32)
                joined = np.array(several, np.int64)[entries >= 0]
                starts[joined], counts[joined] = len(ids) + np.arange(len(joined)), 1
                ids = np.concatenate([ids, entries[entries >= 0]])

            def forward(receive: Any) -> None:
                vectors = self.table.vectors(ids)
                if self.bag:
                    every, offsets = (torch.from_numpy(a).to(self.device) for a in (np.arange(len(ids)), columns))
                    means = torch.nn.functional.embedding_bag(every, vectors, offsets, mode="mean")
                    vectors = means.repeat_interleave(torch.from_numpy(lengths).to(self.device), 0)
                receive(0, vectors)

            return (rows, starts, counts), forward

        return self._run_batches(work, "padded", prepare)

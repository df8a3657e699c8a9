"""An encoder without a model, slow and obvious: every vector can be worked out by hand."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import torch

from embstore.corpus import Sentence
from embstore.models.encoder import Encoder, ModelInfo, Pooled, Pooling, Spans, Split, Tokenized

HIDDEN_SIZE = 8
SIZES = {"residual": HIDDEN_SIZE, "query": 6, "value": 2}
LAYERS = 3
BITS = 7  # of a character in the id of its piece, which is the same in every process: 2 million ids
CODES = {ord(each): 11 + at for at, each in enumerate("—–”“’‘…日本語éöüßïäèàêçñ")}  # of characters that have more bits


class FakeEncoder(Encoder):
    """Splits each word of a text into pieces of three characters; "~" is in none.

    The vector of a piece in a sentence depends on the piece, its place, the layer and the whole sentence.
    """

    default_batch_subwords = 64
    source = "fake"

    def __init__(self, *, max_subwords: int | None = 24, shuffle_seed: int = 0) -> None:
        self._max_subwords = max_subwords
        self._shuffle_seed = shuffle_seed
        self.compute_dtype = "float32"
        self.batching = "padded"
        self.n_specials = 2
        self.poison: str | None = None

    @property
    def info(self) -> ModelInfo:
        return ModelInfo(
            name="fake",
            architecture="Fake",
            revision=None,
            weights_sha256="0" * 64,
            tokenizer_sha256="1" * 64,
            num_hidden_layers=LAYERS - 1,
            hidden_size=HIDDEN_SIZE,
            max_subwords=self._max_subwords,
            final_norm=False,
        )

    def pieces(self, word: str) -> list[str]:
        bare = word.replace("~", "")
        return [bare[start : start + 3] for start in range(0, len(bare), 3)]

    def tokenize(self, sentences: Sequence[Sentence], **_: Any) -> Split:
        ids, first, last, places = list[int](), list[int](), list[int](), list[tuple[int, int]]()
        bounds, indptr = [0], [0]
        for sentence in sentences:
            for word, begin in zip(sentence.words, sentence.starts, strict=True):
                pieces = self.pieces(word)
                first.append(len(ids))
                ids += [piece_id(piece) for piece in pieces]
                places += [(begin, begin + len(word))] * len(pieces)
                last.append(len(ids))
            bounds.append(len(ids))
            indptr.append(len(first))
        start, stop = np.array(places, np.int32).reshape(-1, 2).T
        numbers = (np.array(each, np.int64) for each in (bounds, indptr, first, last))
        return Split(np.array(ids, np.int32), *numbers, start, stop)

    def subword_text(self, index: int) -> str:
        text = "".join(chr(index >> shift & 2**BITS - 1) for shift in (0, BITS, 2 * BITS)).rstrip("\0")
        return text.translate({code: point for point, code in CODES.items()})

    def spellings(self, ids: Sequence[int]) -> list[str]:
        return [self.subword_text(number) for number in ids]

    def encode(
        self,
        tokenized: Tokenized,
        spans: Spans,
        *,
        layers: Sequence[int],
        pooling: Pooling,
        batch_subwords: int,
        sites: Sequence[str] = ("residual",),
        **_: Any,
    ) -> Iterator[Pooled]:
        order = np.random.default_rng(self._shuffle_seed).permutation(len(spans.sentence))
        for batch in np.array_split(order, max(1, len(order) // 7)):
            vectors = np.empty((len(layers), len(batch), HIDDEN_SIZE), np.float32)
            for column, span in enumerate(batch.tolist()):
                sentence = int(spans.sentence[span])
                begin, end = tokenized.bounds[sentence : sentence + 2]
                spelled = tuple(self.spellings(tokenized.ids[begin:end].tolist()))
                if self.poison is not None and self.poison in spelled:
                    vectors[:, column] = np.nan
                    continue
                for row, layer in enumerate(layers):
                    vectors[row, column] = span_vector(
                        spelled, int(spans.start[span]), int(spans.stop[span]), layer=layer, pooling=pooling
                    )
            for site in sites:
                of_site = site_vectors(vectors, site)
                of_site = of_site if site == "residual" else of_site[[bool(layer) for layer in layers]]
                yield Pooled(batch.astype(np.int64), torch.from_numpy(of_site), site=site)

    inner_sizes = SIZES

    def self_check(self, tokenized: Tokenized, *, layers: Sequence[int], pooling: Pooling, **_: Any) -> float:
        return 0.0

    def use_batching(self, batching: str) -> None:
        self.batching = batching

    def projected_nbytes(self, *, n_features: int, batch_subwords: int) -> int:
        return 1 << 20


def piece_id(piece: str) -> int:
    """The number of a piece of three characters; another one may have it, if they are beyond ASCII."""
    points = [CODES.get(ord(each), ord(each)) for each in piece[:3]]
    return sum(point % 2**BITS << BITS * at for at, point in enumerate(points))


def site_vectors(vectors: np.ndarray, site: str) -> np.ndarray:
    """The vectors of another site, worked out from those of the residual stream [..., feature]."""
    return vectors if site == "residual" else -vectors[..., : SIZES[site]]


def piece_vector(piece: str, place: int, sentence: Sequence[str], *, layer: int) -> np.ndarray:
    """Numbers in [-1, 1) from a hash of all that the vector depends on."""
    text = f"{layer}|{place}|{piece}|{' '.join(sentence)}".encode()
    digest = hashlib.blake2b(text, digest_size=4 * HIDDEN_SIZE).digest()
    return (np.frombuffer(digest, np.uint32) / 2**31 - 1).astype(np.float32)


def span_vector(sentence: Sequence[str], start: int, stop: int, *, layer: int, pooling: str) -> np.ndarray:
    """The pooled vector of the pieces `[start, stop)` of a sentence of pieces, read-only."""
    return _span_vector(tuple(sentence), start, stop, layer, pooling)


@lru_cache(maxsize=2**16)  # the tests that kill and go on ask for the same ones hundreds of times
def _span_vector(sentence: tuple[str, ...], start: int, stop: int, layer: int, pooling: str) -> np.ndarray:
    vectors = np.stack([piece_vector(sentence[at], at, sentence, layer=layer) for at in range(start, stop)])
    pooled = {
        "mean": vectors.mean(0, dtype=np.float32),
        "first": vectors[0],
        "last": vectors[-1],
        "max": vectors.max(0),
    }[pooling]
    pooled.setflags(write=False)
    return pooled

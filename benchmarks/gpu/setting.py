"""What the steps of run.py work on: sentences as long as EWT's, models of random weights, the GPU, the clock."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from made_models import SHAPES, made_words, save_model
from measure import Target
from numpy.typing import NDArray

import embstore as es
from embstore.models.encoder import Spans, Tokenized

# How many sentences of the training part of the English Web Treebank (UD) have 1, 2, 3 ... 60 words, and more.
EWT_LENGTHS = (
    521, 625, 491, 368, 419, 446, 435, 430, 455, 471, 488, 475, 421, 438, 443, 409, 379, 373, 351, 356,
    300, 314, 313, 256, 213, 216, 177, 180, 181, 135, 136, 111, 119, 100, 78, 76, 87, 71, 77, 57,
    54, 60, 37, 34, 32, 21, 22, 32, 23, 23, 18, 25, 11, 12, 11, 7, 11, 7, 8, 11,
)  # fmt: skip
EWT_LONGER = {62: 14, 65: 13, 66: 14, 68: 9, 70: 9, 72: 11, 76: 7, 80: 4, 85: 2, 89: 4, 95: 3, 102: 4, 135: 1, 159: 1}
BATCHINGS = ("varlen", "packed", "padded")
DISTINCT_WORDS = 60_000


class SkipError(Exception):
    """A step that cannot be done here, and why."""


class OverTimeError(BaseException):
    """A step has had its time; what handles the errors of a case lets it pass."""


@dataclass(frozen=True)
class Size:
    """The size of the measurements: for a GPU, or just enough to run every line."""

    shapes: tuple[str, ...]
    correctness_sentences: int
    forward_words: int
    stored_words: int
    plain_sentences: int
    single_sentences: int
    queries: int
    batches: tuple[int, ...]
    square: int
    buffer_nbytes: int
    rate_seconds: float
    lengths: tuple[int, ...]
    probe_sentences: int


ON_GPU = Size(("MiniLM", "BERT-base", "BERT-large", "Llama-0.6B"), 96, 400_000, 200_000, 640, 320, 1024,
              (16384, 32768, 65536), 8192, 2**30, 1.0, (4, 8, 16, 32, 64, 128, 256), 2000)  # fmt: skip
TINY = Size(("tiny", "tiny, wide", "tiny, deep", "tiny, decoder"), 6, 300, 300, 8, 4, 8, (256, 512), 64, 2**20, 0.01,
            (4, 16), 40)  # fmt: skip


@dataclass
class Setting:
    """`figures`: what steps have found, for later ones; `deadline`: when the present step should be done.

    `found`: the figures of the present step so far, and `save()` writes them to the result.
    `failures`: the tracebacks of cases of the present step that failed; `left_out`: its cases that were not run.
    `trace`: the name of files for what the profiler records, None for none.
    """

    device: torch.device
    folder: Path
    size: Size
    seed: int
    data: str | None
    figures: dict[str, Any] = field(default_factory=dict)
    targets: list[Target] = field(default_factory=list)
    deadline: float = 0.0
    trace: Path | None = None
    failures: list[str] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    found: dict[str, Any] = field(default_factory=dict)
    save: Callable[[], object] = lambda: None

    def __post_init__(self) -> None:
        self.made = made_words(DISTINCT_WORDS)
        self.sentences = self._sentences(self.size.forward_words)

    @property
    def left(self) -> float:
        """Seconds left for the present step."""
        return self.deadline - time.perf_counter()

    @property
    def base(self) -> str:
        return self.size.shapes[1]

    @property
    def large(self) -> str:
        return self.size.shapes[2]

    def model(self, shape: str) -> Path:
        """The folder of a model of a shape, made when it is first asked for."""
        folder = self.folder / shape
        if not folder.exists():  # a model that was saved in part is not taken for one
            save_model(folder.with_suffix(".new"), self.made, seed=self.seed, **SHAPES[shape]).rename(folder)
        return folder

    def encoder(self, shape: str, *, dtype: str = "auto", device: str | None = None) -> Any:
        return es.load_encoder(self.model(shape), device=device or str(self.device), compute_dtype=dtype)

    def some(self, words: int) -> list[list[str]]:
        """Return the first sentences that have `words` words together, or a few more."""
        ends = np.cumsum([len(sentence) for sentence in self.sentences])
        return self.sentences[: int(np.searchsorted(ends, words)) + 1]

    def wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def timed(self, call: Any) -> float:
        """Return the seconds of a call and of the work that it started on the GPU."""
        self.wait()
        began = time.perf_counter()
        call()
        self.wait()
        return time.perf_counter() - began

    def best(self, call: Any) -> float:
        """Return the seconds of the faster of two calls, after one that is not counted."""
        return min([self.timed(call) for _ in range(3)][1:])

    @contextmanager
    def noting(self, case: dict[str, Any]) -> Iterator[None]:
        """Note the failure of a case: the next one follows, and the step has failed but keeps its figures."""
        try:
            yield
        except Exception as error:
            case["failed"] = one_line(error)
            self.failures.append(traceback.format_exc())
        self.save()

    def need(self, name: str) -> Any:
        """What an earlier step has found; the present one is skipped where it has not."""
        if name not in self.figures:
            raise SkipError(f"needs {name}, which an earlier step did not give")
        return self.figures[name]

    def _sentences(self, words: int) -> list[list[str]]:
        rng = np.random.default_rng(self.seed)
        lengths, share = ewt_lengths() if self.data is None else lengths_of(self.data)
        drawn = rng.choice(lengths, 1 + int(2 * words / float((lengths * share).sum())), p=share)
        drawn = drawn[: int(np.searchsorted(np.cumsum(drawn), words)) + 1]
        spelled = np.array(self.made, dtype=object)
        types = np.exp(rng.random(int(drawn.sum())) * np.log(len(self.made))).astype(np.int64) - 1
        ends = np.cumsum(drawn)
        return [
            spelled[types[end - length : end]].tolist()
            for length, end in zip(drawn.tolist(), ends.tolist(), strict=True)
        ]


@cache
def ewt_lengths() -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    counted = dict(enumerate(EWT_LENGTHS, 1)) | EWT_LONGER
    lengths, counts = np.array(list(counted)), np.array(list(counted.values()), np.float64)
    return lengths, counts / counts.sum()


def lengths_of(corpus: str) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    lengths, counts = np.unique([len(sentence.words) for sentence in es.open_corpus(corpus)], return_counts=True)
    return lengths, counts / counts.sum()


def spans_of(tokenized: Tokenized) -> Spans:
    """A span for every word that has a subword."""
    words = np.diff(tokenized.sentence_indptr)
    sentence = np.repeat(np.arange(len(words)), words)
    base = tokenized.word_indptr[tokenized.sentence_indptr[sentence]]
    start, stop = tokenized.word_indptr[:-1] - base, tokenized.word_indptr[1:] - base
    some = stop > start
    return Spans(sentence[some], start[some], stop[some])


def run_through(encoder: Any, tokenized: Tokenized, layers: Sequence[int], size: int) -> None:
    """Encode all words, and drop their vectors."""
    for _ in encoder.encode(tokenized, spans_of(tokenized), layers=layers, pooling="mean", batch_subwords=size):
        pass


def vectors_of(encoder: Any, tokenized: Tokenized, shape: str, size: int) -> NDArray[np.float32]:
    """All layers of all words: float32 [layer, word, feature]."""
    spans = spans_of(tokenized)
    layers = layers_of(shape)
    out = np.full((len(layers), len(spans.sentence), encoder.info.hidden_size), np.nan, np.float32)
    for pooled in encoder.encode(tokenized, spans, layers=layers, pooling="mean", batch_subwords=size):
        out[:, pooled.rows] = pooled.vectors.float().numpy()
    return out


def closest(found: NDArray[np.float32], right: NDArray[np.float32]) -> dict[str, Any]:
    """The largest difference of a vector, by its length, and in which layer; and the middle one."""
    lengths = np.linalg.norm(right.astype(np.float64), axis=-1)
    relative = np.linalg.norm(found.astype(np.float64) - right, axis=-1) / lengths
    return {
        "relative": float(relative.max()) if np.isfinite(relative).all() else float("inf"),
        "layer": int(relative.max(1).argmax()),
        "median": float(np.median(relative)),
    }


def needed_flops(tokenized: Tokenized, shape: str) -> float:
    """Flops of the linear layers and of attention for the subwords there are, special ones included, no padding."""
    config = SHAPES[shape]
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    lengths = np.diff(tokenized.word_indptr[tokenized.sentence_indptr]).astype(np.float64) + 2
    linear = lengths.sum() * 2 * (4 * hidden * hidden + 2 * hidden * inner)
    return float(config["num_hidden_layers"] * (linear + 4 * hidden * (lengths**2).sum()))


def layers_of(shape: str, layers: Sequence[int] | None = None) -> tuple[int, ...]:
    return tuple(range(SHAPES[shape]["num_hidden_layers"] + 1)) if layers is None else tuple(layers)


def row_nbytes(shape: str) -> int:
    """Bytes of a word with all layers in half precision."""
    return len(layers_of(shape)) * SHAPES[shape]["hidden_size"] * 2


def one_line(error: BaseException) -> str:
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0][:300] if text else 'no message'}"

"""vLLM as an encoder of decoders: it computes the hidden states, and words, layers and pooling stay ours."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cached_property
from itertools import chain
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from embstore.devices import choose_device, choose_dtype
from embstore.errors import DeviceMemoryError, EmbstoreWarning, InvalidValueError, ModelError, quoted
from embstore.models.batched import BatchedEncoder
from embstore.models.batching import Batch, make_batches
from embstore.models.checkpoint import load, open_checkpoint, quiet, sha256_of
from embstore.models.encoder import ModelInfo, Pooling, Spans, Tokenized
from embstore.models.placing import SPLIT, Place, own_dtype
from embstore.models.running import HostCopy, LayerPooling, RunningBatch, SpanWork
from embstore.models.static.shorthand import public_name
from embstore.models.transformer.encoder import TransformerEncoder
from embstore.models.transformer.probing import longest_sentence
from embstore.models.transformer.tokens import SubwordTokenizer
from embstore.models.vllm.engine import Engine, require_vllm
from embstore.models.vllm.norm import final_norm
from embstore.store.layout import RESIDUAL, resolve_layers

READERS = 8  # threads that read the files of a batch
STATES_NBYTES = 8 << 30  # of the states of a batch; the files of two batches are on the disk
MOST_SUBWORDS = 1 << 16  # of a batch: more would not keep vLLM any busier
GENERATES = ("ForCausalLM", "LMHeadModel", "ForConditionalGeneration")  # the ends of names that vLLM generates with


class VllmEncoder(BatchedEncoder):
    """An encoder of a decoder that vLLM runs; it starts with the first pass, for the layers that are asked for.

    `options`: of `vllm.LLM`, as text. Vectors arrive on the host, so `device` is the CPU.
    """

    batching = "vllm"
    batchings = ("vllm",)
    causal = True

    def __init__(
        self,
        model: str,
        options: Mapping[str, str],
        *,
        source: str,
        device: object = "auto",
        compute_dtype: str = "auto",
        revision: str | None = None,
        layers: str | int | Iterable[int | str] = "all",
    ) -> None:
        require_vllm(source)
        if device not in ("auto", "cuda"):
            raise InvalidValueError(
                f"device {quoted(device)} is not for vLLM, which takes the first GPUs: set CUDA_VISIBLE_DEVICES, and "
                f"for several GPUs write {source.partition('?')[0]}?tensor_parallel_size=N"
            )
        self._checkpoint = open_checkpoint(model, revision=revision)
        config, tokenizer = self._checkpoint.config, self._checkpoint.tokenizer
        _require_decoder(source, config)
        place = Place.of("auto")
        chosen = own_dtype(config, place) if compute_dtype == "auto" else choose_dtype(compute_dtype, place.main)
        super().__init__(source, torch.device("cpu"), chosen)
        self._options, self._longest = _parsed(source, options), 1
        self._engine: Engine | None = None
        text = config.get_text_config()
        self._tokenizer = SubwordTokenizer(tokenizer, vocabulary=text.vocab_size)
        specials = self._tokenizer.specials
        self.n_specials, self.n_before = specials.count, len(specials.prefix)
        self.special_ids = specials.prefix, specials.suffix
        limit = longest_sentence(text, tokenizer, specials, None)
        self.info = ModelInfo(
            name=public_name(source).partition("?")[0],
            architecture=config.architectures[0],
            revision=self._checkpoint.revision,
            weights_sha256=sha256_of(self._checkpoint.files),
            tokenizer_sha256=self._tokenizer.sha256(),
            num_hidden_layers=text.num_hidden_layers,
            hidden_size=text.hidden_size,
            max_subwords=None if limit is None else limit - 1,  # for the token that vLLM generates
            final_norm=True,
        )
        every = range(self.info.num_hidden_layers + 1)
        self._layers = resolve_layers(layers, every, ascending=True, absent="does not exist")

    @property
    def default_batch_subwords(self) -> int:
        """Return a batch size for which the states of the layers asked for are a few gigabytes."""
        nbytes = len(self._layers) * self.info.hidden_size * self.dtype.itemsize
        return max(256, min(MOST_SUBWORDS, STATES_NBYTES // nbytes))

    def subword_text(self, index: int) -> str:
        """Return the spelling of a subword in the tokenizer's vocabulary."""
        return self._tokenizer.subword_text(index)

    def projected_nbytes(self, *, n_features: int, batch_subwords: int) -> int:
        """Estimate the main memory of a batch's states, twice; the weights are on vLLM's GPUs."""
        return 2 * batch_subwords * n_features * self.dtype.itemsize

    def self_check(self, tokenized: Tokenized, *, longest: int | None = None, **options: Any) -> float:
        """Compare vLLM with the plain pass of transformers; see `Encoder.self_check`.

        A model that transformers cannot load here is not compared, which a warning says; the difference is then NaN.
        """
        most = longest if self.info.max_subwords is None else min(longest or 0, self.info.max_subwords)
        self._longest = max(self._longest, (most or 0) + self.n_specials)
        try:
            return super().self_check(tokenized, longest=longest, **options)
        except _NotLoaded as error:
            warnings.warn(
                f"vLLM's vectors of {self.info.name!r} are not compared with those of transformers, which cannot load "
                f"it here: {error}",
                EmbstoreWarning,
                stacklevel=2,
            )
            return float("nan")

    def plain_vectors(
        self,
        tokenized: Tokenized,
        spans: Spans,
        *,
        layers: Sequence[int],
        pooling: Pooling,
        attention_window: int | None = None,
        site: str = RESIDUAL,
    ) -> NDArray[np.float32]:
        """Return the vectors of spans from a plain pass of transformers, whose model is then given up for vLLM's."""
        self.site_sizes([site])
        self.close()
        device = SPLIT if choose_device().type == "cuda" else "cpu"
        try:
            revision = self._checkpoint.revision
            name = str(self._checkpoint.folder)
            encoder = TransformerEncoder(load(name, device=device, dtype=self.dtype, revision=revision, layers=layers))
        except (ModelError, DeviceMemoryError, InvalidValueError) as error:
            raise _NotLoaded(str(error)) from error
        try:
            return encoder.plain_vectors(tokenized, spans, layers=layers, pooling=pooling)
        finally:
            del encoder
            gc.collect()
            if torch.cuda.is_available():
                torch.cuda.empty_cache()

    def plain_states(
        self, tokenized: Tokenized, sentence: int, attention_window: int | None, site: str
    ) -> Mapping[int, torch.Tensor]:
        """Raise NotImplementedError: `plain_vectors` asks another encoder."""
        raise NotImplementedError

    def close(self) -> None:
        """End vLLM; the next pass starts it again."""
        if self._engine is not None:
            self._engine.close()
        self._engine = None

    @cached_property
    def _norm(self) -> torch.nn.Module:
        found = self._checkpoint
        with quiet():
            return final_norm(found.config, found.files, name=self.info.name, dtype=self.dtype)

    def _tokenize(self, sentences: Sequence[Sequence[str]]) -> Tokenized:
        return self._tokenizer.tokenize(sentences)

    def _started(self, layers: Sequence[int], longest: int) -> Engine:
        """Return vLLM for these layers and sentences of that length; it is started again where it has other ones."""
        if self._engine is None or not self._engine.serves(layers, longest):
            self.close()
            self._longest = max(self._longest, longest)
            self._engine = Engine(
                self._checkpoint.folder,
                name=self.info.name,
                layers=sorted(set(layers)),
                longest=self._longest,
                most=None if self.info.max_subwords is None else self.info.max_subwords + self.n_specials,
                dtype=self.compute_dtype,
                options=self._options,
            )
        return self._engine

    def _running(self, work: SpanWork) -> Iterator[RunningBatch | None]:
        """Run batches, reading the files of one while vLLM computes the next."""
        lengths, clock = work.lengths + self.n_specials, work.clock
        if not len(lengths):
            return
        if self.info.num_hidden_layers in work.layers:
            self._norm  # noqa: B018  # refused before vLLM starts
        engine = self._started(work.layers, int(lengths.max()))
        batches = make_batches(lengths, how="varlen", batch_subwords=work.batch_subwords)
        waiting: tuple[Batch, torch.Tensor, list[Future[None]]] | None = None
        with ThreadPoolExecutor(READERS) as pool:
            for batch in chain(batches, [None]):
                began, before = clock.mark(), waiting
                if batch is not None:
                    waiting = self._submitted(work, batch, engine, pool)
                if before is not None:
                    vectors, rows = self._pooled(work, *before, engine)
                    ran = clock.mark()
                    yield RunningBatch(rows, HostCopy((), (vectors,), ran, ran), began, began, ran)

    def _submitted(
        self, work: SpanWork, batch: Batch, engine: Engine, pool: ThreadPoolExecutor
    ) -> tuple[Batch, torch.Tensor, list[Future[None]]]:
        """Run a batch and begin to read its states, [subwords, layers, features]."""
        specials, ids = self._tokenizer.specials, work.tokenized.ids
        runs = zip(work.starts[batch.sentences], work.lengths[batch.sentences], strict=True)
        sentences = [specials.around(ids[start : start + length])[0].tolist() for start, length in runs]
        paths = engine.run(sentences)
        states = torch.empty(batch.positions, len(engine.layers), self.info.hidden_size, dtype=self.dtype)
        parts = torch.split(states, [len(sentence) for sentence in sentences])
        jobs = zip(paths, sentences, parts, strict=True)
        return batch, states, [pool.submit(engine.read, path, sentence, part) for path, sentence, part in jobs]

    @torch.inference_mode()
    def _pooled(
        self, work: SpanWork, batch: Batch, states: torch.Tensor, reads: list[Future[None]], engine: Engine
    ) -> tuple[torch.Tensor, NDArray[np.int64]]:
        """Wait for the states of a batch; returns the vectors of its spans, and these."""
        for read in reads:
            read.result()
        rows, starts, lengths = work.spans_of(batch, before=self.n_before)
        pool = LayerPooling(work, starts, lengths, self.device, self.dtype)
        for layer in work.layers:
            state = states[:, engine.layers.index(layer)]
            pool.receive(layer, self._norm(state) if layer == self.info.num_hidden_layers else state)
        (vectors,) = pool.vectors()
        return vectors, rows[pool.order]


class _NotLoaded(Exception):
    """Transformers cannot load the model."""


def _require_decoder(model: str, config: Any) -> None:
    """Raise ModelError for what vLLM does not generate with."""
    (kind, *_) = getattr(config, "architectures", None) or [type(config).__name__]
    if "bert" in kind.lower() or config.is_encoder_decoder or not kind.endswith(GENERATES):
        raise ModelError(
            f"the model {model!r} ({kind}) is not a decoder with a language modeling head, of which alone vLLM gives "
            "hidden states: leave out vllm:"
        )


def _parsed(model: str, options: Mapping[str, str]) -> dict[str, Any]:
    """Return the options of `vllm.LLM` as numbers; raises InvalidValueError."""
    limits = {"tensor_parallel_size": (int, 1, 1024), "gpu_memory_utilization": (float, 0.01, 1)}
    parsed: dict[str, Any] = {}
    for name, text in options.items():
        kind, least, most = limits[name]
        try:
            parsed[name] = kind(text)
        except ValueError:
            parsed[name] = -1
        if not least <= parsed[name] <= most:
            raise InvalidValueError(f"model {model!r}: {name} {quoted(text)} is not allowed: give {least} to {most}")
    return parsed

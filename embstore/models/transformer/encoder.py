"""The encoder of a Hugging Face transformer: batches in, pooled vectors of every layer out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from functools import cached_property
from typing import Any, cast

import torch

from embstore.corpus.sentence import Document, Sentence
from embstore.errors import InvalidValueError
from embstore.models.batched import BatchedEncoder, Prepared, States
from embstore.models.batching import BATCHINGS, Batch, Batching
from embstore.models.checkpoint import Loaded, load
from embstore.models.encoder import By, Indices, Scope, Split, Tokenized
from embstore.models.memory import fitting_batch, free_nbytes
from embstore.models.running import RunningBatch, SpanWork
from embstore.models.transformer.chat import Chats
from embstore.models.transformer.network import Network
from embstore.models.transformer.selfcheck import (
    require_own_mask,
    require_window_respected,
    sentences_to_check,
    window_mask,
)
from embstore.models.transformer.varlen import NAME, accepts_sentence_bounds, attention_by, pinned_backends
from embstore.store.layout import RESIDUAL


class TransformerEncoder(BatchedEncoder):
    """An encoder of any transformer that returns its hidden states; made by `load_encoder`.

    With an attention window a word also attends to the special subwords, which attend only to each other.
    """

    batching = "padded"
    batchings = BATCHINGS
    masks_attention = True
    takes_pairs = True

    def __init__(self, loaded: Loaded) -> None:
        super().__init__(loaded.name, loaded.place.main, loaded.dtype)
        self._place, self._packs, self.device_map = loaded.place, True, loaded.place.device_map
        self.network = Network(loaded)
        self.tokenizer, self.outliers = self.network.tokenizer, self.network.outliers
        self.info = self.network.info
        self.causal = self.network.inputs.causal
        self.reads_text = self.tokenizer.reads_text
        self._chats = Chats(loaded.tokenizer, self.tokenizer)
        specials = self.network.inputs.specials
        self.n_specials = specials.count
        self.n_before = len(specials.prefix)
        self.special_ids = specials.prefix, specials.suffix
        cls = loaded.tokenizer.cls_token_id
        if cls in specials.prefix:
            self.cls_place = specials.prefix.index(cls) - self.n_before
        elif cls in specials.suffix:
            self.cls_place = specials.suffix.index(cls)

    @cached_property
    def network(self) -> Network:
        """The model and what its batches must look like, loaded again after `free`."""
        network = Network(load(self.source, self._place, dtype=self.dtype, revision=self.info.revision))
        if not self._packs:
            network.packed.drop()
        return network

    def free(self) -> None:
        self.__dict__.pop("network", None)
        super().free()

    @property
    def attention(self) -> Mapping[str, float]:
        return self.network.sites.attention

    @property
    def default_batch_subwords(self) -> int:
        """Return a good batch size for the device, on a CUDA GPU by its free memory."""
        if self.device.type != "cuda":
            return 2048 if self.device.type == "cpu" else 16384
        n_features = (self.info.num_hidden_layers + 1) * self.info.hidden_size
        return self.batch_subwords_next_to(lambda size: 0, n_features=n_features)

    def batch_subwords_next_to(self, held: Callable[[int], int], *, n_features: int) -> int:
        """Return a good batch size for a GPU that also holds buffers of `held(batch size)` bytes."""
        if self.device.type != "cuda":
            return self.default_batch_subwords
        gpus = {weight.device for weight in self.network.model.parameters() if weight.device.type == "cuda"}
        free = min(map(free_nbytes, gpus or {self.device}))
        return fitting_batch(free, position_nbytes=self.network.position_nbytes(n_features), held=held)

    def subword_text(self, index: int) -> str:
        """Return the spelling of a subword in the tokenizer's vocabulary."""
        return self.tokenizer.subword_text(index)

    def candidate_batchings(self, *, attention_window: int | None = None, equal_lengths: bool = False) -> Sequence[str]:
        """Return the batchings to try, fastest first.

        "varlen" is first, because a mask costs more than the attention of the sentences; it has none for an attention
        window.
        """
        inputs = self.network.inputs
        has_mask = "attention_mask" in inputs.parameters and not equal_lengths
        masked = ("packed", "padded", "equal") if has_mask else ("equal",)
        if equal_lengths or attention_window is not None or inputs.position_offset is None:
            return masked
        return ("varlen", *masked) if accepts_sentence_bounds(self.network.model) else masked

    def check_sentences(
        self, tokenized: Tokenized, attention_window: int | None, longest: int | None, n_subwords: int | None
    ) -> list[tuple[Tokenized, int | None]]:
        """Return these sentences and long ones made of their words, for a small extraction less of both.

        Raises ModelError if an attention window is not respected.
        """
        if attention_window is not None:
            require_window_respected(self.network, tokenized, attention_window)
            require_own_mask(self.network, tokenized)
        return sentences_to_check(self.network, tokenized, longest, n_subwords)

    def drop_fast_layers(self) -> bool:
        self._packs = False
        return self.network.packed.drop()

    def cut_is_exact(self, left: str, right: str) -> bool:
        return self.tokenizer.cut_is_exact(left, right)

    def separator(self, name: str) -> int:
        number = self.tokenizer.ending(name)
        return super().separator(name) if number is None else number

    def pair_types(self, bounds: Indices, first: Indices, last: Indices) -> Indices | None:
        return self.tokenizer.pair_types(bounds, first, last)

    def write_chat(self, messages: Sequence[Mapping[str, Any]]) -> Document | None:
        return self._chats.write(messages) if self._chats.exists else None

    @property
    def inner_sizes(self) -> Mapping[str, int]:
        return self.network.sites.sizes

    def plain_states(self, sentence: Tokenized, reach: int | None, site: str, deepest: int | None = None) -> States:
        """Return all layers of one sentence at a site, without special subwords, each [n_subwords, features].

        One call of the model with `output_hidden_states=True`, or one that stops at the layer `deepest`. The mask of an
        attention window is written row by row.
        """
        ids = sentence.ids[: self.info.max_subwords]
        inputs = self.network.inputs.plain(ids)
        if reach is not None:
            assert sentence.words is not None
            inputs["attention_mask"] = window_mask(self.network.inputs, sentence.words[: len(ids)], reach)
        states: dict[int, torch.Tensor] = {}
        with pinned_backends(self.device):
            every = range((self.info.num_hidden_layers if deepest is None else deepest) + 1)
            if site == RESIDUAL and deepest is None:
                states.update(enumerate(self.network.tap.plain(inputs)))
            elif site == RESIDUAL:
                self.network.tap.run(inputs, every, states.__setitem__)
            else:
                with self.network.sites.reading([site], every, lambda layer, state, _: states.update({layer: state})):
                    self.network.tap.run(inputs, every[-1:], lambda *_: None)
        own = slice(self.n_before, self.n_before + len(ids))
        return {layer: state.flatten(0, -2)[own] for layer, state in states.items()}

    def projected_nbytes(self, *, n_features: int, batch_subwords: int) -> int:
        """Estimate the memory of the weights, on the first device of several, and of one batch, from above."""
        return self.network.weights_nbytes + self.network.batch_nbytes(
            n_features=n_features, batch_subwords=batch_subwords
        )

    def tokenize(self, sentences: Sequence[Sentence], *, scope: Scope = "sentence", by: By = "text") -> Split:
        return self.tokenizer.tokenize(sentences, scope=scope, by=by)

    def _running(self, work: SpanWork) -> Iterator[RunningBatch | None]:
        reach, how, network = work.attention_window, cast(Batching, self.batching), self.network
        inner = [site for site in work.sites if site != RESIDUAL]
        if reach is not None and how == "varlen":
            raise InvalidValueError("sentences end to end have no mask for an attention window; use another batching")

        def prepare(batch: Batch) -> Prepared:
            starts, lengths = work.starts[batch.sentences], work.lengths[batch.sentences]
            inputs = network.inputs.batch(batch, work.tokenized, starts, lengths, how, reach)

            def forward(take: Any) -> None:
                def collect(layer: int, state: torch.Tensor, *site: str) -> None:
                    take(layer, state.to(self.device, non_blocking=True), *site)

                receive = collect if network.is_split else take
                attention = attention_by(NAME, network.model) if how == "varlen" else nullcontext()
                reading = network.sites.reading(inner, work.layers, receive) if inner else nullcontext()
                with pinned_backends(self.device), network.packed.used(), attention, reading:
                    network.tap.run(inputs, work.layers, receive)

            return work.spans_of(batch, before=self.n_before), forward

        return self._run_batches(work, how, prepare)

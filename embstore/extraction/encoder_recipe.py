"""How another process comes by the encoder of a plan: a name, how it computes, and what it must turn out to be."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass

from embstore.errors import EmbstoreError, ExecutorError
from embstore.extraction.options import Options
from embstore.models import load_encoder
from embstore.models.encoder import Encoder

_PREFIX = re.compile(r"(?:bag:)?(?:vectors:|subwords:)?")
CHOSEN = ("batching", "compute_dtype")


@dataclass(frozen=True)
class EncoderRecipe:
    """The name of a model, its revision and how it computes; hashes that a worker's files must have.

    `check_sentences`: what the plan's encoder checked itself on, which settles how it runs.
    """

    model: str
    revision: str | None
    compute_dtype: str
    batching: str
    weights_sha256: str
    tokenizer_sha256: str
    check_sentences: tuple[tuple[str, ...], ...]

    @classmethod
    def of(cls, encoder: Encoder, check_sentences: Sequence[Sequence[str]], *, batching: str) -> EncoderRecipe:
        info = encoder.info
        return cls(
            model=with_absolute_path(info.name),
            revision=info.revision,
            compute_dtype=encoder.compute_dtype,
            batching=batching,
            weights_sha256=info.weights_sha256,
            tokenizer_sha256=info.tokenizer_sha256,
            check_sentences=tuple(tuple(words) for words in check_sentences),
        )

    def load(self, layers: Sequence[int], options: Options) -> Encoder:
        """Load the encoder here and settle it as the plan did; raises ExecutorError where it is another one."""
        try:
            encoder = load_encoder(self.model, compute_dtype=self.compute_dtype, revision=self.revision)
        except EmbstoreError as error:
            raise ExecutorError(
                f"cannot load the model of the plan: {error}; workers need it at the same path, or from the hub"
            ) from error
        for part in ("weights", "tokenizer"):
            if getattr(encoder.info, f"{part}_sha256") != getattr(self, f"{part}_sha256"):
                raise ExecutorError(
                    f"{self.model!r} has other {part} here than where the plan was made: copy the model's files anew"
                )
        settle(encoder, self.check_sentences, layers, options)
        if encoder.batching != self.batching:
            encoder.use_batching(self.batching)
        return encoder


def settle(encoder: Encoder, sentences: Sequence[Sequence[str]], layers: Sequence[int], options: Options) -> None:
    """Have the encoder check itself and settle its batching, windows of one length standing together."""
    tokenized = encoder.tokenize(sentences)
    encoder.self_check(
        tokenized,
        layers=layers,
        pooling=options.pooling,
        attention_window=options.attention_window,
        equal_lengths=options.cuts_windows,
    )


def with_absolute_path(model: str) -> str:
    """Return the name of a model in which a path is no longer relative to the current folder."""
    prefix = _PREFIX.match(model)
    head = "" if prefix is None else prefix[0]
    rest = model[len(head) :]
    for path, tail in ((rest, ""), (rest.rpartition("?")[0], f"?{rest.rpartition('?')[2]}")):
        if path and os.path.exists(os.path.expanduser(path)):
            return head + os.path.abspath(os.path.expanduser(path)) + tail
    return model

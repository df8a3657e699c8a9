"""The encoder of a plan in another process: what to load, how it computes, and what its files must be."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from embstore.corpus import Sentence
from embstore.errors import EmbstoreError, ExecutorError
from embstore.executors import worker_device
from embstore.extraction.options import ExtractionOptions
from embstore.models.encoder import Encoder
from embstore.models.loading import encoder_on
from embstore.models.names import absolute_name
from embstore.models.placing import DeviceMap

PACKAGES = ("embstore", "torch", "transformers", "tokenizers", "numpy")


@dataclass(frozen=True)
class EncoderSpec:
    """A serializable description of an encoder: its name, how it computes, and the hashes that a worker verifies.

    `check_sentences`: what the encoder of the plan checked itself on, for sentences of at most `longest` subwords.
    `windowed`: whether it was checked for sentences of equal lengths. `device_map`: of a model that is
    split over devices; None: it is loaded on the worker's own.
    """

    model: str
    revision: str | None
    compute_dtype: str
    batching: str
    weights_sha256: str
    tokenizer_sha256: str
    config_sha256: str | None
    check_sentences: tuple[tuple[str, ...], ...]
    longest: int
    windowed: bool
    device_map: DeviceMap | None = None

    @classmethod
    def of(
        cls, encoder: Encoder, check_sentences: Sequence[Sequence[str]], *, longest: int, batching: str, windowed: bool
    ) -> EncoderSpec:
        info = encoder.info
        if not encoder.source:
            raise ExecutorError(
                f"{info.name} has options that its name does not say, so no other process can load it: leave out the "
                "executor"
            )
        return cls(
            model=absolute_name(encoder.source),
            revision=info.revision,
            compute_dtype=encoder.compute_dtype,
            batching=batching,
            weights_sha256=info.weights_sha256,
            tokenizer_sha256=info.tokenizer_sha256,
            config_sha256=info.config_sha256,
            check_sentences=tuple(tuple(words) for words in check_sentences),
            longest=longest,
            windowed=windowed,
            device_map=encoder.device_map,
        )

    def load(self, layers: Sequence[int], options: ExtractionOptions) -> Encoder:
        """Load the encoder and choose the batching of the plan; raises ExecutorError if it is another encoder."""
        try:
            encoder = encoder_on(
                worker_device(),
                self.model,
                device_map=self.device_map,
                compute_dtype=self.compute_dtype,
                revision=self.revision,
            )
        except EmbstoreError as error:
            raise ExecutorError(
                f"cannot load the model of the plan: {error}; workers need it at the same path, or from the hub"
            ) from error
        for part in ("weights", "tokenizer", "config"):
            if getattr(encoder.info, f"{part}_sha256") != getattr(self, f"{part}_sha256"):
                raise ExecutorError(
                    f"{self.model!r} has other {part} on this worker than where the plan was made: copy the model's "
                    "files again"
                )
        self.check(encoder, layers, options)
        encoder.use_batching(self.batching)
        return encoder

    def check(self, encoder: Encoder, layers: Sequence[int], options: ExtractionOptions) -> None:
        """Compare the batching with the plain pass; the encoder uses another one only if it does not have this one."""
        known = {"longest": self.longest, "equal_lengths": self.windowed, "batching": self.batching}
        self_check(encoder, self.check_sentences, layers, options, **known)


def self_check(
    encoder: Encoder,
    sentences: Sequence[Sequence[str]],
    layers: Sequence[int],
    options: ExtractionOptions,
    **known: Any,
) -> None:
    """Have the encoder check its batchings against the plain pass and choose one; `known`: see `Encoder.self_check`."""
    encoder.self_check(
        encoder.tokenize(list(map(Sentence, sentences)), by=options.tokenize).tokenized,
        layers=layers,
        pooling=options.encoding["pooling"],
        attention_window=options.attention_window,
        sites=options.sites,
        batch_subwords=options.batch_subwords,
        **known,
    )


def software_versions() -> dict[str, str]:
    """Return package name -> version of the packages that decide what a store holds."""
    found = {}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def require_software(planned: Mapping[str, str]) -> None:
    """Raise ExecutorError for other packages than those of the plan, which decide the last bits of vectors."""
    ours = software_versions()
    for package, needed in planned.items():
        if ours.get(package) != needed:
            raise ExecutorError(
                f"the worker has {package} {ours.get(package, 'none')}, the plan was made with {needed}: install the "
                "same version"
            )

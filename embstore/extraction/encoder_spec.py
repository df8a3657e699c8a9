"""The encoder of a plan in another process: what to load, how it computes, and what its files must be."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

from embstore.corpus import Sentence
from embstore.errors import EmbstoreError, ExecutorError
from embstore.executors import worker_device
from embstore.extraction.options import ExtractionOptions
from embstore.models.encoder import Encoder, ModelInfo
from embstore.models.loading import encoder_on
from embstore.models.placing import DeviceMap

PACKAGES = ("embstore", "torch", "transformers", "tokenizers", "numpy")


@dataclass(frozen=True)
class SelfCheck:
    """What an encoder checks itself on: `sentences`, for contexts of at most `longest` of all `n_subwords`."""

    sentences: list[list[str]]
    longest: int
    n_subwords: int
    layers: tuple[int, ...]
    options: ExtractionOptions

    def run(self, encoder: Encoder, batching: str | None) -> None:
        """Compare batchings with the plain pass and choose one: `batching` if that is exact."""
        options = self.options
        encoder.self_check(
            encoder.tokenize(list(map(Sentence, self.sentences)), by=options.tokenize).tokenized,
            layers=self.layers,
            pooling=options.encoding["pooling"],
            attention_window=options.attention_window,
            sites=options.sites,
            equal_lengths=options.context_window is not None,
            longest=self.longest,
            batching=batching,
            batch_subwords=options.batch_subwords,
            n_subwords=self.n_subwords,
        )


@dataclass(frozen=True)
class EncoderSpec:
    """A serializable description of an encoder: its name, how it computes, and the hashes that a worker verifies.

    `info`: the identity that it must have. `check`: what the encoder of the plan checked itself on. `device_map`: of a
    model that is split over devices; None: it is loaded on the worker's own.
    """

    model: str
    info: ModelInfo
    compute_dtype: str
    batching: str
    check: SelfCheck
    device_map: DeviceMap | None = None

    def load(self) -> Encoder:
        """Load the encoder and choose the batching of the plan; raises ExecutorError if it is another encoder."""
        try:
            encoder = encoder_on(
                worker_device(),
                self.model,
                device_map=self.device_map,
                compute_dtype=self.compute_dtype,
                revision=self.info.revision,
            )
        except EmbstoreError as error:
            raise ExecutorError(
                f"cannot load the model of the plan: {error}; workers need it at the same path, or from the hub"
            ) from error
        for part in ("weights", "tokenizer", "config"):
            if getattr(encoder.info, f"{part}_sha256") != getattr(self.info, f"{part}_sha256"):
                raise ExecutorError(f"{self.model!r} has other {part} on this worker than in the plan: copy its files")
        self.check.run(encoder, self.batching)
        encoder.use_batching(self.batching)
        return encoder


def software_versions() -> dict[str, str]:
    """Return package name -> version of the packages that decide what a store holds."""
    found = {}
    for package in PACKAGES:
        with suppress(PackageNotFoundError):
            found[package] = version(package)
    return found


def require_software(planned: Mapping[str, str]) -> None:
    """Raise ExecutorError for other packages than those of the plan, which decide the last bits of vectors."""
    ours = software_versions()
    for package, needed in planned.items():
        if ours.get(package) != needed:
            found = ours.get(package, "none")
            raise ExecutorError(f"the worker has {package} {found}, the plan was made with {needed}: install the same")

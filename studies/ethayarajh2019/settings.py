"""The settings of the study of Ethayarajh 2019."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from embstore.arguments import checked
from embstore.errors import check_choice
from embstore.store.layout import resolve_layer
from embstore_studies.settings import StudySettings


@checked
@dataclass(frozen=True, kw_only=True)
class Ethayarajh2019(StudySettings):
    """Settings of the study: how contextual the vectors of each layer are, and how good static vectors made of them.

    The defaults are the paper's.

    min_contexts: different sentences that a word needs. baseline: "sample" or "exact", sample: as in `geometry`.
    vectors: files of word vectors by name, compared in Table 1. benchmarks: a folder of word benchmarks, as `evaluate`
    takes it; without it Table 1 is left out. benchmark_layers: the layers in Table 1, by default the first two and the
    last two with context. n_words: words listed at each end of a layer. resamples: of words and sentences, for
    intervals. seed: of samples and clusterings.

    Raises InvalidValueError for a value that is not allowed.
    """

    about: ClassVar[str] = "how contextual the vectors of each layer are"
    data: ClassVar[str] = "any corpus (the paper: STS 2012-2016)"

    min_contexts: int = 5
    baseline: str = "sample"
    sample: int = 1000
    vectors: Mapping[str, str | Path] = field(default_factory=dict)
    benchmarks: str | Path | None = None
    benchmark_layers: tuple[int, ...] | None = None
    n_words: int = 10
    resamples: int = 1000
    seed: int = 0

    def __post_init__(self) -> None:
        check_choice("baseline", self.baseline, ("sample", "exact"))
        self.require_at_least(min_contexts=2, sample=2, n_words=1, resamples=1, seed=0)

    @property
    def measuring(self) -> dict[str, Any]:
        """The arguments of `geometry`."""
        baseline = self.sample if self.baseline == "sample" else "exact"
        return {"min_contexts": self.min_contexts, "baseline": baseline, "seed": self.seed}

    def evaluated(self, layers: Sequence[int]) -> tuple[int, ...]:
        """Return the layers of a model in Table 1: the chosen ones, or the first and last two with context."""
        if self.benchmark_layers is not None:
            return tuple(resolve_layer(layer, list(layers)) for layer in self.benchmark_layers)
        inner = tuple(layer for layer in layers if layer > 0) or tuple(layers)
        return tuple(dict.fromkeys((*inner[:2], *inner[-2:])))

    def describe(self) -> str:
        """Return one line on the size of the study."""
        baseline = f"{self.sample:,} sampled vectors" if self.baseline == "sample" else "all vectors"
        return (
            f"Words of {self.min_contexts} different sentences or more, without punctuation; baselines over {baseline} "
            f"(the paper: 5; 1,000); intervals from {self.resamples:,} bootstrap samples; seed {self.seed}."
        )

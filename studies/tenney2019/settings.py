"""The settings of the study of Tenney et al. 2019."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from embstore.arguments import checked
from embstore.errors import InvalidValueError
from embstore_studies.settings import ProbingSettings

if TYPE_CHECKING:
    from embstore.probes import EdgeProbe


@checked
@dataclass(frozen=True, kw_only=True)
class Tenney2019(ProbingSettings):
    """Settings of the study: in which layers of a model each task of the NLP pipeline is solved.

    tasks: some of those in the folder, all by default. n_sentences: of each split of each task at most, drawn by their
    texts, so that tasks over the same sentences draw the same ones; None for all, as in the paper. seeds: of the
    probes' weights. unit: one row per subword, as in the paper, or per word. epochs, batch_size, learning_rate,
    patience, hidden_size: of the probes. layerwise: also a probe of each layer alone. control: also the control task of
    each task. untrained: also the model with random weights, as a baseline. resamples: of sentences, for intervals.
    traces: sentences drawn in Figure 3. seed: of samples and of random weights.

    Raises InvalidValueError for a value that is not allowed.
    """

    about: ClassVar[str] = "in which layers the tasks of the NLP pipeline are solved"
    data: ClassVar[str] = "a folder with a folder per task, each with train.jsonl, dev.jsonl and perhaps test.jsonl"

    tasks: Sequence[str] | None = None
    n_sentences: int | None = 300
    unit: str = "subword"
    layerwise: bool = False
    control: bool = False
    untrained: bool = True
    resamples: int = 1000
    traces: int = 3

    def __post_init__(self) -> None:
        self.require_at_least(traces=0, resamples=0)
        if self.unit not in ("subword", "word"):
            raise InvalidValueError(f"unit {self.unit!r} is not allowed: choose subword or word")
        self.probe()

    def probe(self, *, trained: bool = True) -> EdgeProbe:
        """Return edge probes as the study trains them, not fitted yet; those of random weights have one seed."""
        from embstore.probes import EdgeProbe

        options = self.probing() | {"projection": self.hidden_size, "n_sentences": self.n_sentences}
        if not trained:
            options["seeds"] = self.seeds[:1]
        return EdgeProbe(**options, layerwise=self.layerwise and trained, control=self.control and trained)

    def describe(self, n_tasks: int) -> str:
        """Return one line on the size of the study, with the paper's figures in brackets."""
        count = self.n_sentences
        sample = "all sentences" if count is None else f"at most {count:,} sentences of each split"
        seeds = ", ".join(map(str, self.seeds))
        return (
            f"Size: {sample} of each of {n_tasks} tasks (the paper: all), one row per {self.unit} (subword), probes of "
            f"{self.hidden_size} units (256), at most {self.epochs} epochs, seeds {seeds}, seed {self.seed}."
        )

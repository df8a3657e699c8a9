"""The settings of the study of Tenney et al. 2019, and what the paper states of its tasks in words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from embstore.errors import InvalidValueError

# By the folders that tasks are in, as the paper's figures call them and in their order.
TASKS = {
    "pos": "POS",
    "constituents": "Consts.",
    "dependencies": "Deps.",
    "entities": "Entities",
    "semantic-roles": "SRL",
    "coreference": "Coref.",
    "protoroles": "SPR",
    "relations": "Relations",
}
# "POS tags processed earliest, followed by constituents, dependencies, semantic roles, and coreference" (section 4).
ORDER = ("pos", "constituents", "dependencies", "semantic-roles", "coreference")


@dataclass(frozen=True, kw_only=True)
class Tenney2019:
    """Settings of the study: in which layers of a model each task of the NLP pipeline is solved.

    `Tenney2019.small()` fits two hours on two CPU cores.

    tasks: some of those in the folder, all by default. sentences: of each split of each task at most, drawn by their
    texts, so that tasks over the same sentences draw the same ones; None for all. seeds: of the probes' weights. unit:
    one row per subword, as in the paper, or per word. epochs, batch_size, learning_rate, patience, hidden_size: of the
    probes. layerwise: also a probe of each layer alone. control: also the control task of each task. untrained: also
    the model with random weights, as a baseline. resamples: of sentences, for intervals. traces: sentences drawn in
    Figure 3. seed: of samples and of random weights.

    Raises InvalidValueError for a value that is not allowed.
    """

    tasks: Sequence[str] | None = None
    sentences: int | None = None
    seeds: tuple[int, ...] = (0, 1, 2)
    unit: str = "subword"
    epochs: int = 30
    batch_size: int = 32
    learning_rate: float = 1e-3
    patience: int = 3
    hidden_size: int = 256
    layerwise: bool = False
    control: bool = False
    untrained: bool = True
    resamples: int = 1000
    traces: int = 3
    seed: int = 0

    def __post_init__(self) -> None:
        if self.traces < 0:
            raise InvalidValueError(f"traces {self.traces} is not allowed: give 0 or more sentences to draw")
        if self.unit not in ("subword", "word"):
            raise InvalidValueError(f"unit {self.unit!r} is not allowed: choose subword or word")

    @classmethod
    def small(cls, **changes: Any) -> Tenney2019:
        """Return settings for two hours on two CPU cores: fewer sentences, two seeds."""
        return cls(**{"sentences": 2000, "seeds": (0, 1), "epochs": 15, **changes})

    def describe(self, n_tasks: int) -> str:
        """Return one line on the size of the study, with the paper's figures in brackets."""
        sample = "all sentences" if self.sentences is None else f"at most {self.sentences:,} sentences of each split"
        seeds = ", ".join(map(str, self.seeds))
        return (
            f"Size: {sample} of each of {n_tasks} tasks (the paper: all), one row per {self.unit} (subword), probes of "
            f"{self.hidden_size} units (256), at most {self.epochs} epochs, seeds {seeds}, seed {self.seed}."
        )

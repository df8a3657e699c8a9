"""What the settings of every study have."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from embstore.errors import check_whole


@dataclass(frozen=True, kw_only=True)
class StudySettings:
    """The settings of a study.

    `about`: what it studies, in a few words. `data`: what its data are. `takes_one_model`: it does not compare several.
    """

    about: ClassVar[str]
    data: ClassVar[str]
    takes_one_model: ClassVar[bool] = False

    def require_at_least(self, **least: int) -> None:
        """Raise InvalidValueError for a setting, by its name, that has a number below its least; None is allowed."""
        for name, bound in least.items():
            value = getattr(self, name)
            for each in value if isinstance(value, tuple) else (value,):
                if each is not None:
                    check_whole(name, each, bound)


@dataclass(frozen=True, kw_only=True)
class ProbingSettings(StudySettings):
    """What studies of probes have: their size and training, and seeds, of which the first also draws samples."""

    epochs: int = 30
    batch_size: int = 32
    learning_rate: float = 1e-3
    patience: int = 3
    hidden_size: int = 256
    seeds: tuple[int, ...] = (0, 1, 2)

    @property
    def seed(self) -> int:
        """The first seed, with which samples and random weights are drawn."""
        return self.seeds[0]

    def probing(self) -> dict[str, Any]:
        """Return the arguments that all their probes have."""
        from embstore.probes import Training

        training = Training(
            epochs=self.epochs, batch_size=self.batch_size, learning_rate=self.learning_rate, patience=self.patience
        )
        own = {"hidden_size": self.hidden_size, "seeds": self.seeds}
        return {**own, "training": training}

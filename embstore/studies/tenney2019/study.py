"""Tenney et al. 2019, end to end: in which layers of a model each task of the NLP pipeline is solved."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from embstore.errors import InvalidValueError
from embstore.studies.steps import Study, Tell

if TYPE_CHECKING:
    import polars as pl


@dataclass(frozen=True)
class Scale:
    """How large the study is.

    `sentences`: of each split of each task at most, drawn by their texts, so that tasks over the same sentences draw
    the same ones; None for all. `seeds`: of the probes' weights. `unit`: rows a subword, as in the paper, or a word.
    `layerwise`: also a probe of each layer by itself. `control`: also the control task of each task. `untrained`: also
    the model with random weights. `resamples`: of sentences, for intervals. `traces`: sentences drawn in
    Figure 3.
    """

    sentences: int | None = None
    seeds: tuple[int, ...] = (0, 1, 2)
    unit: str = "subword"
    epochs: int = 30
    batch_size: int = 32
    learning_rate: float = 1e-3
    patience: int | None = 3
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


def cpu_scale(**changed: Any) -> Scale:
    """The study made small enough for two hours on two cores: fewer sentences, two seeds."""
    return Scale(**{"sentences": 2000, "seeds": (0, 1), "epochs": 15, **changed})


@dataclass(frozen=True)
class Tenney2019:
    """What the study found: `scores` of `model, encoder, task, layer, split, metric, value, ...`, and where it is.

    `encoder`: trained or untrained. `models`: the folders or names by the name they go by.
    """

    folder: Path
    scale: Scale
    models: Mapping[str, str]
    tasks: Sequence[str]
    scores: pl.DataFrame
    seconds: Mapping[str, float] = field(default_factory=dict)
    notes: Sequence[str] = ()
    traces: Sequence[str] = ()

    def summary(self, model: str | None = None, *, encoder: str = "trained") -> pl.DataFrame:
        """Means over the seeds for one model, the first by default."""
        from embstore.probes import summary

        chosen = next(iter(self.models)) if model is None else model
        held = self.scores.filter((self.scores["model"] == chosen) & (self.scores["encoder"] == encoder))
        return summary(held.drop("model", "encoder"))


def tenney2019(
    data: str | Path,
    *,
    models: Mapping[str, str | Path],
    out: str | Path,
    tasks: Sequence[str] | None = None,
    scale: Scale | None = None,
    device: str = "auto",
    tell: Tell = lambda text: None,
) -> Tenney2019:
    """Carry the study out and leave its tables, figures and report in `out`; the same call goes on where one ended.

    `data`: a folder of tasks, each a folder with train.jsonl, dev.jsonl and test.jsonl (see `EdgeProbe.fit`); `tasks`:
    some of them. `models`: folders or hub names by the name that they shall go by; the figures of the appendix set
    several side by side. `scale`: how large; all sentences and three seeds if not given.

    Raises EmbstoreError, in one line, for all that cannot be used.
    """
    from embstore.studies.tenney2019 import probing
    from embstore.studies.tenney2019.report import write_report
    from embstore.studies.tenney2019.traces import traced

    if not models:
        raise InvalidValueError("there is no model: name one or more")
    found = probing.find_tasks(Path(data), tasks)
    probing.require_models({name: str(model) for name, model in models.items()})
    setting = probing.Setting(
        study=Study(Path(out), tell),
        models={name: str(model) for name, model in models.items()},
        tasks=found,
        scale=scale or Scale(),
        device=device,
    )
    stores = {name: probing.extracted(setting, name) for name in setting.models}
    probed = probing.probed(setting, stores)
    first = next(iter(setting.models))
    traces = traced(
        setting, stores[first]["trained"], {task: probed[first, "trained", task].probes for task in setting.tasks}
    )
    result = Tenney2019(
        folder=setting.study.folder,
        scale=setting.scale,
        models=setting.models,
        tasks=tuple(found),
        scores=probing.scores(probed),
        seconds=setting.study.seconds,
        notes=tuple(dict.fromkeys(setting.notes)),
        traces=traces,
    )
    write_report(result)
    return result

"""Zhao et al. 2020, end to end: semantic classes by representation, layer and context, before and after fine-tuning."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from embstore.errors import InvalidValueError
from embstore.probes.splits import WordSplit
from embstore.studies.steps import Study, Tell

if TYPE_CHECKING:
    import polars as pl

WINDOWS = (0, 2, 4, 8, 16, 32, None)
TASKS = ("pos", "ner", "classify", "paraphrase")


@dataclass(frozen=True)
class Scale:
    """How large the study is; the defaults are the paper's where it names a figure.

    `max_contexts`: of a word-class pair. `hidden_size`: units of a probe's hidden layer. `epochs`, `batch_size`,
    `learning_rate`, `patience`: of probes. `seeds`: of their weights. `context_windows`: words on each side, None for
    the sentence. `attention_windows`: of POS tagging. `tuning_epochs`: of fine-tuning; `tuning_sentences`: a sample of
    its training data, None for all; `tuning_batch_size`, `tuning_rate`: None for the paper's of each task.
    """

    max_contexts: int = 100
    kind: Literal["linear", "mlp"] = "mlp"
    hidden_size: int = 1024
    epochs: int = 400
    batch_size: int = 256
    learning_rate: float = 1e-3
    patience: int | None = 5
    seeds: tuple[int, ...] = (0,)
    context_windows: tuple[int | None, ...] = WINDOWS
    attention_windows: tuple[int | None, ...] = WINDOWS
    tuning_epochs: int = 5
    tuning_sentences: int | None = None
    tuning_batch_size: int | None = None
    tuning_rate: float | None = None
    similarity_sentences: int = 500
    skipgram_size: int = 300
    skipgram_epochs: int = 5
    seed: int = 0

    def __post_init__(self) -> None:
        if None not in self.context_windows:
            raise InvalidValueError("the context windows lack the whole sentence: add full")
        for name in ("context_windows", "attention_windows"):
            object.__setattr__(self, name, tuple(dict.fromkeys(getattr(self, name))))


def cpu_scale(**changed: Any) -> Scale:
    """The study made small enough for an hour on two cores: fewer contexts, narrower probes, shorter fine-tuning."""
    small: dict[str, Any] = {
        "max_contexts": 5,
        "hidden_size": 64,
        "epochs": 15,
        "batch_size": 512,  # a step passes over all weights: of 256 that takes as long as the products
        "learning_rate": 2e-3,
        "patience": 2,
        "context_windows": (0, 2, 4, 8, 16, None),
        "attention_windows": (0, 2, 8, None),
        "tuning_epochs": 1,
        "tuning_sentences": 3000,
        "tuning_batch_size": 16,
        "tuning_rate": 2e-4,
        "similarity_sentences": 200,
        "skipgram_epochs": 20,
    }
    return Scale(**{**small, **changed})


@dataclass(frozen=True)
class Zhao2020:
    """The tables of the study; each has its own columns, and a figure beside it in `folder`."""

    folder: Path
    scale: Scale
    model: str
    num_hidden_layers: int
    counts: pl.DataFrame
    types: pl.DataFrame
    contexts: pl.DataFrame
    windows: pl.DataFrame
    finetuned: pl.DataFrame | None = None
    pos_windows: pl.DataFrame | None = None
    tuning: pl.DataFrame | None = None
    attention: pl.DataFrame | None = None
    seconds: Mapping[str, float] = field(default_factory=dict)
    notes: Sequence[str] = ()


def zhao2020(
    corpus: str | Path,
    *,
    model: str | Path,
    out: str | Path,
    train: str | Path | None = None,
    test: str | Path | None = None,
    vectors: Mapping[str, str | Path] | None = None,
    tuning: Mapping[str, str | Path] | None = None,
    scale: Scale | None = None,
    device: str = "auto",
    tell: Tell = lambda text: None,
) -> Zhao2020:
    """Carry the study out and leave its tables, figures and report in `out`; the same call goes on where one ended.

    `corpus`: Wiki-PSE markup. `train`, `test`: its lists of words (those beside the corpus if not given). `vectors`:
    files of word vectors by the name they go by, probed on the words that they have. `tuning`: data for fine-tuning by
    task (pos, ner, classify, paraphrase), as `finetune` takes it. `scale`: how large; the paper's if not given.

    Raises EmbstoreError, in one line, for all that cannot be used.
    """
    from embstore.studies.zhao2020 import probing
    from embstore.studies.zhao2020 import tuning as fine
    from embstore.studies.zhao2020.report import write_report

    scale = scale or Scale()
    given = {"vectors": dict(vectors or {}), "tuning": dict(tuning or {})}
    for task in given["tuning"]:
        if task not in TASKS:
            raise InvalidValueError(f"task {task!r} is not known: choose among {', '.join(TASKS)}")
    split = _split(Path(corpus), train, test, seed=scale.seed)
    study = Study(Path(out), tell)
    setting = probing.Setting(
        study=study,
        corpus=Path(corpus),
        model=str(model),
        split=split,
        scale=scale,
        device=device,
    )
    stores = probing.extracted(setting, given["vectors"])
    tables: dict[str, Any] = {
        "counts": probing.counts(setting, stores),
        "types": probing.types(setting, stores),
        "contexts": probing.contexts(setting, stores),
        "windows": probing.windows(setting, stores),
    }
    if given["tuning"]:
        tuned = fine.tuned_models(setting, given["tuning"])
        tables["tuning"] = fine.scores(setting, tuned)
        tables["finetuned"] = fine.probed(setting, tuned, stores)
        tables["attention"] = fine.attention(setting, tuned, given["tuning"])
        if "pos" in given["tuning"]:
            tables["pos_windows"] = fine.pos_by_window(setting, given["tuning"]["pos"])
    result = Zhao2020(
        folder=study.folder,
        scale=scale,
        model=str(model),
        num_hidden_layers=stores.full.layers[-1],
        seconds=study.seconds,
        notes=tuple(setting.notes),
        **tables,
    )
    write_report(result)
    return result


def _split(corpus: Path, train: str | Path | None, test: str | Path | None, *, seed: int) -> WordSplit:
    from embstore.corpus import read_word_classes
    from embstore.probes.splits import split_words

    lists = []
    for name, path in (("train", train), ("test", test)):
        beside = corpus.parent / f"{name}.tsv"
        if path is None and not beside.is_file():
            raise InvalidValueError(f"there is no list of {name} words beside {corpus}: name one with --{name}")
        lists.append(read_word_classes(beside if path is None else path))
    return split_words(*lists, seed=seed)

"""Semantic-class probing (Zhao et al. 2020): how well a word's classes can be read from its vectors, by layer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray

from embstore.analysis.scan import selected
from embstore.devices import choose_device
from embstore.errors import InvalidValueError
from embstore.probes.classes.bank import Output, ProbeBank, Shape
from embstore.probes.classes.files import SavedBank
from embstore.probes.classes.tasks import Part, Source
from embstore.probes.control import CONTROL, ControlTask
from embstore.probes.result import SCHEMA, Asked
from embstore.probes.result import ProbeResult as ProbeResult
from embstore.probes.scores import Decisions, decided, scored
from embstore.probes.splits import PARTS, Words, WordSplit, split_words
from embstore.probes.training import Training, train_bank
from embstore.store import Selection, Store
from embstore.store.storage.location import ObjectPath, place_of

Stores = Store | Selection | Sequence[Store | Selection] | Mapping[str, Store | Selection]


@dataclass(frozen=True)
class _Asking:
    """How examples are chosen: everything that decides them but the store and the words."""

    label: str
    level: str
    max_contexts: int | None
    seed: int


@dataclass(frozen=True)
class _Settings:
    """How the probes of every store are trained and scored."""

    asking: _Asking
    training: Training
    kind: str
    hidden_size: int
    seeds: tuple[int, ...]
    balance: bool
    control: bool
    classes: tuple[str, ...] | None
    splits: tuple[str, ...]
    device: torch.device
    memory: int | None


@dataclass
class _Found:
    """What a run has come to."""

    rows: list[dict[str, Any]] = field(default_factory=list)
    banks: dict[str, SavedBank] = field(default_factory=dict)
    asked: dict[tuple[str, str], Asked] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def result(self) -> ProbeResult:
        return ProbeResult(pl.DataFrame(self.rows, schema=SCHEMA), self.banks, self.asked, tuple(self.notes))


def probe_classes(
    stores: Stores,
    *,
    train: Words | None = None,
    test: Words | None = None,
    dev: Words | None = None,
    split: WordSplit | None = None,
    dev_share: float = 0.2,
    label: str = "class",
    level: str = "context",
    classes: Sequence[str] | None = None,
    kind: str = "linear",
    hidden_size: int = 1024,
    layers: int | Sequence[int] | None = None,
    seeds: Sequence[int] = (0,),
    data_seed: int = 0,
    epochs: int = 50,
    batch_size: int = 256,
    learning_rate: float = 1e-3,
    patience: int | None = 3,
    balance: bool = False,
    max_contexts: int | None = 100,
    control: bool = False,
    splits: Sequence[str] = ("dev", "test"),
    device: str = "auto",
    memory: int | None = None,
    progress: Callable[[int, int], object] | None = None,
) -> ProbeResult:
    """Train a binary probe for each class, layer and seed of each store, and score them on words never seen.

    `train`, `test`: words with their classes, as `read_word_classes` reads Wiki-PSE's lists (no classes: those of the
    store); `dev_share` of the train words, drawn with `data_seed`, are kept to stop by, or those of `dev`; or all as
    a `split`. `level`: `context`, where each labelled occurrence is an example of its own class, at most
    `max_contexts` of a word-class pair; or `type`, where the mean of a word's occurrences is an example of all its
    classes (AVG-BERT-l; for vectors without context, the vector itself).

    `kind`: `linear`, or `mlp` with one hidden layer of `hidden_size` rectified units. `seeds`: of initial weights.
    `data_seed`: of dev words, contexts, control classes and the order of examples. `patience`: epochs without a
    better loss on dev after which a probe stops (None: all epochs). `balance`: positive examples weigh as much as
    negative ones. `control`: also the control task of Hewitt & Liang 2019, in the same bank. `memory`: bytes of the
    probes trained at a time (4 GiB). `progress`: is told how many examples are done, of how many at most.

    Metrics: `f1`, `precision`, `recall` (micro, over word-class decisions by the rule of half), `contexts_f1`,
    `class_f1` by class and `frequency_f1` by how often a word occurs (`item`), and `selectivity`, f1 less that of the
    control task. `task` is the label column or control. Classes of fewer than two train words are left out and noted.

    Raises InvalidValueError, in one line, for words in two lists, a class, layer or column that is not there, and
    splits that are empty; MissingRowsError, NonFiniteError.
    """
    training = Training(epochs, batch_size, learning_rate, patience, data_seed)
    if data_seed < 0:
        raise InvalidValueError(f"data_seed {data_seed} is not allowed: give 0 or more")
    words = _split(split, train, test, dev, dev_share, data_seed)
    _check_splits(splits)
    if patience is not None and not words.dev:
        raise InvalidValueError(
            f"patience {patience} needs dev words to stop by: give some, or a dev_share, or no patience"
        )
    settings = _Settings(
        asking=_Asking(label, level, max_contexts, data_seed),
        training=training,
        kind=kind,
        hidden_size=hidden_size if kind == "mlp" else 0,
        seeds=tuple(seeds),
        balance=balance,
        control=control,
        classes=None if classes is None else tuple(classes),
        splits=tuple(splits),
        device=choose_device(device),
        memory=memory,
    )
    named = _named(stores)
    found = _Found()
    for number, (name, given) in enumerate(named.items()):
        told = _share(progress, number, len(named))
        _probe_store(name, selected(given, layers), words, settings, found, told)
    return found.result()


def _probe_store(
    name: str,
    selection: Selection,
    words: WordSplit,
    settings: _Settings,
    found: _Found,
    progress: Callable[[int, int], object] | None,
) -> None:
    """Train and score the probes of one store."""
    source = Source(selection, words, **asdict(settings.asking))
    names = _classes(source, settings.classes, name, found)
    wanted = {"train", *settings.splits, *(["dev"] if settings.training.patience is not None else [])}
    parts = {part: source.part(part, names) for part in PARTS if part in wanted}
    control = ControlTask.of(parts["train"], settings.asking.seed) if settings.control else None
    controls = _controls(parts, control)
    tasks = (settings.asking.label, CONTROL) if settings.control else (settings.asking.label,)
    outputs = tuple(Output(task, each) for task in tasks for each in names)
    width = selection.store.hidden_size
    shape = Shape(settings.kind, selection.layers, settings.seeds, outputs, width, settings.hidden_size)
    examples = {part: held.with_control(controls.get(part)) for part, held in parts.items()}
    train = examples["train"]
    trained = train_bank(
        shape,
        train,
        examples["dev"] if settings.training.patience is not None else None,
        training=settings.training,
        positive_weight=_balance(train.kind, train.targets) if settings.balance else None,
        device=settings.device,
        memory=settings.memory,
        progress=progress,
    )
    found.banks[name] = SavedBank.of(
        trained,
        store=selection.store,
        split=words,
        training={**asdict(settings.training), "balance": settings.balance},
        asking=asdict(settings.asking),
        control=control,
    )
    _score(found, name, trained.bank, parts, controls, settings.splits, settings.asking.label, settings.device)


def apply_probes(
    bank: SavedBank | str | Path,
    stores: Stores,
    *,
    test: Words | None = None,
    splits: Sequence[str] = ("test",),
    layers: int | Sequence[int] | None = None,
    label: str | None = None,
    max_contexts: int | str | None = "as trained",
    device: str = "auto",
) -> ProbeResult:
    """Score trained probes on other stores of the same width, layer by layer (the paper's setup (a)).

    `bank`: as `probe_classes` gives it, or the folder it was saved in. Words are those it was made with; `test`:
    others, none of which it has learnt from. The label column, the level and the contexts a pair are those of the
    training unless given. Raises InvalidValueError where width or layers do not fit, or words were learnt from.
    """
    saved = bank if isinstance(bank, SavedBank) else SavedBank.load(bank)
    words = saved.split
    _check_splits(splits)
    if test is not None:
        words = split_words(words.train, test, dev={w: c for w, c in words.dev.items() if w not in test})
    asking = dict(saved.asking)
    asking["label"] = label or asking["label"]
    if max_contexts != "as trained":
        asking["max_contexts"] = max_contexts
    chosen_device = choose_device(device)
    wanted = (layers,) if isinstance(layers, int) else saved.bank.shape.layers if layers is None else tuple(layers)
    fitting = saved.at_layers(wanted)
    found = _Found()
    for name, given in _named(stores).items():
        store = given if isinstance(given, Store) else given.store
        if store.hidden_size != saved.bank.shape.width:
            raise InvalidValueError(
                f"{store.path} has vectors of {store.hidden_size} numbers, the probes were trained on "
                f"{saved.bank.shape.width}: probes fit only stores of their own width"
            )
        lacking = [layer for layer in wanted if layer not in store.layers]
        if lacking:
            raise InvalidValueError(
                f"{store.path} has no layer {', '.join(map(str, lacking))}, which there are probes of: choose layers "
                f"among {', '.join(map(str, store.layers))}"
            )
        source = Source(selected(given, wanted), words, **asking)
        parts = {part: source.part(part, saved.classes) for part in splits}
        found.banks[name] = fitting
        _score(found, name, fitting.bank, parts, _controls(parts, saved.control), splits, saved.task, chosen_device)
    return found.result()


def _check_splits(splits: Sequence[str]) -> None:
    for name in splits:
        if name not in PARTS:
            raise InvalidValueError(f"unknown split {name!r}; allowed are {', '.join(PARTS)}")
    if not splits:
        raise InvalidValueError(f"no split is to be scored: give some of {', '.join(PARTS)}")


def _split(
    split: WordSplit | None,
    train: Words | None,
    test: Words | None,
    dev: Words | None,
    dev_share: float,
    seed: int,
) -> WordSplit:
    if split is not None:
        if train is not None or test is not None or dev is not None:
            raise InvalidValueError("a split has its words already: give either split, or train and test")
        return split
    if train is None or test is None:
        raise InvalidValueError("probes need words to learn from and to be asked: give train and test, or a split")
    return split_words(train, test, dev=dev, dev_share=dev_share, seed=seed)


def named_stores(paths: Iterable[str | Path | ObjectPath]) -> dict[str, Path | ObjectPath]:
    """Stores by the name of their file, with a number where two are called the same."""
    named: dict[str, Path | ObjectPath] = {}
    for path in map(place_of, paths):
        name, number = path.stem, 2
        while name in named:
            name, number = f"{path.stem}-{number}", number + 1
        named[name] = path
    return named


def _named(stores: Stores) -> dict[str, Store | Selection]:
    if isinstance(stores, Mapping):
        named = dict(stores)
    else:
        listed = [stores] if isinstance(stores, Store | Selection) else list(stores)
        paths = [each.path if isinstance(each, Store) else each.store.path for each in listed]
        named = dict(zip(named_stores(paths), listed, strict=True))
    if not named:
        raise InvalidValueError("no store is given to probe: give one or more")
    return named


def _classes(source: Source, asked: Sequence[str] | None, name: str, found: _Found) -> tuple[str, ...]:
    fit, unfit = source.classes()
    if asked is not None:
        for each in asked:
            if each not in fit:
                why = "fewer than two train words" if each in unfit else "no train word"
                raise InvalidValueError(f"class {each!r} has {why} in {source.selection.store.path}: leave it out")
        return tuple(asked)
    if not fit:
        raise InvalidValueError(
            f"no class has two train words in {source.selection.store.path}: give other words or another label column"
        )
    if unfit:
        some = ", ".join(unfit[:5]) + (", ..." if len(unfit) > 5 else "")
        found.notes.append(f"{name}: classes of fewer than two train words have no probe ({len(unfit):,}): {some}")
    return tuple(fit)


def _controls(parts: Mapping[str, Part], control: ControlTask | None) -> dict[str, NDArray[np.bool_]]:
    return {} if control is None else {name: control.gold(part.words) for name, part in parts.items()}


def _balance(kind: NDArray[np.int64], targets: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Negative over positive examples of each output."""
    counts = np.bincount(kind, minlength=len(targets))
    positive = counts @ targets.astype(np.float64)
    return np.asarray((counts.sum() - positive) / np.maximum(positive, 1))


def _share(
    progress: Callable[[int, int], object] | None, number: int, count: int
) -> Callable[[int, int], object] | None:
    if progress is None:
        return None
    return lambda done, total: progress(number * total + done, count * total)


def _score(
    found: _Found,
    name: str,
    bank: ProbeBank,
    parts: Mapping[str, Part],
    controls: Mapping[str, NDArray[np.bool_]],
    splits: Sequence[str],
    task: str,
    device: torch.device,
) -> None:
    placed = bank.to(device)
    classes = tuple(dict.fromkeys(output.name for output in bank.shape.outputs))
    for split in splits:
        part = parts[split]
        both = Decisions(decided(placed, part), part.contexts, part.gold, part.word)
        own = both.of_classes(slice(0, len(classes)))
        found.asked[name, split] = Asked(own, part.words, part.frequency)
        tasks = {task: own}
        if split in controls:
            tasks[CONTROL] = both.of_classes(slice(len(classes), None)).by_word(controls[split])
        for row in _rows(tasks, bank.shape, part, classes):
            found.rows.append({"store": name, "split": split, **row})
        for reason, count in part.left_out.items():
            if count:
                found.notes.append(f"{name}: {split}: {count:,} {reason}")


def _rows(
    tasks: Mapping[str, Decisions], shape: Shape, part: Part, classes: tuple[str, ...]
) -> Iterator[dict[str, Any]]:
    for place, layer in enumerate(shape.layers):
        for at, seed in enumerate(shape.seeds):
            told: dict[str, Any] = {"layer": layer, "seed": seed}
            micro: list[float | None] = []
            counts = []
            for task, decisions in tasks.items():
                for metric, item, value, count in scored(decisions, place, at, part.frequency, classes):
                    yield {**told, "task": task, "metric": metric, "item": item, "value": value, "count": count}
                    if metric == "f1":
                        micro.append(value)
                        counts.append(count)
            if len(micro) == 2:
                difference = None if None in micro else (micro[0] or 0.0) - (micro[1] or 0.0)
                first = next(iter(tasks))
                yield {
                    **told,
                    "task": first,
                    "metric": "selectivity",
                    "item": "",
                    "value": difference,
                    "count": counts[0],
                }

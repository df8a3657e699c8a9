"""Class probes (Zhao et al. 2020): how well the semantic classes of words can be read from their vectors, by layer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, ClassVar, Literal

import numpy as np
import polars as pl
import torch

from embstore.analysis.scan import selected
from embstore.arguments import Positive, checked
from embstore.errors import InvalidValueError
from embstore.probes.base import Fitted, Probe, fitting_store, layers_of, made_by, require_distinct, store_of
from embstore.probes.classes.bank import Kind, Output, ProbeBank, Shape
from embstore.probes.classes.examples import ClassExamples
from embstore.probes.classes.scores import Decisions, decide, scored, verdicts
from embstore.probes.classes.training import train_bank
from embstore.probes.control import CONTROL, ControlTask
from embstore.probes.result import ProbeResult, Row
from embstore.probes.splits import SPLITS, Words, WordSplit, some, split_words
from embstore.probes.training import Schedule, Trained
from embstore.store import Selection, Store
from embstore.store.layout import Layers, one_layer, resolve_layers


@dataclass(frozen=True, eq=False, kw_only=True)
class FittedBank(Fitted):
    """Probes of a `shape`, and the control task that some of them were trained on, if any."""

    shape: Shape
    control: ControlTask | None

    @property
    def bank(self) -> ProbeBank:
        """The probes as one model."""
        sizes = len(self.shape.layers), self.shape.n_probes
        return ProbeBank(self.shape, {name: t.view(*sizes, *t.shape[1:]) for name, t in self.trained.weights.items()})

    @property
    def classes(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(output.name for output in self.shape.outputs))

    def read(self, data: Store | Selection | None, layers: Layers) -> Selection:
        """Return what is read of data, by default those of `fit`, at some layers; raises InvalidValueError."""
        data, chosen = self.data if data is None else data, resolve_layers(layers, self.shape.layers)
        store = fitting_store(data, chosen, self.shape.width)
        return selected(store if data is None else data, chosen)

    def training_rows(self, layers: Sequence[int]) -> Iterator[Row]:
        """Yield what the frame says of how the probes of some layers were trained."""
        numbers = np.arange(len(self.trained.epochs)).reshape(self.shape.sizes)
        tasks = dict.fromkeys(output.task for output in self.shape.outputs)
        for layer, (place, seed) in product(layers, enumerate(self.shape.seeds)):
            own = numbers[self.shape.layers.index(layer), place].reshape(len(tasks), -1)
            for task, outputs in zip(tasks, own, strict=True):
                yield from ({"layer": layer, "seed": seed, "task": task, **row} for row in self.trained.rows(outputs))

    def saved(self) -> dict[str, Any]:
        """Return what was learned besides the weights, as JSON values."""
        control = None if self.control is None else self.control.as_json()
        shape = {"layers": list(self.shape.layers), "width": self.shape.width}
        return {**shape, "classes": list(self.classes), "control": control}

    @staticmethod
    def restored(learned: Mapping[str, Any], tensors: Mapping[str, torch.Tensor], shape: Shape) -> dict[str, Any]:
        """Return the fields of this class that `saved` and the tensors of `trained` describe."""
        control = learned["control"]
        control = None if control is None else ControlTask.from_json(control, len(learned["classes"]))
        trained = Trained.of(tensors, shape.sizes, shape.tensor_shapes())
        return {"trained": trained, "shape": shape, "control": control}


@dataclass(frozen=True, eq=False, kw_only=True)
class FittedClasses(FittedBank):
    """What class probes have learned, and the `words` they know."""

    words: WordSplit


@checked
@dataclass(kw_only=True, eq=False)
class ClassProbe(Probe[FittedClasses]):
    """Binary probes that read the classes of words from their vectors, one for each class, layer and seed.

    All probes are trained together as one model, and scored on words that they have not seen::

        lists = (es.corpus.read_word_classes(f"{split}.tsv") for split in ("train", "test"))
        probe = es.ClassProbe(layers=[0, -1], training=es.probes.Training(epochs=3))
        result = probe.fit(store, es.probes.split_words(*lists)).score()

    Parameters
    ----------
    layers : layers
        Those that get probes; all by default.
    seeds : int or sequence of int
        Of the initial weights and the order of the examples; all else that is random is drawn with the first.
    training : Training
        By default 150 epochs of 100 steps, batches of 256 examples, a learning rate of 3e-3 and patience 10.
    label : str
        The label column with the classes.
    level : str
        "context", where each labelled occurrence is an example of its own class; or "type", where the mean of a word's
        occurrences is one example of all its classes (AVG-BERT-l).
    kind : str
        "linear", or "mlp" with one hidden layer of rectified units.
    hidden_size : int
        Units of the hidden layer of an mlp.
    classes : sequence of str
        Those that get probes; all with two train words by default.
    max_contexts : int
        Occurrences of a word-class pair at most, drawn with the first seed; None for all.
    control : bool
        Also train the control task of Hewitt & Liang 2019, in the same model.
    """

    name: ClassVar[str] = "class"
    defaults: ClassVar[Schedule] = Schedule(150, 256, 3e-3, patience=10, min_steps=100, max_steps=100)
    dev_data: ClassVar[str] = "words"
    label: str = "class"
    level: Literal["context", "type"] = "context"
    kind: Kind = "linear"
    hidden_size: Positive = 1024
    classes: Sequence[str] | None = None
    max_contexts: Positive | None = 100
    control: bool = False

    def _examples(self, data: Selection, words: WordSplit) -> ClassExamples:
        options: dict[str, Any] = {"level": self.level, "max_contexts": self.max_contexts, "seed": self._seeds[0]}
        return ClassExamples(data, words, self.label, **options)

    @checked
    def fit(self, data: Store | Selection, words: WordSplit) -> ClassProbe:
        """Train a probe for each class, layer and seed on the train words, stopping on the dev words; returns itself.

        Parameters
        ----------
        data : Store or Selection
            The labelled occurrences.
        words : WordSplit
            The words of each split; see `split_words`.

        Raises
        ------
        InvalidValueError
            For a layer, label column or class that does not exist, a split without labelled occurrences, early stopping
            without dev words.
        """
        schedule = self._schedule(has_dev=bool(words.dev))
        source = self._examples(selected(data, layers_of(data, self.layers)), words)
        classes, notes = self._chosen_classes(source)
        parts = {split: source.of(split, classes) for split in (SPLITS[:2] if schedule.patience else SPLITS[:1])}
        train, control = parts["train"], None
        if self.control:
            control = ControlTask.of(train.gold, self._seeds[0], counts=train.contexts)
        examples = {name: part.labelled(control) for name, part in parts.items()}
        unseen = [] if "dev" not in parts else np.array(classes, object)[~parts["dev"].gold.any(0)].tolist()
        if unseen:
            what = f"{store_of(data).path.stem}: classes without a dev word, whose probes keep the weights of the first"
            notes = (*notes, f"{what} epoch ({len(unseen):,}): {some(unseen)}")
        shape = self._shape(source.selection.layers, classes, store_of(data).hidden_size)
        trained = train_bank(shape, examples["train"], examples.get("dev"), schedule=schedule)
        self.fitted_ = FittedClasses(
            trained=trained,
            shape=shape,
            words=words,
            control=control,
            store=made_by(store_of(data)),
            data=data,
            notes=(*notes, *self._capped_notes(store_of(data).path.stem, trained.capped)),
        )
        return self

    def _shape(self, layers: Sequence[int], classes: Sequence[str], width: int) -> Shape:
        tasks = (self.label, CONTROL) if self.control else (self.label,)
        outputs = tuple(Output(task, name) for task in tasks for name in classes)
        hidden_size = self.hidden_size if self.kind == "mlp" else 0
        return Shape(self.kind, tuple(layers), self._seeds, outputs, width, hidden_size)

    @checked
    def score(
        self,
        words: Words | None = None,
        *,
        data: Store | Selection | None = None,
        splits: Sequence[str] = ("dev", "test"),
        layers: Layers = None,
        name: str | None = None,
    ) -> ProbeResult:
        """Score the probes on the words of some splits, layer by layer.

        Parameters
        ----------
        words : mapping
            Other test words than those of `fit`; they must not be train words.
        data : Store or Selection
            Another store of the same width, such as that of a fine-tuned model; that of `fit` by default.
        splits : sequence of str
            Some of train, dev and test.
        layers : layers
            Some of those that have probes.
        name : str
            The store in the frame; the file's name by default.

        Notes
        -----
        Metrics: `f1`, `precision` and `recall` (micro, over word-class decisions, each right if at least half of its
        contexts are), `contexts_f1`, `class_f1` by class (`item`), and `selectivity`, f1 less that of the control task
        over the same word-class pairs. Of split train: `best_epoch`, the mean over the probes of a layer and seed, and
        `converged`, the share of them that early stopping ended before the last epoch did (null without early
        stopping). `task` is the label column or "control".

        Raises
        ------
        InvalidValueError
            For a store of another width or without a layer of the probes, an unknown split, a split without labelled
            occurrences, or train words among `words`.
        """
        fitted = self.fitted_
        source, bank = self._source(words, data, layers, splits)
        if name is None:
            name = source.selection.store.path.stem
        notes = list(fitted.notes if data is None else self._changed_notes(name, data))
        n_classes, rows = len(fitted.classes), list(fitted.training_rows(bank.shape.layers))
        for split in splits:
            part = source.of(split, fitted.classes)
            both = decide(bank, part)
            tasks = {self.label: both.of_classes(slice(0, n_classes))}
            if fitted.control is not None:
                tasks[CONTROL] = both.of_classes(slice(n_classes, None), fitted.control.gold(part.words))
            rows += [{"split": split, **row} for row in _rows(tasks, bank.shape, fitted.classes)]
            notes += [f"{name}: {split}: {count:,} {reason}" for reason, count in part.left_out.items() if count]
        return ProbeResult.of(rows, notes, store=name)

    @checked
    def predict(
        self, *, layers: Layers = -1, split: str = "test", data: Store | Selection | None = None
    ) -> pl.DataFrame:
        """Return the classes that the probes of one layer and the first seed find for each word-class pair.

        Columns: `word`, its own `classes`, `contexts`, `right` (contexts that the probes of its own classes say yes to,
        the least of them at level type) and `found`, the classes whose probes say yes by the rule of half.

        Parameters
        ----------
        layers : layer
            The layer, the last by default.
        split : str
            One of train, dev and test.
        data : Store or Selection
            As of `score`.
        """
        fitted = self.fitted_
        layer = one_layer(layers, fitted.shape.layers, absent="has no probe")
        source, bank = self._source(None, data, layer, [split])
        part = source.of(split, fitted.classes)
        made = decide(bank, part).of_classes(slice(0, len(fitted.classes)))
        positives = made.positives[:, 0, 0]
        right, wrong, _ = verdicts(positives, made.contexts, made.gold)
        least = np.where(made.gold, positives, np.iinfo(np.int32).max).min(1)
        names = np.array(fitted.classes, object)
        return pl.DataFrame(
            {
                "word": [part.words[number] for number in made.word.tolist()],
                "classes": [names[row].tolist() for row in made.gold],
                "contexts": made.contexts,
                "right": np.where(made.gold.any(1), least, 0),
                "found": [names[row].tolist() for row in right | wrong],
            },
            schema_overrides={"classes": pl.List(pl.String), "found": pl.List(pl.String)},
        )

    def _chosen_classes(self, source: ClassExamples) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return the classes that get probes, and a note of those that are left out."""
        fit, unfit = source.classes()
        path = source.selection.store.path
        if self.classes is None:
            if not fit:
                advice = "give other words or another label column"
                raise InvalidValueError(f"no class has two train words in {path}: {advice}")
            note = f"{path.stem}: classes of fewer than two train words have no probe ({len(unfit):,}): {some(unfit)}"
            return tuple(fit), (note,) if unfit else ()
        require_distinct("classes", self.classes)
        for each in self.classes:
            if each not in fit:
                why = "fewer than two train words" if each in unfit else "no train word"
                raise InvalidValueError(f"class {each!r} has {why} in {path}: leave it out")
        return tuple(self.classes), ()

    def _source(
        self, words: Words | None, data: Store | Selection | None, layers: Layers, splits: Sequence[str]
    ) -> tuple[ClassExamples, ProbeBank]:
        """Check what is to be scored, and return its examples and the probes on their device."""
        fitted = self.fitted_
        for split in splits:
            fitted.words.of(split)
        if not splits:
            raise InvalidValueError(f"no split is given to score: give some of {', '.join(SPLITS)}")
        selection, known = fitted.read(data, layers), fitted.words
        if words is not None:
            dev = {word: classes for word, classes in known.dev.items() if word not in words}
            known = split_words(known.train, words, dev=dev)
        return self._examples(selection, known), fitted.bank.at_layers(selection.layers, self._schedule().device)

    def _saved(self) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
        fitted = self.fitted_
        return {**fitted.saved(), "words": fitted.words.as_json()}, fitted.trained.tensors(fitted.shape.sizes)

    def _restored(
        self, learned: Mapping[str, Any], tensors: Mapping[str, torch.Tensor], store: Mapping[str, Any]
    ) -> FittedClasses:
        shape = self._shape(learned["layers"], learned["classes"], learned["width"])
        words = WordSplit.from_json(learned["words"])
        return FittedClasses(**FittedBank.restored(learned, tensors, shape), words=words, store=store)


def _rows(tasks: Mapping[str, Decisions], shape: Shape, classes: tuple[str, ...]) -> Iterator[Row]:
    for (place, layer), (number, seed) in product(enumerate(shape.layers), enumerate(shape.seeds)):
        rows: list[Row] = [
            {"layer": layer, "seed": seed, "task": task, **scores}
            for task, decisions in tasks.items()
            for scores in scored(decisions, place, number, classes)
        ]
        yield from rows
        own, *control = [row for row in rows if row["metric"] == "f1"]
        for other in control:
            defined = own["value"] is not None and other["value"] is not None
            yield {**own, "metric": "selectivity", "value": own["value"] - other["value"] if defined else None}

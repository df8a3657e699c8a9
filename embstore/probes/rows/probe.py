"""Row probes: linear classifiers of any label of rows or documents, and the directions that they find."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray

from embstore.analysis.scan import selected
from embstore.arguments import Share, checked
from embstore.errors import InvalidValueError
from embstore.probes.base import Probe, layers_of, made_by
from embstore.probes.classes.bank import Output, ProbeBank, Shape
from embstore.probes.classes.examples import StoredExamples
from embstore.probes.classes.probe import FittedBank
from embstore.probes.classes.scores import iter_logits
from embstore.probes.classes.training import mean_differences, train_bank
from embstore.probes.control import CONTROL, ControlTask
from embstore.probes.result import ProbeResult, Row
from embstore.probes.rows.examples import LabelledRows, Units
from embstore.probes.rows.scores import Scores
from embstore.probes.splits import SPLITS, place_of, some
from embstore.probes.training import Schedule
from embstore.store import Selection, Store
from embstore.store.layout import Layers, one_layer


@dataclass(frozen=True, eq=False, kw_only=True)
class FittedRows(FittedBank):
    """What row probes have learned, the most frequent train label, and the `units` whose split was drawn.

    `control_unit`: what control labels are drawn by.
    """

    majority: str
    control_unit: str
    units: Units

    @property
    def directions(self) -> ProbeBank:
        """The probes of the first seed alone; of two labels one probe, half of the difference of theirs."""
        n = len(self.classes)
        own = self.trained.weights["weight"].view(*self.shape.sizes, -1)[:, 0, :n]
        own = (own[:, 1:] - own[:, :1]) / 2 if n == 2 else own
        shape = replace(self.shape, seeds=self.shape.seeds[:1], outputs=self.shape.outputs[n - own.shape[1] : n])
        return ProbeBank(shape, {"weight": own})


@checked
@dataclass(kw_only=True, eq=False)
class RowProbe(Probe[FittedRows]):
    """Linear probes of any label of rows or of their documents, one for each layer and seed, trained together.

    A row with the stored vector x has the label l of the highest w_l x + b_l::

        probe = es.probes.RowProbe(label="class", split="word").fit(store)
        probe.score().frame
        es.neighbors(store, probe.direction(6, label="animal"), metric="ip", layers=6)
        probe.save("probe.safetensors")

    The file has the plain tensors `directions`, `intercepts` and `layers`, as `safetensors.torch.load_file` reads them.
    A forward pre-hook of block l that adds a direction of layer l to what the block is given steers the model by it.

    Parameters
    ----------
    layers : layers
        Those that get probes; all by default.
    seeds : int or sequence of int
        Of the initial weights and the order of the examples; all else that is random is drawn with the first.
    training : Training
        Of "linear", as of class probes: by default 150 epochs of 100 steps and patience 10.
    label : str
        The label column, or field of documents; rows without a value are left out.
    split : str or mapping
        "document" or "word": these are divided at random, equal texts together. Or the name of a column whose values
        are train, dev and test; or conditions, such as ``{"train": "fold < 4", "test": "fold = 4"}``.
    kind : str
        "linear": logistic regression of each label against the rest, trained as class probes are. "difference": w_l is
        the mean of the train rows of l less that of the others, and w_l x + b_l is 0 halfway between both.
    control : str
        The task of Hewitt & Liang 2019: each "document" or "word" has a random label. "auto": the document for fields,
        and where all rows of a document have one label. "none" leaves it out.
    test_share, dev_share : float
        Of the documents or words that are divided; and of those of train that become dev, if "linear" has no dev rows.
    """

    name: ClassVar[str] = "row"
    defaults: ClassVar[Schedule] = Schedule(150, 256, 3e-3, patience=10, min_steps=100, max_steps=100)
    dev_data: ClassVar[str] = "rows"
    label: str
    split: str | Mapping[str, str] = "document"
    kind: Literal["linear", "difference"] = "linear"
    control: Literal["auto", "document", "word", "none"] = "auto"
    test_share: Share = 0.2
    dev_share: Share = 0.2

    @property
    def classes_(self) -> tuple[str, ...]:
        """The labels, in the order of the directions."""
        return self.fitted_.classes

    @property
    def directions_(self) -> NDArray[np.float32]:
        """The weights of the first seed, [layer, label, feature]; of two labels one, which points to the second."""
        return np.asarray(self.fitted_.directions.weights["weight"][..., :-1])

    @property
    def intercepts_(self) -> NDArray[np.float32]:
        """What is added to the product of a direction and a vector, [layer, label]."""
        return np.asarray(self.fitted_.directions.weights["weight"][..., -1])

    @checked
    def fit(self, data: Store | Selection) -> RowProbe:
        """Train the probes on the train rows; returns itself.

        Raises
        ------
        InvalidValueError
            For an unknown column, less than two labels, labels that train does not have, a split without rows, and
            documents of one label each that are on both sides.
        """
        schedule, selection = self._schedule(), selected(data, layers_of(data, self.layers))
        rows = LabelledRows(selection, self.label, self.split)
        shares = {"test": self.test_share} if rows.is_drawn else {}
        if self.kind == "linear" and schedule.patience and 1 not in rows.places:
            shares["dev"] = self.dev_share
        units = rows.draw(shares, self._seeds[0])
        classes, notes = rows.checked()
        gold, unit = rows.gold(classes), rows.control_unit if self.control == "auto" else self.control
        counts = np.bincount(gold[rows.places == 0], minlength=len(classes))
        control, labels = None, [gold]
        if unit != "none":
            control = ControlTask.of(np.eye(len(classes), dtype=bool), self._seeds[0], counts=counts)
            labels.append(rows.control(control, unit))
            if len(np.unique(labels[1][rows.places == 0])) < 2:
                control, labels = None, [gold]
                notes.append(f"{rows.store.path.stem}: no control task: train has too few different {unit}s")
        shape = self._shape(selection.layers, classes, rows.store.hidden_size, has_control=control is not None)
        train = rows.examples("train", labels, len(classes))
        if self.kind == "difference":
            trained = mean_differences(shape, train, len(classes))
        else:
            dev = rows.examples("dev", labels, len(classes)) if schedule.patience else None
            trained = train_bank(shape, train, dev, schedule=schedule)
        self.fitted_ = FittedRows(
            trained=trained,
            shape=shape,
            control=control,
            control_unit=unit,
            majority=classes[int(counts.argmax())],
            units=units,
            store=made_by(rows.store),
            data=data,
            notes=(*notes, *self._capped_notes(rows.store.path.stem, trained.capped)),
        )
        return self

    @checked
    def score(
        self,
        data: Store | Selection | None = None,
        *,
        splits: Sequence[str] | None = None,
        layers: Layers = None,
        name: str | None = None,
    ) -> ProbeResult:
        """Score the probes on the rows of some splits, layer by layer; choose a layer by dev, not by test.

        Parameters
        ----------
        data : Store or Selection
            Another store of the same width; that of `fit` by default. Documents and words that were drawn keep their
            split, others are of test.
        splits : sequence of str
            Some of train, dev and test; dev and test by default, where they have rows.
        layers : layers
            Some of those that have probes.
        name : str
            The store in the frame; the file's name by default.

        Notes
        -----
        Metrics: `accuracy`; `macro_f1` over the labels, and `class_f1` of each (`item`); `selectivity`, the accuracy
        less that of the task "control"; `majority_accuracy` of the most frequent train label; of split train
        `best_epoch` and `converged`, as of class probes. Intervals are of the mean over the seeds; documents, or the
        words of a split by word, are what is independent. Of fewer than five there is none.
        """
        fitted = self.fitted_
        selection = fitted.read(data, layers)
        rows, chosen = LabelledRows(selection, self.label, self.split, fitted.units), selection.layers
        name = rows.store.path.stem if name is None else name
        notes = list(fitted.notes if data is None else self._changed_notes(name, data))
        found: list[Row] = [] if self.kind == "difference" else list(fitted.training_rows(chosen))
        n, gold = len(fitted.classes), rows.gold(fitted.classes)
        bank = fitted.bank.at_layers(chosen, self._schedule().device)
        control = None if fitted.control is None else rows.control(fitted.control, fitted.control_unit)
        wanted = [each for each in SPLITS[1:] if place_of(each) in rows.places] if splits is None else splits
        for split in wanted or SPLITS[2:]:
            own = np.flatnonzero(rows.places == place_of(split))
            if not len(own):
                raise InvalidValueError(f"no labelled row of {rows.store.path} is in {split}: give other splits")
            if n_new := int((gold[own] < 0).sum()):
                notes.append(f"{name}: {split}: {n_new:,} rows with labels that train does not have count as wrong")
            said = np.empty((*bank.shape.sizes[:2], bank.shape.sizes[2] // n, len(own)), np.int32)
            for numbers, logits in iter_logits(bank, StoredExamples(rows.store, rows.rows[own])):
                said[..., numbers] = logits.view(*said.shape[:3], n, -1).argmax(3).cpu().numpy()
            scores = Scores(gold[own], rows.keys[own], fitted.classes)
            for row in self._rows(scores, said, gold[own], None if control is None else control[own], chosen):
                found.append({"split": split, "task": self.label, **row})
        return ProbeResult.of(found, notes, store=name)

    def _rows(
        self,
        scores: Scores,
        said: NDArray[np.int32],
        gold: NDArray[np.int64],
        control: NDArray[np.int64] | None,
        layers: Sequence[int],
    ) -> Iterator[Row]:
        """Yield the metrics of a split; `said`: the answers, [layer, seed, task, n]."""
        majority = gold == self.classes_.index(self.fitted_.majority)
        yield from (row | {"seed": None} for row in scores.share(majority[None], "majority_accuracy"))
        for layer, own in zip(layers, said, strict=True):
            right = own[:, 0] == gold
            rows = [*scores.share(right), *scores.f1(own[:, 0])]
            if control is not None:
                others = own[:, 1] == control
                rows += [*scores.selectivity(right, others), *({"task": CONTROL} | row for row in scores.share(others))]
            yield from (row | {"layer": layer, "seed": self.fitted_.shape.seeds[row["seed"]]} for row in rows)

    @checked
    def predict(self, data: Store | Selection | None = None, *, layers: Layers = -1) -> pl.DataFrame:
        """Return the label that the probe of one layer and the first seed finds for each row, labelled or not.

        Columns: `occurrence`, `word`, `predicted`.
        """
        selection, values = self._values(data, one_layer(layers, self.fitted_.shape.layers, absent="has no probe"))
        best = values[0].argmax(0) if len(values[0]) > 1 else (values[0, 0] > 0).astype(np.int64)
        names = pl.Series("predicted", self.classes_, dtype=pl.String).gather(best)
        return selection.table(columns=["occurrence", "word"]).with_columns(names)

    @checked
    def project(
        self, data: Store | Selection | None = None, *, layers: Layers = None, label: str | None = None
    ) -> pl.DataFrame:
        """Return the value w x + b of each row, labelled or not: `occurrence`, and `layer_6` ... for each layer.

        `label`: that of the direction, as of `direction`.
        """
        (place, sign), (selection, values) = self._place(label), self._values(data, layers)
        columns = {f"layer_{layer}": sign * own[place] for layer, own in zip(selection.layers, values, strict=True)}
        return pl.DataFrame({"occurrence": selection.rows, **columns})

    @checked
    def direction(self, layers: Layers = -1, *, label: str | None = None) -> NDArray[np.float32]:
        """Return the weights w of one layer, [feature], a direction in the space of the stored vectors.

        `label`: which it points to; by default the second of two. Raises InvalidValueError.
        """
        (place, sign), known = self._place(label), self.fitted_.shape.layers
        return np.asarray(sign * self.directions_[known.index(one_layer(layers, known, absent="has no probe")), place])

    def _place(self, label: str | None) -> tuple[int, np.float32]:
        """Return the place of the direction of a label, and whether it points there (1) or away from it (-1)."""
        names = self.classes_
        label = names[1] if label is None and len(names) == 2 else label
        if label not in names:
            raise InvalidValueError(f"label {label!r} is not one of the probe: choose {some(names)}")
        place = names.index(label)
        return (place, np.float32(1)) if len(names) > 2 else (0, np.float32(2 * place - 1))

    def _values(self, data: Store | Selection | None, layers: Layers) -> tuple[Selection, NDArray[np.float32]]:
        """Return the rows of data at some layers, and their values [layer, direction, n]."""
        selection = self.fitted_.read(data, layers)
        bank = self.fitted_.directions.at_layers(selection.layers, self._schedule().device)
        values = np.empty((len(selection.layers), bank.shape.n_probes, len(selection)), np.float32)
        for numbers, logits in iter_logits(bank, StoredExamples(selection.store, selection.rows)):
            values[..., numbers] = logits.cpu().numpy()
        return selection, values

    def _shape(self, layers: Sequence[int], classes: Sequence[str], width: int, *, has_control: bool) -> Shape:
        tasks = (self.label, CONTROL) if has_control else (self.label,)
        seeds = self._seeds[:1] if self.kind == "difference" else self._seeds
        outputs = tuple(Output(task, name) for task in tasks for name in classes)
        return Shape("linear", tuple(layers), seeds, outputs, width)

    def _saved(self) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
        fitted = self.fitted_
        plain = {"directions": self.directions_, "intercepts": self.intercepts_, "layers": fitted.shape.layers}
        plain |= {f"units_{name}": keys for name, keys in fitted.units._asdict().items()}
        tensors = {name: torch.from_numpy(np.array(value)) for name, value in plain.items()}
        learned = {**fitted.saved(), "majority": fitted.majority, "control_unit": fitted.control_unit}
        return learned, tensors | fitted.trained.tensors(fitted.shape.sizes)

    def _restored(
        self, learned: Mapping[str, Any], tensors: Mapping[str, torch.Tensor], store: Mapping[str, Any]
    ) -> FittedRows:
        has_control = learned["control"] is not None
        shape = self._shape(learned["layers"], learned["classes"], learned["width"], has_control=has_control)
        named: dict[str, Any] = {name: learned[name] for name in ("majority", "control_unit")}
        named["units"] = Units(*(tensors[f"units_{split}"].numpy() for split in Units._fields))
        return FittedRows(**FittedBank.restored(learned, tensors, shape), **named, store=store)

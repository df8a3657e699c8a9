"""Traces of sentences through the layers (Tenney et al. 2019, 4.1): what P(0) ... P(L) hold of each edge."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray

from embstore.errors import InvalidValueError
from embstore.probes.edges.files import BATCH, EdgeProbes
from embstore.probes.edges.tasks import Edges, JoinedEdges
from embstore.probes.edges.trace_result import LIMIT, Rule, Traces
from embstore.probes.edges.training import iter_logits
from embstore.store import Store


def ambiguous_sentences(
    traces: Traces, *, limit: float = LIMIT, rule: Rule = "right", more_than: int = 1
) -> pl.DataFrame:
    """Sentences with more than one ambiguous edge, those with most first: a frame, a row a sentence.

    An edge is ambiguous where the average over l of P(l)(label) is at most `limit`, of its right label, or with rule
    "highest" (the paper's footnote 6) of whichever label of the target has the highest average. The second leaves out
    edges whose probes are sure of a wrong label throughout; what it finds the first finds too.

    Columns: `sentence`, `ambiguous` edges, of them `turned` (P(0) and P(L) are on different sides of right and best
    wrong label), all `edges`, `tasks` that have ambiguous ones, `text`. Equal numbers: more turned ones first, then as
    the sentences stand.
    """
    if more_than < 0:
        raise InvalidValueError(f"more_than {more_than} is not allowed: give 0 or more")
    doubt = traces.in_doubt(limit, rule)
    ahead = traces.right_probability > np.nan_to_num(traces.wrong_probability)
    turned = doubt & (ahead[:, 0] != ahead[:, -1])
    many = len(traces.sentences)
    edges, ambiguous, changed = (
        np.bincount(traces.sentence[chosen], minlength=many) for chosen in (np.ones(len(traces), bool), doubt, turned)
    )
    chosen = np.flatnonzero(ambiguous > more_than)
    chosen = chosen[np.lexsort((chosen, -changed[chosen], -ambiguous[chosen]))]
    rows = []
    for number in chosen.tolist():
        tasks = np.unique(traces.task[doubt & (traces.sentence == number)]).tolist()
        rows.append(
            {
                "sentence": number,
                "ambiguous": int(ambiguous[number]),
                "turned": int(changed[number]),
                "edges": int(edges[number]),
                "tasks": ", ".join(traces.tasks[task] for task in tasks),
                "text": " ".join(traces.sentences[number]),
            }
        )
    kinds = dict.fromkeys(("sentence", "ambiguous", "turned", "edges"), pl.Int64)
    return pl.DataFrame(rows, schema={**kinds, "tasks": pl.String, "text": pl.String})


def trace_edges(
    store: Store,
    tasks: Sequence[tuple[EdgeProbes, Edges]],
    *,
    split: str = "targets",
    seed: int | None = None,
    sentences: int | None = None,
    data_seed: int = 0,
    batch_size: int = BATCH,
    device: str = "auto",
    progress: Callable[[int, int], object] | None = None,
) -> Traces:
    """What P(0) ... P(L) of each task give the right and the best wrong label of its targets in a store.

    `tasks`: trained probes (`EdgeProbes.of(result)`, or loaded) with targets: a file, or sentences; all over the same
    layers. `split`: how they are called in messages. `seed`: of the probes, their first by default. `sentences`: of
    each task at most, drawn by their texts with `data_seed`, so that all tasks draw the same. `progress`: is told how
    many targets are done of how many.

    Probabilities of a task whose targets have one label each are made to sum to 1 over its labels: sigmoids are
    independent and need not. Those of other tasks are the sigmoids. A target with several labels is as many edges;
    labels that the probes do not know are none.

    Raises InvalidValueError as `EdgeProbes.join` does, for tasks of other layers, and for no edge at all.
    """
    if not tasks:
        raise InvalidValueError("there are no probes to trace: give one or more tasks")
    layers = tasks[0][0].layers
    for number, (probes, _) in enumerate(tasks):
        if probes.layers != layers:
            raise InvalidValueError(
                f"the probes of {probes.task} are over layers {_listed(probes.layers)}, those of {tasks[0][0].task} "
                f"over {_listed(layers)}: a trace needs the same"
            )
        if probes.task in (other.task for other, _ in tasks[:number]):
            raise InvalidValueError(f"two tasks are called {probes.task}: give each once")
    joined = [probes.join(store, edges, split=split, sentences=sentences, seed=data_seed) for probes, edges in tasks]
    numbers: dict[tuple[str, ...], int] = {}
    for each in joined:
        for held in each.sentences:
            numbers.setdefault(tuple(held.words), len(numbers))
    told = _Told(progress, sum(len(each.split) for each in joined))
    found = [
        _edges(probes, store, each, told, seed=seed, batch_size=batch_size, device=device)
        for (probes, _), each in zip(tasks, joined, strict=True)
    ]
    placed = [_placed(each, edges, numbers) for each, edges in zip(joined, found, strict=True)]
    found = [edges.of(kept) for edges, (kept, _) in zip(found, placed, strict=True)]
    if not sum(len(edges.target) for edges in found):
        raise InvalidValueError("no target has a label that the probes know: give targets of their tasks")
    sentence = np.concatenate([place for _, place in placed])
    task = np.repeat(np.arange(len(found)), [len(edges.target) for edges in found])
    order = np.lexsort((task, sentence))  # the order of targets within a task stays
    return Traces(
        layers=layers,
        sentences=tuple(numbers),
        tasks=tuple(probes.task for probes, _ in tasks),
        labels=tuple(probes.labels for probes, _ in tasks),
        targets=tuple(each.targets for each in joined),
        sentence=sentence[order],
        task=task[order],
        **{name: np.concatenate([getattr(edges, name) for edges in found])[order] for name in _BY_EDGE},
        notes=tuple(note for each in joined for note in each.notes),
    )


@dataclass
class _Told:
    """Progress over the targets of all tasks."""

    tell: Callable[[int, int], object] | None
    total: int
    done: int = 0

    def add(self, count: int) -> None:
        self.done += count
        if self.tell is not None:
            self.tell(self.done, self.total)


@dataclass(frozen=True, eq=False)
class _Edges:
    """The edges of one task; see Traces."""

    target: NDArray[np.int64]
    right: NDArray[np.int64]
    wrong: NDArray[np.int64]
    right_probability: NDArray[np.float64]
    wrong_probability: NDArray[np.float64]
    highest: NDArray[np.float64]

    def of(self, chosen: NDArray[np.int64]) -> _Edges:
        return _Edges(*(getattr(self, name)[chosen] for name in _BY_EDGE))


_BY_EDGE = tuple(field.name for field in fields(_Edges))


def _edges(
    probes: EdgeProbes,
    store: Store,
    joined: JoinedEdges,
    told: _Told,
    *,
    seed: int | None,
    batch_size: int,
    device: str,
) -> _Edges:
    """The edges of a task, in the order of their targets; a batch at a time."""
    stream = probes.stream(store, batch_size=batch_size, device=device)
    bank = probes.on(stream.device).cumulative(seed)
    parts: list[_Edges] = []
    for targets, logits in iter_logits(bank, stream, joined.split):
        gold = torch.from_numpy(joined.split.gold[targets]).to(logits.device)
        parts.append(_batch_edges(targets, normalized(logits, single=probes.single), gold))
        told.add(len(targets))
    whole = _Edges(*(np.concatenate([getattr(part, name) for part in parts]) for name in _BY_EDGE))
    return whole.of(np.argsort(whole.target, kind="stable"))


def normalized(logits: torch.Tensor, *, single: bool) -> torch.Tensor:
    """Probabilities float64, of the shape of logits [..., labels]: sigmoids, with `single` over their sum."""
    own = torch.nn.functional.logsigmoid(logits.double())
    return own.softmax(-1) if single else own.exp()


def _batch_edges(targets: NDArray[np.int64], share: torch.Tensor, gold: torch.Tensor) -> _Edges:
    """The edges of a batch. `share`: probabilities [layers, targets, labels]; `gold`: bool [targets, labels]."""
    average = share.mean(0)
    best = average.masked_fill(gold, -torch.inf).argmax(1)
    place, right = torch.nonzero(gold, as_tuple=True)
    wrong, lacking = best[place], gold.all(1)[place]
    columns = {
        "target": torch.from_numpy(targets).to(gold.device)[place],
        "right": right,
        "wrong": wrong.masked_fill(lacking, -1),
        "right_probability": share[:, place, right].T,
        "wrong_probability": share[:, place, wrong].T.masked_fill(lacking[:, None], torch.nan),
        "highest": average.amax(1)[place],
    }
    return _Edges(**{name: column.cpu().numpy() for name, column in columns.items()})


def _placed(
    joined: JoinedEdges, edges: _Edges, numbers: Mapping[tuple[str, ...], int]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Which edges to keep, and the sentence of each of these: an edge that a repeated text has twice is kept once."""
    of_text = np.array([numbers[tuple(each.words)] for each in joined.sentences], np.int64)
    sentence = np.repeat(of_text, np.diff(joined.split.first))[edges.target]
    seen: set[tuple[object, ...]] = set()
    kept = []
    for edge, (number, place, label) in enumerate(
        zip(sentence.tolist(), edges.target.tolist(), edges.right.tolist(), strict=True)
    ):
        target = joined.targets[place]
        key = (number, target.span1, target.span2, label)
        if key not in seen:
            seen.add(key)
            kept.append(edge)
    chosen = np.array(kept, np.int64)
    return chosen, sentence[chosen]


def _listed(layers: Sequence[int]) -> str:
    return ", ".join(map(str, layers))

"""Several windows of one corpus: one reading, equal context windows run once, a store for each window."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from embstore.arguments import checked
from embstore.config import settings
from embstore.corpus import Corpus, open_corpus
from embstore.devices import torch_threads
from embstore.errors import InvalidValueError
from embstore.extraction.estimate import Estimate
from embstore.extraction.options import ExtractionOptions, Window, Words, sorted_windows, window_name
from embstore.extraction.plan import Plan, as_text, make_plan, read
from embstore.extraction.resume import check_choice, check_store
from embstore.html import html_table
from embstore.models.encoder import Encoder
from embstore.store.storage.location import ObjectPath, parse_location

WINDOW_FIELD = "{window}"


@dataclass(frozen=True, repr=False)
class WindowPlan:
    """What `extract_windows` will do, made by `plan_windows`: one plan for each window, and their cost together.

    `kind`: "context", whose windows are extracted together, or "attention", which take a pass of the model each.
    """

    kind: str
    plans: Mapping[Window, Plan]
    estimate: Estimate

    @property
    def windows(self) -> tuple[Window, ...]:
        return tuple(self.plans)

    @property
    def n_rows(self) -> int:
        """The rows of all stores together."""
        return sum(plan.layout.n_rows for plan in self.plans.values())

    def paths(self, path: str | Path | ObjectPath) -> dict[Window, Path | ObjectPath]:
        """Return the path of the store of each window; see `store_path`."""
        return {window: store_path(path, kind=self.kind, window=window) for window in self.windows}

    def as_json(self) -> dict[str, Any]:
        """Return the figures of one plan with the cost of all, valid against `schemas/plan.schema.json`."""
        widths = {f"{self.kind}_windows": list(self.windows)}
        return {**self._first.as_json(), f"{self.kind}_window": None, **widths, **self.estimate.as_json()}

    def lines(self) -> list[tuple[str, str]]:
        """Return the plan as lines, each a name and a value."""
        names = ", ".join(map(window_name, self.windows))
        windows = (f"{self.kind} windows", f"{names} words left and right: {len(self.plans)} stores")
        return self._first.lines([windows], self.estimate)

    def __repr__(self) -> str:
        return as_text(self.lines())

    def _repr_html_(self) -> str:
        return html_table(self.lines())

    @property
    def _first(self) -> Plan:
        return next(iter(self.plans.values()))


def store_path(path: str | Path | ObjectPath, *, kind: str, window: Window) -> Path | ObjectPath:
    """Return the path of the store of one window: {window} in the name is replaced by the number of words or full.

    Otherwise x.zarr becomes x-k2.zarr, x-a2.zarr for an attention window, and x-full.zarr for the whole sentence.
    """
    place = parse_location(path)
    if WINDOW_FIELD in place.name:
        return place.with_name(place.name.replace(WINDOW_FIELD, window_name(window)))
    letter = {"context": "k", "attention": "a"}[kind] if window is not None else ""
    return place.with_name(f"{place.stem}-{letter}{window_name(window)}{place.suffix}")


@checked
def plan_windows(
    corpus: str | Path | Corpus | Iterable[Any],
    *,
    model: str | Path | Encoder,
    context_windows: Iterable[Words | None] | None = None,
    attention_windows: Iterable[Words | None] | None = None,
    options: ExtractionOptions | None = None,
    compute_dtype: str = "auto",
    store: str | Path | ObjectPath | None = None,
    calibrate: bool = True,
) -> WindowPlan:
    """Plan the extraction of several context windows, or several attention windows, from one pass over the corpus.

    None is the window of the whole sentence. Context windows are run together, so that equal windows are run once
    whatever width they come from; attention windows take a pass of the model each. The other arguments are those of
    `plan`. Raises InvalidValueError if neither or both kinds are given, and what `plan` raises.
    """
    if context_windows is not None and attention_windows is None:
        kind, windows = "context", sorted_windows(context_windows)
    elif attention_windows is not None and context_windows is None:
        kind, windows = "attention", sorted_windows(attention_windows)
    else:
        raise InvalidValueError("give several context windows or several attention windows, one of the two")
    if not windows:
        raise InvalidValueError(f"no {kind} window is given: name one or more, such as 0, 2, 4 and full")
    options = options or ExtractionOptions()
    if options.context_window is not None or options.attention_window is not None:
        raise InvalidValueError(f"the options name a window too: give {kind} windows alone")
    source = open_corpus(corpus)
    check_choice(source, options)
    contexts = windows if kind == "context" else (None,)
    each = {
        window: replace(options, context_window=window)
        if kind == "context"
        else replace(options, attention_window=window)
        for window in windows
    }
    paths = {window: None if store is None else store_path(store, kind=kind, window=window) for window in windows}
    for window, path in paths.items():
        if path is not None:
            check_store(path, source, each[window], contexts)
    strictest = next(iter(each.values()))  # a window, if any: whether the model knows it is checked on loading
    plans: dict[Window, Plan] = {}
    with torch_threads(settings().threads):
        reading = read(source, model, strictest, contexts, compute_dtype=compute_dtype, store=paths[windows[0]])
        for window, own in each.items():
            shared = kind == "context" and bool(plans)  # the batches, and their cost, are those of the first plan
            plans[window] = make_plan(
                reading,
                replace(own, batch_subwords=reading.options.batch_subwords),
                contexts,
                store=paths[window],
                calibrate=calibrate and not shared,
                checked=shared,
            )
    return WindowPlan(kind, plans, _total_cost(kind, [plan.estimate for plan in plans.values()]))


def _total_cost(kind: str, each: Sequence[Estimate]) -> Estimate:
    """Return the cost of all plans: context windows share one pass, attention windows run one after another."""
    first = each[0]
    store_nbytes = sum(one.store_nbytes for one in each)
    if kind == "context":
        return replace(first, store_nbytes=store_nbytes)
    seconds = None if first.seconds is None else sum(one.seconds or 0.0 for one in each)
    subwords = sum(one.subwords_to_run for one in each)
    return replace(
        first,
        store_nbytes=store_nbytes,
        memory_nbytes=max(one.memory_nbytes for one in each),
        subwords_to_run=subwords,
        seconds=seconds,
        subwords_per_second=None if seconds is None else subwords / seconds,
    )

"""Several windows of one corpus at once: one reading, equal windows run once, a store a window."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from embstore.corpus import Corpus
from embstore.corpus.keep import Keep
from embstore.errors import InvalidValueError
from embstore.executor import Executor
from embstore.extraction.estimate import Estimate
from embstore.extraction.options import Options, check_window, in_order, window_name
from embstore.extraction.pipeline import Progress, Timings, extract_together
from embstore.extraction.plan import Plan, planned
from embstore.extraction.reading import read
from embstore.extraction.windows import Context
from embstore.models.encoder import Encoder, Pooling
from embstore.store import Store
from embstore.store.backend import exists
from embstore.store.storage.location import ObjectPath, parse_location

PLACE = "{window}"


@dataclass(frozen=True)
class WindowPlan:
    """What `extract_windows` will do: a plan a window, all of one reading; `estimate`: what they cost together.

    `kind`: "context", whose windows are extracted together, or "attention", which take a pass each.
    """

    kind: str
    plans: Mapping[Context, Plan]
    estimate: Estimate

    @property
    def windows(self) -> tuple[Context, ...]:
        return tuple(self.plans)

    @property
    def n_rows(self) -> int:
        """Rows of all stores together."""
        return sum(plan.layout.n_rows for plan in self.plans.values())

    def paths(self, store: str | Path | ObjectPath) -> dict[Context, Path | ObjectPath]:
        """Where the store of each window stands: the name's {window} is replaced, else x.zarr becomes x-k2.zarr."""
        return {window: store_path(store, kind=self.kind, window=window) for window in self.windows}

    def as_json(self) -> dict[str, Any]:
        """The figures of one plan with those of all together, valid against `schemas/plan.schema.json`."""
        first = next(iter(self.plans.values()))
        widths = {f"{self.kind}_windows": list(self.windows)}
        return {**first.as_json(), f"{self.kind}_window": None, **widths, **self.estimate.as_json()}

    def __str__(self) -> str:
        first = next(iter(self.plans.values()))
        names = ", ".join(map(window_name, self.windows))
        windows = (f"{self.kind} windows", f"{names} words left and right: {len(self.plans)} stores")
        return first.described([windows], self.estimate)


def store_path(store: str | Path | ObjectPath, *, kind: str, window: Context) -> Path | ObjectPath:
    """Where the store of a window stands: {window} in the name is replaced by the number of words or full.

    Otherwise x.zarr becomes x-k2.zarr, x-a2.zarr for an attention window, and x-full.zarr.
    """
    path = parse_location(store)
    if PLACE in path.name:
        return path.with_name(path.name.replace(PLACE, window_name(window)))
    letter = {"context": "k", "attention": "a"}[kind] if window is not None else ""
    return path.with_name(f"{path.stem}-{letter}{window_name(window)}{path.suffix}")


def plan_windows(
    corpus: str | Path | Corpus | Iterable[Any],
    *,
    model: str | Path | Encoder,
    context_windows: Iterable[int | None] | None = None,
    attention_windows: Iterable[int | None] | None = None,
    layers: str | Iterable[int] = "all",
    unit: str = "word",
    pooling: Pooling = "mean",
    keep: Keep | None = None,
    dtype: str = "float16",
    max_length: int | None = None,
    batch_subwords: int | None = None,
    seed: int = 0,
    store: str | Path | ObjectPath | None = None,
    calibrate: bool = True,
    **reading: Any,
) -> WindowPlan:
    """Read a corpus once for several context windows, or several attention windows; None is the whole sentence.

    The other arguments are those of `plan`. Context windows are planned to be run together, so that equal windows
    are run once whatever width they come from; attention windows take a pass of the model each.

    Raises InvalidValueError where neither or both kinds are given, and what `plan` raises.
    """
    kind, windows = _one_kind(context_windows, attention_windows)
    options = Options(unit=unit, pooling=pooling, keep=keep or Keep(), dtype=dtype, max_length=max_length, seed=seed)
    masks = kind == "attention" and windows != (None,)
    found = read(
        corpus, model=model, options=options, layers=layers, batch_subwords=batch_subwords, masks_words=masks, **reading
    )
    together = windows if kind == "context" and len(windows) > 1 else None
    plans: dict[Context, Plan] = {}
    for window in windows:
        if kind == "context":
            one = replace(found.options, context_window=window, context_windows=together)
        else:
            one = replace(found.options, attention_window=window)
        shared = kind == "context" and bool(plans)  # what is run, and how, is that of the first plan
        plans[window] = planned(
            found,
            one,
            store=store,
            calibrate=calibrate and not shared,
            stores=len(windows) if kind == "context" else 1,
            settled=shared,
        )
    return WindowPlan(kind, plans, _together(kind, list(plans.values())))


def extract_windows(
    plan: WindowPlan,
    store: str | Path | ObjectPath,
    *,
    repair: bool = False,
    executor: Executor | None = None,
    progress: Callable[[Progress], object] | None = None,
    timings: Timings | None = None,
) -> dict[int | None, Store]:
    """Carry out a plan of windows into one store each (see `WindowPlan.paths`); the same call again resumes.

    Returns the stores by window. Raises what `extract` raises; nothing is begun where one of the stores that
    exist is another plan's. An `executor` takes one context window, or any number of attention windows.
    """
    paths = plan.paths(store)
    if len(set(paths.values())) < len(paths):
        raise InvalidValueError(f"the name {store} gives several windows one store: put {PLACE} in it, or leave it out")
    if isinstance(parse_location(store), Path):
        plan.estimate.require_space(fresh=sum(not exists(path) for path in paths.values()) / len(paths))
    options: dict[str, Any] = {"repair": repair, "executor": executor, "timings": timings}
    if plan.kind == "context":
        stores = extract_together(list(plan.plans.values()), list(paths.values()), progress=progress, **options)
        return dict(zip(plan.windows, stores, strict=True))
    made: dict[int | None, Store] = {}
    before = 0
    for window, one in plan.plans.items():
        told = None if progress is None else _Counted(progress, before=before, total=plan.n_rows)
        made[window] = extract_together([one], [paths[window]], progress=told, **options)[0]
        before += one.layout.n_rows
    return made


@dataclass(frozen=True)
class _Counted:
    """Progress of one pass told as that of all."""

    tell: Callable[[Progress], object]
    before: int
    total: int

    def __call__(self, state: Progress) -> None:
        self.tell(Progress(self.before + state.rows, self.total, state.subwords))


def _one_kind(
    contexts: Iterable[Context] | None, attentions: Iterable[Context] | None
) -> tuple[str, tuple[Context, ...]]:
    if (contexts is None) == (attentions is None):
        raise InvalidValueError("give context windows or attention windows, one of the two, to extract several of")
    kind, given = ("context", contexts) if contexts is not None else ("attention", attentions)
    windows = list(given or ())
    if not windows:
        raise InvalidValueError(f"no {kind} window is given: name one or more, such as 0, 2, 4 and full")
    for window in windows:
        check_window(kind, window)
    return kind, in_order(windows)


def _together(kind: str, plans: list[Plan]) -> Estimate:
    """What all plans cost: context windows share one pass, attention windows run one after the other."""
    first = plans[0].estimate
    if kind == "context":
        return replace(first, store_nbytes=sum(plan.estimate.store_nbytes for plan in plans))
    each = [plan.estimate for plan in plans]
    seconds = None if first.seconds is None else sum(one.seconds or 0.0 for one in each)
    subwords = sum(one.subwords_to_run for one in each)
    return replace(
        first,
        store_nbytes=sum(one.store_nbytes for one in each),
        memory_nbytes=max(one.memory_nbytes for one in each),
        subwords_to_run=subwords,
        seconds=seconds,
        subwords_per_second=None if seconds is None else subwords / seconds,
    )

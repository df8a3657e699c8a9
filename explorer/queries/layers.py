"""Layers: their geometry, how similar they are, and what probes find in them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

import embstore as es
from embstore.errors import InvalidValueError, quoted
from embstore.store import Selection
from embstore_explorer.parameters import Number
from embstore_explorer.queries.registry import Asked
from embstore_explorer.stores import Explored, SavedFile

SAMPLE = 10_000  # rows whose layers are compared
PAPER_METRICS = ("selfsim", "intrasim", "mev", "anisotropy")
LAYER_METRICS = ("mean_norm", "participation_ratio", "effective_rank", "top_component")
COLUMNS = ("store", "task", "layer", "split", "metric", "item", "value", "low", "high", "count", "seed")  # of scores


def geometry(asked: Asked, *, store: Number = 0) -> dict[str, Any]:
    """Return the measures of Ethayarajh 2019 by layer, with intervals over words or sentences, without sinks."""
    one = asked.store(store)
    data = one.sinkless(one.store.select())
    whole = len(data) == one.store.n_rows
    found = one.saved("geometry" if whole else "geometry-sinkless", lambda: _geometry(asked, one, data))
    given = "store" if whole else "store.select(sinks=False)"
    call = f"es.geometry({given}, metrics={found['metrics']!r}, min_contexts={found['min_contexts']})"
    n_sinks = one.store.n_rows - len(data)
    note = None if whole else f"{n_sinks:,} attention sink{'s are' if n_sinks > 1 else ' is'} left out."
    return {"rows": found["rows"], "note": note, "python": one.python(f"es.analysis.summarize_geometry({call})")}


def _geometry(asked: Asked, one: Explored, data: Selection) -> dict[str, Any]:
    least = 5 if len(es.analysis.eligible_types(one.store)) else 1
    metrics: list[str] = [*PAPER_METRICS, *LAYER_METRICS]
    with es.config(progress=asked.report):
        try:
            frame = es.geometry(data, metrics=metrics, min_contexts=least)
        except InvalidValueError:  # no word occurs twice, or no sentence has two words
            metrics = ["anisotropy", *LAYER_METRICS]
            frame = es.geometry(data, metrics=metrics)
    rows = es.analysis.summarize_geometry(frame).select("layer", "metric", "value", "low", "high")
    return {"rows": rows.to_dicts(), "metrics": metrics, "min_contexts": least}


def cka(asked: Asked, *, store: Number = 0, other: Number | None = None) -> dict[str, Any]:
    """Return the linear CKA of all pairs of layers of a store, or of two stores of the same occurrences.

    Of 10,000 rows, spread evenly, where there are more; without attention sinks of the first one. `values[i][j]` is
    that of layers `a[i]` and `b[j]`.
    """
    one, two = asked.store(store), asked.store(store if other is None else other)
    step = -(-one.store.n_rows // SAMPLE)
    chosen = one.store.select(rows=slice(None, None, step))
    data = one.sinkless(chosen)
    name = ("cka" if one is two else f"cka-{two.store.digest[:16]}") + ("" if len(data) == len(chosen) else "-sinkless")
    whole = len(data) == len(chosen) or two.store.n_rows != one.store.n_rows  # of others linear_cka says so
    other_data = None if one is two else two.store.select(rows=slice(None, None, step) if whole else data.rows)
    found = one.saved(name, lambda: _cka(asked, data, other_data))
    given = [f"rows=slice(None, None, {step})"] if step > 1 else []
    given += ["sinks=False"] if len(data) < len(chosen) else []
    pair = f"store.select({', '.join(given)})" if given else "store"
    lines = [f"other = es.open({two.address!r})", f"chosen = {pair}"] if one is not two else []
    pair = pair if one is two else "chosen, other.select(rows=chosen.rows)"
    call = one.python(*lines, f"es.analysis.linear_cka({pair})")
    return {"a": list(one.store.layers), "b": list(two.store.layers), "values": found["values"], "python": call}


def _cka(asked: Asked, data: Selection, other: Selection | None) -> dict[str, Any]:
    with es.config(progress=asked.report):
        frame = es.analysis.linear_cka(data, other)
    return {"values": np.reshape(frame["value"].to_numpy(), (len(data.layers), -1)).tolist()}


def probes(asked: Asked, *, store: Number = 0) -> dict[str, Any]:
    """Return the tables of scores of probes that are in the folder of probes, as `--out` of the commands writes them.

    Of a table of several stores the rows of this one, where one has its name.
    """
    one = asked.store(store)
    results = [{"name": name, "kind": "scores", "rows": _scores(each, one)} for name, each in one.results.items()]
    paths, all_rows = [each.path for each in one.results.values()], ", infer_schema_length=None"
    readers = [f"pl.read_{path.suffix[1:]}({str(path)!r}{all_rows * (path.suffix != '.parquet')})" for path in paths]
    return {"results": [each for each in results if each["rows"]], "python": one.python(*readers)}


def _scores(file: SavedFile, one: Explored) -> list[dict[str, Any]]:
    """Return the rows of a table of scores; none of a table of something else. Raises InvalidValueError."""
    import polars as pl

    read: Any = {".csv": pl.read_csv, ".parquet": pl.read_parquet, ".json": pl.read_json}[file.path.suffix]
    options = {} if file.path.suffix == ".parquet" else {"infer_schema_length": None}  # columns may begin with nulls
    try:
        frame = read(file.path, **options)
    except (OSError, pl.exceptions.PolarsError) as error:
        raise InvalidValueError(f"{file.path} cannot be read ({quoted(str(error).splitlines()[0])})") from None
    if not {"layer", "metric", "value"} <= set(frame.columns):
        return []
    if "store" in frame.columns and one.name in (names := [Path(str(each)).stem for each in frame["store"]]):
        frame = frame.filter(pl.Series([name == one.name for name in names]))
    return list(frame.select([name for name in COLUMNS if name in frame.columns]).to_dicts())

"""Commands on attention: statistics of a model's heads over a corpus."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import embstore as es
import embstore_cli.options as opt
from embstore_cli.output import Drawing, print_table

if TYPE_CHECKING:
    import polars as pl

SHARES = ("self", "previous", "next", "cls", "sep", "first", "punctuation")
SHOWN_RELATIONS = 20  # the most frequent ones


def attention(
    corpus: Annotated[Path, opt.argument("CORPUS", "The sentences, in any format of extract, or a store.")],
    *,
    model: opt.Model,
    layers: opt.Layers = "all",
    settings: Annotated[
        dict[str, Any], opt.Config(lambda: es.attention, "statistics", "n_sentences", "max_length", "seed")
    ],
    output: Drawing,
) -> None:
    """Measure the attention of every head over a corpus.

    Shares by kind of subword, entropy and relations (Clark et al. 2019), patterns (Kovaleva
    et al. 2019), trees (Htut et al. 2019). CoNLL-U files have relations and trees, edge probing files coreference.
    Layer l is the attention of block l, from 1; heads count from 0.
    """
    path = str(corpus).partition("#")[0].rstrip("/")
    source: Any = es.open(str(corpus)) if path.endswith((".zarr", ".h5", ".json")) else corpus
    result = es.attention(source, model=model, layers=opt.layers_of(layers), **settings)
    output.draw(
        lambda: es.plot.attention_figure(result.frame, title=f"{result.model}, {result.n_sentences:,} sentences")
    )
    if output.deliver(result.frame):
        _print(result)


def _print(result: es.analysis.Attention) -> None:
    """Print means by layer, then the best heads for what is compared with annotation."""
    metrics = set(result.frame["metric"])
    for metric, items, title in (
        ("share", SHARES, "share of attention to, mean of heads"),
        ("entropy", ("all", "cls"), "entropy in nats, mean of heads"),
        ("pattern", (), "share of maps of each pattern"),
    ):
        if metric in metrics:
            print_table(_by_layer(result.frame, metric, items), title=title, right=("layer",))
            print()
    if "relation_to_head" in metrics:
        rows = result.best("relation_to_head").head(SHOWN_RELATIONS).to_dicts()
        print_table([_best(row, "relation") for row in rows], title="word to its head: best head, best fixed offset")
        print()
    for metric, title in (
        ("uuas", "trees: best heads, right-branching"),
        ("coreference", "coreference: best heads, nearest"),
    ):
        if metric in metrics:
            print_table([_best(row, "") for row in result.best(metric, count=3).to_dicts()], title=title)
            print()
    print(f"{result.n_sentences:,} sentences, {result.n_subwords:,} subwords; --out writes every head")


def _by_layer(frame: pl.DataFrame, metric: str, items: tuple[str, ...]) -> list[dict[str, Any]]:
    rows: dict[int, dict[str, list[float]]] = {}
    for row in frame.to_dicts():
        if row["metric"] == metric and row["layer"] is not None and (not items or row["item"] in items):
            rows.setdefault(row["layer"], {}).setdefault(row["item"], []).append(row["value"])
    return [
        {"layer": str(layer), **{item: sum(values) / len(values) for item, values in found.items()}}
        for layer, found in sorted(rows.items())
    ]


def _best(row: dict[str, Any], item: str) -> dict[str, Any]:
    shown: dict[str, Any] = {item: row["item"]} if item else {}
    shown |= {"layer.head": f"{row['layer']}.{row['head']}", "value": row["value"], "baseline": row["baseline"]}
    return shown | ({"offset": row["offset"]} if row["offset"] is not None else {}) | {"of": row["count"]}

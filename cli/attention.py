"""Commands on attention: statistics of a model's heads over a corpus."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import embstore as es
import embstore_cli.options as opt
from embstore_cli.output import Drawing, print_table

if TYPE_CHECKING:
    import polars as pl

SETTINGS = {
    "statistics": tuple[str, ...],
    "heads": tuple[int, ...],
    "n_sentences": int | None,
    "max_length": int,
    "seed": int,
    "threads": int,
    "batch_subwords": int,
    "arrangement": Literal["padded", "packed"],
}
COMPARISON = ("n_sentences", "max_length", "seed", "threads", "batch_subwords")
SHARES = ("self", "previous", "next", "cls", "sep", "punctuation")
SHOWN_RELATIONS = 20


def attention(
    corpus: Annotated[Path, opt.argument("CORPUS", "The sentences, in any format of extract, or a store.")],
    *,
    model: opt.Model,
    other: Annotated[
        str | None, opt.option("MODEL", "Compare with this model of the same shape and tokenizer instead.")
    ] = None,
    layers: opt.Layers = "all",
    device: opt.Device = "auto",
    settings: Annotated[dict[str, Any], opt.Config(lambda: SETTINGS)],
    output: Drawing,
) -> None:
    """Measure the attention of every head over a corpus.

    Shares by kind of subword, entropy, distances between heads and relations (Clark et al. 2019), patterns (Kovaleva
    et al. 2019), trees (Htut et al. 2019). CoNLL-U files have relations and trees, edge probing files coreference.
    Layer l is the attention of block l, from 1; heads count from 0. With --other, the cosine of each head's weights
    in both models (Zhao et al. 2020, Figure 7).
    """
    chosen = settings
    if layers != "all":
        chosen["layers"] = opt.layers_of(layers)
    path = str(corpus).partition("#")[0].rstrip("/")
    source: Any = es.open(str(corpus)) if path.endswith((".zarr", ".h5", ".json")) else corpus
    if other is not None:
        _compare(source, model, other, chosen, device, output)
        return
    result = es.attention(source, model=model, device=device, **chosen)
    output.draw(
        lambda: es.plot.attention_figure(result.frame, title=f"{result.model}, {result.n_sentences:,} sentences")
    )
    if output.deliver(result.frame):
        _print(result)


def _compare(corpus: Any, model: str, other: str, settings: dict[str, Any], device: str, output: Drawing) -> None:
    table = es.analysis.attention_similarity(corpus, model_a=model, model_b=other, device=device, **settings)
    names = " and ".join(Path(name).name for name in (model, other))
    output.draw(lambda: es.plot.attention_heatmap(table, title=f"Self-attention weights: {names}"))
    if not output.deliver(table):
        return
    rows = []
    for (layer,), part in table.group_by("layer", maintain_order=True):
        values = part.sort("value")
        shown = {"layer": str(layer), "mean": float(values["value"].to_numpy().mean())}
        extremes = {"least": values["value"][0], "of head": str(values["head"][0]), "most": values["value"][-1]}
        rows.append(shown | extremes)
    print_table(rows, title="cosine of self-attention weights over heads", right=("layer", "of head"))


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

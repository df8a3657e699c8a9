"""The command that compares words between corpora and over time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import embstore as es
import embstore_cli.options as opt
from embstore.errors import check_choice
from embstore_cli.output import Drawing, counted, print_concordance, print_notes, print_table

if TYPE_CHECKING:
    from embstore.analysis.change import Change, ChangeSeries

METRICS = (
    *("apd", "apd_excess", "prt", "inverse_prt", "prt_centered"),
    *("selfsim_old", "selfsim_new", "selfsim_change", "jsd"),
)
SHOWN = ("apd_excess", "apd", "prt", "prt_centered", "selfsim_change", "jsd")
COUNTS = ("permutations", "resamples", "sample", "n_clusters", "min_senses", "matched", "seed")
TESTS = {**dict.fromkeys(COUNTS, int), "exchange": str}
TWO_SIDES = ("sentences", "n_clusters", "min_senses", "matched")
SETTINGS = {"min_occurrences": int, "width": int, "top": int, "sentences": int, "rank": str, "memory": str, **TESTS}


def change(
    old: Annotated[str, opt.argument("OLD", "A store; alone with --by.")],
    new: Annotated[str | None, opt.argument("NEW", "A store of a later or other corpus, by the same model.")] = None,
    *,
    by: Annotated[str | None, opt.option("COLUMN", "Compare the values of this label or field of one store.")] = None,
    layers: opt.Layers = "all",
    metrics: Annotated[str, opt.option("LIST", f"all, or some of {', '.join(METRICS)}.", show_default=False)] = "all",
    settings: Annotated[dict[str, Any], opt.Config(lambda: SETTINGS)],
    output: Drawing,
) -> None:
    """Measure how words change between two corpora.

    Distances, self-similarity and senses of every shared word at every layer, with permutation p-values, false
    discovery control, and the sentences that show the change best. --out has every word. With more than two values of
    --by, each period against the one before it and against the first, and the periods at which words change.
    --set min_occurrences=N: only words with N occurrences on each side; width=10: decades of a column of years.
    """
    chosen = settings
    names = list(METRICS) if metrics == "all" else list(filter(None, metrics.replace(" ", "").split(","))) or [""]
    store = es.open(old)
    periods: tuple[str, ...] = ()
    if by is not None and new is None:
        periods = es.analysis.change.list_periods(store, by=by, width=chosen.get("width"))
    if len(periods) > 2:
        names = [name for name in names if name != "jsd" or metrics != "all"]
    top, sentences, rank = chosen.pop("top", 10), chosen.pop("sentences", 2), chosen.pop("rank", None)
    if rank is not None:
        check_choice("rank", rank, names)
    tests = es.analysis.change.ChangeTests(**{name: chosen.pop(name) for name in TESTS if name in chosen})
    rank = rank or ("apd_excess" if "apd_excess" in names else names[0])
    options = {"by": by, "layers": opt.layers_of(layers), "metrics": names, "tests": tests, **chosen}
    if len(periods) > 2:
        series = es.analysis.change.measure_periods(store, **options)
        output.draw(lambda: es.plot.series_figure(series, metric=rank))
        if output.deliver(series.table()):
            _print_series(series, rank, top)
        return
    found = es.analysis.change.measure_change(store, None if new is None else es.open(new), **options)
    output.draw(lambda: es.plot.change_map(found.frame, metric=rank))
    print_notes(found.notes)
    if output.deliver(found.frame):
        _print(found, rank, top, sentences)


def _print_series(series: ChangeSeries, rank: str, top: int) -> None:
    """Print the change points with the lowest q in the last layer, and the series of their words."""
    best = series.top(rank, count=top)
    names = {"period": "from", "value": rank}
    tested = len(series.points) > 0
    shown = best if tested else best.drop("gain", "p", "q")
    rows = [{names.get(name, name): value for name, value in row.items()} for row in shown.to_dicts()]
    skipped = f"; {counted(len(series.skipped), 'word')} with too few occurrences" if len(series.skipped) else ""
    span = f"{len(series.periods)} periods from {series.periods[0]} to {series.periods[-1]}{skipped}"
    print_table(rows, title=f"{'change points' if tested else 'greatest changes, not tested'}, {span}")
    words = best["word"].unique(maintain_order=True).to_list()
    steps = series.steps(rank)
    values = {
        (row["word"], row["period"]): f"{row['value']:.4g}" for row in steps.to_dicts() if row["value"] is not None
    }
    found = set(best.filter(best["q"] <= 0.05).select("word", "period").iter_rows())
    lines = []
    for period in series.periods[1:]:
        keys = {word: (word, period) for word in words}
        cells = {word: values.get(key, "") + ("*" if key in found else " ") for word, key in keys.items()}
        lines.append({"": period, **cells})
    print()
    print_table(lines, right=words, title=f"{rank} of each period against the one before it (*: a change point)")


def _print(found: Change, rank: str, top: int, sentences: int) -> None:
    """Print how much changes at each layer, the words that change most in the last, and their sentences."""
    rows = []
    for (layer, metric), part in found.frame.partition_by("layer", "metric", as_dict=True, maintain_order=True).items():
        if metric == rank:
            tested = part["q"].drop_nulls()
            row = {"layer": str(layer), f"median {rank}": part["value"].median(), "words": len(part)}
            rows.append(row | ({"q <= 0.05": int((tested <= 0.05).sum())} if len(tested) else {}))
    skipped = f"; {counted(len(found.skipped), 'word')} with too few occurrences" if len(found.skipped) else ""
    print_table(rows, title=f"from {found.names[0]} to {found.names[1]}{skipped}")
    best = found.top(rank, count=top)
    wide = found.frame.filter(found.frame["layer"] == found.layers[-1]).partition_by("word", as_dict=True)
    lines = []
    for row in best.to_dicts():
        values = dict(wide[row["word"],].select("metric", "value").iter_rows())
        line = {"word": row["word"], "old": row["count_old"], "new": row["count_new"]}
        line |= {metric: values[metric] for metric in SHOWN if metric in values}
        lines.append(line | {f"q ({rank})": row["q"], "among like": row["p_matched"]})
    print()
    print_table(lines, title=f"the words that change most in layer {found.layers[-1]}, by {rank}")
    for word in best["word"].head(3) if sentences else ():
        table = found.sentences(word, count=sentences)
        for side, part in table.group_by("side", maintain_order=True):
            print()
            title = f"{word}: most typical of {side[0]}"
            shown = part.drop("score", "rank", "side", "layer", "marked").to_dicts()
            marked = [text.partition(f"[{word}]") for text in part["marked"]]
            parts = [(before, word, after) for before, _, after in marked]
            print_concordance(shown, parts, title=title, scores=part["score"].to_list())

"""The sections of a report: each computes with public functions, and says how, on what and with what limits."""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Iterator, Sequence
from functools import reduce
from itertools import pairwise
from typing import Any

import numpy as np
import polars as pl

from embstore import config, plot, senses
from embstore.analysis import Clusters, extreme_words, linear_cka, summarize_geometry
from embstore.errors import InvalidValueError
from embstore.probes import ClassProbe, Training, split_words
from embstore_explorer.reports.section import Picture, Section, Sentences, Source, Table

GEOMETRY = {
    "anisotropy": ("anisotropy",),
    "selfsim": ("self-similarity", "low", "high"),
    "intrasim": ("intra-sentence similarity", "low", "high"),
}
MIN_COUNT = 20  # occurrences of a word that is listed as most or least contextual
SHOWN_WORDS = 12
MAX_SHARE = 0.1  # of the sentences: words that occur in more are not searched for senses
MIN_OCCURRENCES, POOL, TESTED, SHOWN_SENSES, SAMPLE = 15, 100, 10, 4, 150
ENOUGH = 30  # occurrences: of fewer, clusters may be found, and none found says nothing
SUPPORTED = 0.25  # silhouettes below show no substantial structure (Kaufman & Rousseeuw 1990)
EXAMPLES, MARKERS = 3, 6
BEFORE, AFTER = re.compile(r"(?s)^.*\s(\S*.{160})$"), re.compile(r"(?s)^(.{160}\S*)\s.*")  # of a word in its sentence
MAX_CKA_LAYERS = 13
CLASSES, MAX_CLASSES, PROBED_WORDS, SEEDS, EPOCHS, CLEAR = 8, 60, 3000, (0, 1, 2), 10, 0.05


def contents(source: Source) -> Section:
    """Describe the store."""
    store, described = source.store, source.store.describe()
    model, corpus = described["model"], described["corpus"]
    written = described["n_committed_rows"]
    state = "all written" if store.finished else f"{written:,} written: the extraction is not finished"
    labels = ", ".join(f"{name} ({count:,} values)" for name, count in described["labels"].items())
    fields = ", ".join(f"{name} ({own['values']:,} values)" for name, own in described["fields"].items())
    facts = {
        "model": f"{model['name']}; {_facts(model)}",
        "corpus": f"{corpus['name']}; {_facts(corpus)}",
        "extraction": _facts(described["extraction"]),
        "rows": f"{described['n_rows']:,} ({state})",
        "words": f"{described['n_types']:,} types in {described['n_sentences']:,} sentences "
        f"of {described['n_documents']:,} document{'s' * (described['n_documents'] != 1)}",
        "layers": ", ".join(map(str, store.layers)),
        "vectors": f"{store.hidden_size:,} numbers of {store.dtype}; {described['nbytes'] / 2**20:,.1f} MiB in all",
        "labels": labels or "none",
        "fields of documents": fields or "none",
        "software": _facts(described["software"]),
    }
    frame = pl.DataFrame({"": list(facts), "value": list(facts.values())})
    blocks = [Table(frame)]
    if dropped := described["dropped"]:
        rows = [(each["reason"], each["count"], "; ".join(each["examples"][:3])) for each in dropped]
        blocks.append(Table(pl.DataFrame(rows, ["reason", "count", "examples"], orient="row"), "Words without a row"))
    finding = (
        f"{described['n_rows']:,} occurrences of {described['n_types']:,} words in {described['n_sentences']:,} "
        f"sentences, each with a vector of {store.hidden_size:,} numbers at {len(store.layers)} "
        f"layer{'s' * (len(store.layers) > 1)}."
    )
    return Section(
        "contents",
        "What the store holds",
        finding=finding,
        method="The metadata of the store, which hold everything that determines its rows.",
        call="store.describe()",
        blocks=blocks,
        caveats=[] if store.finished else [f"The extraction is not finished: {written:,} rows are written."],
        frames={"frame": frame},
    )


def _facts(described: dict[str, Any]) -> str:
    """Return what people read of a description: no name, checksum or empty value."""
    texts = {name: f"({_facts(each)})" if isinstance(each, dict) else each for name, each in described.items()}
    return ", ".join(
        f"{name.replace('_', ' ')} {text}"
        for name, text in texts.items()
        if name != "name" and "sha256" not in name and text not in (None, [], (), "", "()")
    )


def geometry(source: Source) -> Section:
    """Anisotropy, self-similarity and intra-sentence similarity by layer."""
    summary = summarize_geometry(source.geometry, seed=source.seed)
    figure = plot.geometry_figure({_stem(source): summary})
    first, last = source.store.layers[0], source.store.layers[-1]

    def value(metric: str, layer: int, column: str) -> float:
        chosen = summary.filter((pl.col("metric").cast(pl.String) == metric) & (pl.col("layer") == layer))
        return float(chosen[column][0])

    measured = set(summary["metric"].cast(pl.String))
    finding = " ".join(
        f"At layer {layer} two random words have a mean cosine of {value('anisotropy', layer, 'value'):.2f}"
        + (
            f", and two occurrences of the same word one {value('selfsim', layer, 'adjusted'):.2f} above that."
            if "selfsim" in measured
            else "."
        )
        for layer in dict.fromkeys((first, last))
    )
    shown = summary.with_columns(pl.coalesce("adjusted", "value").alias("value"), pl.col("metric").cast(pl.String))
    shown = shown.with_columns(low=pl.col("adjusted_low"), high=pl.col("adjusted_high"))
    rows = [
        shown.filter(shown["metric"] == metric).select(
            "layer", pl.col("value").alias(name), *(pl.col(end).alias(f"{end} ({name[0]})") for end in ends)
        )
        for metric, (name, *ends) in GEOMETRY.items()
        if metric in measured
    ]
    wide = reduce(lambda one, other: one.join(other, on="layer"), rows)
    return Section(
        "geometry",
        "Geometry by layer",
        finding=finding,
        method="Anisotropy is the mean cosine of two occurrences; self-similarity the mean cosine of a word's "
        "occurrences, averaged over words of 5 or more different sentences; intra-sentence similarity the mean cosine "
        "of a word with the mean of its sentence (Ethayarajh 2019). The anisotropy is subtracted from both. Intervals "
        "are of 95 %, by a bootstrap over words or sentences.",
        call=f"{source.geometry_code}\nsummary = es.analysis.summarize_geometry(table, seed={source.seed})",
        blocks=[
            _picture(figure, "geometry", "Bands: 95 % intervals."),
            Table(wide, "Self-similarity (s) and intra-sentence similarity (i) minus anisotropy, with 95 % intervals"),
        ],
        caveats=[
            *source.sampled,
            *source.left_out,
            "Occurrences without a letter or digit are left out.",
            "Cosines are dominated by few large dimensions in many models (Timkey & van Schijndel 2021): "
            "`es.geometry(store, metrics='top_component')` tells.",
        ],
        frames={"table": source.geometry, "summary": summary},
    )


def words(source: Source) -> Section:
    """The most and the least contextual words of the last layer."""
    table = source.geometry
    frequent = table.filter(table["count"] >= MIN_COUNT)
    known = frequent.filter((pl.col("metric").cast(pl.String) == "selfsim") & (pl.col("item") != ""))
    n_words = known["item"].n_unique()
    if n_words < 2 * SHOWN_WORDS:
        if not n_words and source.left_out:
            raise InvalidValueError(" ".join(source.left_out).rstrip("."))
        raise InvalidValueError(
            f"{n_words} words occur {MIN_COUNT} times or more, too few for two lists of {SHOWN_WORDS}"
        )
    extremes = extreme_words(frequent, count=SHOWN_WORDS)
    columns = {"item": "word", "value": "self-similarity", "count": "occurrences"}
    ends = {
        end: extremes.filter(extremes["end"] == end).select(pl.col(old).alias(new) for old, new in columns.items())
        for end in ("most", "least")
    }
    heads = {end: ", ".join(part["word"].head(4)) for end, part in ends.items()}
    layer = extremes["layer"][0]
    return Section(
        "words",
        "Most and least contextual words",
        finding=f"At layer {layer} the vectors of {heads['most']} depend most on their sentences, "
        f"those of {heads['least']} least.",
        method=f"Self-similarity at the last layer, of the {n_words:,} words with {MIN_COUNT} occurrences or more "
        "in 5 or more different sentences.",
        call=f"{source.geometry_code}\nfrequent = table.filter(table['count'] >= {MIN_COUNT})\n"
        f"extremes = es.analysis.extreme_words(frequent, count={SHOWN_WORDS})",
        blocks=[
            Table(ends["most"], "Most contextual: low self-similarity"),
            Table(ends["least"], "Least contextual: high self-similarity"),
        ],
        caveats=[
            *source.sampled,
            "A low self-similarity is no proof of many senses: function words vary with what surrounds them, and names "
            "that occur in one document resemble themselves.",
        ],
        frames={"extremes": extremes},
    )


def meanings(source: Source) -> Section:
    """The senses of the most ambiguous frequent words."""
    pool = _pool(source)
    if not pool:
        raise InvalidValueError(
            f"no word occurs {MIN_OCCURRENCES} times or more, and in at most {MAX_SHARE:.0%} of the sentences"
        )
    clusterings = list(_clusterings(source, pool))
    if not clusterings:
        raise InvalidValueError(f"no word has {MIN_OCCURRENCES} different contexts or more")
    clustered = [(each.silhouette, each) for each in clusterings if each.silhouette is not None]
    ranked = sorted(clustered, key=lambda pair: -pair[0])[:TESTED]
    found = [each for _, each in ranked]
    clear = [each for silhouette, each in ranked if silhouette >= SUPPORTED and not each.caveats]
    rows = [
        (each.word, len(each.occurrences), len(each.frame), each.silhouette, each.null, each.p, each in clear)
        for each in found
    ]
    names = ("word", "occurrences", "clusters", "silhouette", "null", "p", "supported")
    kinds = (pl.String, pl.Int64, pl.Int64, pl.Float64, pl.Float64, pl.Float64, pl.Boolean)
    tested = pl.DataFrame(rows, dict(zip(names, kinds, strict=True)), orient="row")
    shown = clear[:SHOWN_SENSES]
    blocks: list[Table | Picture | Sentences] = []
    for each in shown:
        blocks.append(_picture(plot.cluster_map(each), f"senses {each.word}", "A point is an occurrence."))
        blocks += _examples(source, each)
    blocks += [Table(tested, f"The {len(found)} words with the highest silhouettes")] if found else []
    n_enough = sum(len(each.occurrences) >= ENOUGH for each in clusterings)
    if clear:
        listed = ", ".join(each.word for each in clear)
        finding = f"The occurrences of {listed} fall into clusters that are better separated than by chance."
    elif n_enough:
        finding = (
            f"None of the {n_enough:,} words of {ENOUGH} occurrences or more falls into clusters that are better "
            "separated than by chance."
        )
    else:
        finding = (
            f"Not determined: no word has {ENOUGH} different contexts or more, and in fewer senses look like chance."
        )
    return Section(
        "senses",
        "Senses of ambiguous words",
        finding=finding,
        method=f"Up to {SAMPLE} occurrences of each of the most frequent words ({len(pool)} of {MIN_OCCURRENCES} "
        f"occurrences or more, in at most {MAX_SHARE:.0%} of the sentences) are clustered at the last layer by "
        "k-means of unit vectors; the number of clusters is that of the highest silhouette. It counts as supported "
        f"if its silhouette is {SUPPORTED} or more and higher than those of 19 clusterings of as many vectors "
        "drawn from one normal distribution of the same mean and covariance (p = 0.05); null is their mean. Of equal "
        "contexts of five words on each side one counts, so that repeated sentences are no cluster. A cluster is "
        "marked by the words that its contexts have more of than those of the others (class-based tf-idf, "
        "Grootendorst 2022); sentences are those nearest to its center.",
        call=f"{source.data_code}\n"
        f"found = es.senses(data, {(shown or found)[0].word if found else pool[0]!r}, sample={SAMPLE}, distinct=True, "
        f"seed={source.seed})\nfound.null, found.p\n"
        f"markers, examples = found.markers({MARKERS}), found.nearest({EXAMPLES})",
        blocks=blocks,
        caveats=[
            *source.sampled,
            f"The words are chosen from {len(pool)} by their silhouette, so p is optimistic.",
            "Clusters follow whatever differs most between the sentences: syntax, position or topic as well as sense.",
        ],
        frames={"tested": tested},
    )


def _clusterings(source: Source, words: Sequence[str]) -> Iterator[Clusters]:
    """Cluster the distinct contexts of each word that has enough of them."""
    for word in words:
        try:
            found = senses(source.data, word, sample=SAMPLE, distinct=True, seed=source.seed)
        except InvalidValueError:  # all contexts are equal
            continue
        if len(found.occurrences) >= MIN_OCCURRENCES:
            yield found


def _pool(source: Source) -> list[str]:
    """The most frequent words with a letter that are not in most sentences."""
    index, rows = source.store.index, source.data.rows
    counts = np.bincount(index.type[rows], minlength=len(index.words))
    most = max(MAX_SHARE * len(np.unique(index.sentence[rows])), MIN_OCCURRENCES)
    known = ((index.words[number], -counts[number]) for number in np.flatnonzero(counts >= MIN_OCCURRENCES).tolist())
    words = sorted((count, word) for word, count in known if -count <= most and any(map(str.isalpha, word)))
    return [word for _, word in words[:POOL]]


def _examples(source: Source, found: Clusters) -> list[Sentences]:
    """The sentences nearest to the center of each cluster."""
    nearest, markers, blocks = found.nearest(EXAMPLES), found.markers(MARKERS), []
    for (number, count), words in zip(found.frame.select("cluster", "count").iter_rows(), markers, strict=True):
        rows = nearest.filter(nearest["cluster"] == number)["occurrence"].to_numpy()
        lines = source.store.select(rows=rows).concordance()
        parts = [(BEFORE.sub(r"… \1", left), word, AFTER.sub(r"\1 …", right)) for left, word, right in lines]
        marked = f", marked by {', '.join(words)}" if words else ""
        blocks.append(Sentences(f"{found.word}, cluster {number}: {count} occurrences{marked}", parts))
    return blocks


def similarity(source: Source) -> Section:
    """Linear CKA between layers."""
    layers = source.store.layers
    if len(layers) < 2:
        raise InvalidValueError("one layer is stored: similarity of layers needs two")
    if len(layers) > MAX_CKA_LAYERS:
        layers = tuple(layers[i] for i in np.linspace(0, len(layers) - 1, MAX_CKA_LAYERS).round().astype(int))
    frame = linear_cka(source.few, layers=layers)
    value = {(one, other): each for one, other, each in frame.select("layer", "other_layer", "value").iter_rows()}
    steps = {pair: value[pair] for pair in pairwise(layers)}
    least = min(steps, key=lambda pair: steps[pair])
    finding = (
        f"First and last layer have a CKA of {value[layers[0], layers[-1]]:.2f}; the largest change from one layer to "
        f"the next is from {least[0]} to {least[1]} ({steps[least]:.2f})."
    )
    return Section(
        "similarity",
        "Similarity of layers",
        finding=finding,
        method="Linear centered kernel alignment (Kornblith et al. 2019): 1 for layers that differ only in rotation, "
        "shift and scale.",
        call=f"{source.few_code}\ncka = es.analysis.linear_cka(few, layers={layers})",
        blocks=[_picture(plot.cka_map(frame), "cka", "Linear CKA of each pair of layers.")],
        caveats=[
            *source.sampled_few,
            "CKA is biased upwards where rows are few compared with features, and a few directions of large variance "
            "can decide it.",
        ],
        frames={"cka": frame},
    )


def probes(source: Source) -> Section:
    """Class probes on a label column, next to their control task."""
    table, label = _label(source)
    layers = tuple(dict.fromkeys((source.store.layers[0], *source.some_layers)))
    counts = table[label].value_counts().sort(["count", label], descending=[True, False])
    classes = tuple(counts[label].head(CLASSES).to_list())
    forms = sorted(table["word"].unique().to_list())
    drawn = np.random.default_rng(source.seed).permutation(len(forms))[:PROBED_WORDS]
    n_train = len(drawn) * 3 // 5
    train: dict[str, tuple[str, ...]] = {forms[number]: () for number in drawn[:n_train]}
    test: dict[str, tuple[str, ...]] = {forms[number]: () for number in drawn[n_train:]}
    options: dict[str, Any] = {"layers": layers, "seeds": SEEDS, "max_contexts": 5, "control": True}
    probe = ClassProbe(label=label, classes=classes, training=Training(epochs=EPOCHS), **options)
    with config(progress=False):
        result = probe.fit(source.data, split_words(train, test, seed=source.seed)).score()
    summary = result.summary()
    test_f1 = summary.filter((pl.col("split") == "test") & (pl.col("metric") == "f1") & (pl.col("item") == ""))
    scores = test_f1.pivot("task", index="layer", values=["value", "deviation"], maintain_order=True)
    scores = scores.rename(
        {name: name.replace("value_", "F1, ").replace("deviation_", "±, ") for name in scores.columns}
    )
    layer, f1, control = _best_probe(summary)
    is_better = f1 - control >= CLEAR
    finding = f"A linear probe reads {label} best" if is_better else f"A linear probe does not read {label}, even"
    return Section(
        "probes",
        f"Probes of {label}",
        finding=f"{finding} at layer {layer}, the best on dev words: F1 {f1:.2f} on words that it has not seen, the "
        f"control task {control:.2f}.",
        method=f"Linear class probes of the {len(classes)} most frequent values of {label!r}, trained on "
        f"{len(train):,} words and scored on {len(test):,} others, at most 5 occurrences a word and class, "
        f"{len(SEEDS)} seeds (band: one standard deviation). The control task gives each word a random class "
        "(Hewitt & Liang 2019).",
        call=f"{source.data_code}\n"
        f"forms = sorted(data.table(columns=['word', {label!r}]).drop_nulls()['word'].unique().to_list())\n"
        f"drawn = np.random.default_rng({source.seed}).permutation(len(forms))[:{PROBED_WORDS}]\n"
        "train, test = ({forms[i]: () for i in part} for part in np.split(drawn, [len(drawn) * 3 // 5]))\n"
        f"split = es.probes.split_words(train, test, seed={source.seed})\n"
        f"probe = es.ClassProbe(label={label!r}, classes={classes!r}, layers={layers}, seeds={SEEDS}, "
        f"max_contexts=5, control=True, training=es.probes.Training(epochs={EPOCHS}))\n"
        "result = probe.fit(data, split).score()",
        blocks=[
            _picture(plot.probe_scores(summary), "probes", "Test words; the control task is dashed."),
            Table(scores),
        ],
        caveats=[
            *source.sampled,
            *result.notes,
            f"Small on purpose: {EPOCHS} epochs and few occurrences. `embstore probe classes` trains in full.",
        ],
        frames={"result": result.frame},
    )


def _best_probe(summary: pl.DataFrame) -> tuple[int, float, float]:
    """The layer of the highest F1 on dev, and on test its F1 and that of its control task; 0 for none."""
    f1 = summary.filter(pl.col("metric") == "f1", pl.col("item") == "").with_columns(pl.col("value").fill_null(0))
    is_control = pl.col("task") == "control"
    dev = f1.filter(pl.col("split") == "dev", ~is_control)
    layer = int(dev.sort("value", descending=True, maintain_order=True)["layer"][0])
    test = f1.filter(pl.col("split") == "test", pl.col("layer") == layer)
    return layer, float(test.filter(~is_control)["value"][0]), float(test.filter(is_control)["value"][0])


def _label(source: Source) -> tuple[pl.DataFrame, str]:
    """The label column that is probed, the one of the fewest values, and its table `word, label` without nulls."""
    columns = source.store.index.own_labels
    known = sorted((len(column.names), name) for name, column in columns.items())
    usable = [name for count, name in known if 2 <= count <= MAX_CLASSES]
    if not usable:
        has = ", ".join(f"{name} has {count:,} values" for count, name in known) or "the store has no labels"
        raise InvalidValueError(f"{has}: probes need a label column of 2 to {MAX_CLASSES} values")
    for name in usable:
        table = source.data.table(columns=["word", name]).drop_nulls().cast(pl.String)
        if table["word"].n_unique() >= 50 and table[name].n_unique() >= 2:
            return table, name
    raise InvalidValueError(f"fewer than 50 words have a label of {', '.join(usable)}")


def _stem(source: Source) -> str:
    return str(source.store.path).rstrip("/").rpartition("/")[2].rpartition(".")[0] or "store"


def _picture(figure: Any, name: str, caption: str) -> Picture:
    return Picture(plot.svg(figure, name=html.escape(name)), caption)


SECTIONS: dict[str, tuple[str, Callable[[Source], Section]]] = {
    "contents": ("What the store holds", contents),
    "geometry": ("Geometry by layer", geometry),
    "words": ("Most and least contextual words", words),
    "senses": ("Senses of ambiguous words", meanings),
    "similarity": ("Similarity of layers", similarity),
    "probes": ("Probes", probes),
}

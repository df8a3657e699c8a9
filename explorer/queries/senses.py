"""The senses of a word: clusters of its occurrences, with the words that mark each."""

from __future__ import annotations

from typing import Annotated, Any

import embstore as es
from embstore.analysis import Clusters
from embstore_explorer.parameters import Bounds, Layer, Number, Word
from embstore_explorer.queries.registry import Asked
from embstore_explorer.queries.words import described, found_rows, selecting
from embstore_explorer.stores import Explored, layer_of

SAMPLE = 5000  # occurrences that are clustered
EXAMPLES, MARKERS = 5, 8


def senses(
    asked: Asked,
    *,
    store: Number = 0,
    word: Word,
    layer: Layer = "last",
    clusters: Annotated[int, Bounds(1, 50)] | None = None,
) -> dict[str, Any]:
    """Cluster the occurrences of a word, as `embstore.senses`, without sinks; `codes`: the cluster of each row."""
    one = asked.store(store)
    found_rows(one, word, None)
    number = layer_of(one.store, layer)
    return dict(one.once(("senses", word, number, clusters), lambda: _senses(asked, one, word, number, clusters)))


def _senses(asked: Asked, one: Explored, word: str, layer: int, clusters: int | None) -> dict[str, Any]:
    asked.report(0, None)
    chosen = one.store.select(words=word)
    data = one.sinkless(chosen)
    found = es.senses(data, word, layers=layer, n_clusters=clusters, sample=SAMPLE)
    asked.report(1, None)
    table = found.occurrences
    markers = found.markers(MARKERS)
    source = "store" if len(data) == len(chosen) else selecting(word, sinks=False)
    given = "" if clusters is None else f", n_clusters={clusters}"
    return {
        "layer": layer,
        "silhouette": found.silhouette,
        "null": found.null,
        "p": found.p,
        "caveat": _caveat(found, len(data)),
        "clusters": [
            {
                "cluster": code,
                "count": count,
                "markers": markers[code],
                "examples": described(one.store, found.nearest(EXAMPLES).filter(cluster=code + 1)["occurrence"]),
            }
            for code, count in enumerate(found.frame["count"])
        ],
        "rows": table["occurrence"].to_list(),
        "codes": (table["cluster"] - 1).to_list(),
        "python": one.python(f"es.senses({source}, {word!r}, layers={layer}{given}, sample={SAMPLE})"),
    }


def _caveat(found: Clusters, count: int) -> str | None:
    said = list(found.caveats)
    if len(found.frame) < 2 and len(found.tried) < 2:  # where more were tried, `caveats` say so
        said.append("no number of clusters from 2 to 8 separates the occurrences: one sense, or too few occurrences")
    if len(found.occurrences) < count:
        said.append(f"a random {len(found.occurrences):,} of {count:,} occurrences are clustered")
    return "; ".join(said) or None

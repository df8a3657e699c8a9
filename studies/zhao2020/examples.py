"""The qualitative analysis of sections 4.2.3 and 4.3.1: pairs that change from layer to layer and with more context."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import polars as pl

from embstore_studies.zhao2020.pairs import (
    clearest,
    f1_by_subwords,
    flips,
    never_right,
    subword_counts,
    trajectories,
)
from embstore_studies.zhao2020.stores import LABEL, Run, Stores
from embstore_studies.zhao2020.words import N_CONTEXTS, WIDTH, Sentences, neighbors, pieces

N_GAINED, N_LOST, N_NEVER = 8, 4, 4


def examine(run: Run, stores: Stores, pairs: pl.DataFrame, best: int) -> dict[str, pl.DataFrame]:
    """Return the frames of Tables 1 and 9, of F1 by subwords, and of the pairs that change.

    `pairs`: those of all contexts, the whole sentence being "all". `best`: the layer at which contexts are compared.
    """
    sentences, counts = Sentences(stores.full, LABEL), subword_counts(stores.full)
    whole, dev = pairs.filter(context="all"), pairs.filter(split="dev")
    layers = sorted(whole["layer"].unique().to_list())
    contexts = [*sorted((each for each in dev["context"].unique() if each.isdigit()), key=int), "all"]
    contexts += ["passage"] if "passage" in dev["context"] else []
    by_layer = trajectories(dev.filter(context="all"), "layer", layers)
    counted = [{"by": "layer", "layer": None, **row} for row in flips(by_layer, layers)]
    for layer in layers if len(contexts) > 1 else ():
        paths = trajectories(dev.filter(layer=layer), "context", contexts)
        counted += [{"by": "context", "layer": layer, **row} for row in flips(paths, contexts)]
    shown = _Shown(run, stores, sentences)
    shown.add("layer", by_layer, layers)
    if len(contexts) > 1:
        shown.add("context", trajectories(dev.filter(layer=best), "context", contexts), contexts)
    number_of = dict(counts.iter_rows())
    shown.rows += [
        shown.row("never", row, layers, len(layers) - 1, WIDTH) for row in never_right(by_layer, number_of, N_NEVER)
    ]
    ambiguous = [
        {"word": word, "class": name, "context": text}
        for word, names in sentences.ambiguous()
        for name in names
        for text in sentences.of(word, name, N_CONTEXTS)
    ]
    return {
        "flips": pl.DataFrame(counted, schema_overrides={"layer": pl.Int64}),
        "examples": pl.DataFrame(shown.rows),
        "subwords": f1_by_subwords(whole.filter(split="test"), counts),
        "ambiguous": pl.DataFrame(ambiguous),
        "neighbors": neighbors(run.settings.neighbors_of, stores.subwords, run.settings.vectors),
    }


class _Shown:
    """Rows of examples: `kind`, the word with its subwords, class and contexts, how they were decided, a sentence."""

    def __init__(self, run: Run, stores: Stores, sentences: Sentences) -> None:
        self._encoder, self._sentences = stores.subwords, sentences
        self.rows: list[dict[str, Any]] = []

    def add(self, by: str, paths: pl.DataFrame, order: Sequence[Any]) -> None:
        for kind, count in (("gained", N_GAINED), ("lost", N_LOST)):
            for row in clearest(paths, count, gained=kind == "gained"):
                step = row["step"]
                context = str(order[step])
                width = int(context) if by == "context" and context.isdigit() else WIDTH
                self.rows.append(self.row(f"{kind} by {by}", row, order, step, width))

    def row(self, kind: str, row: dict[str, Any], order: Sequence[Any], step: int, width: int) -> dict[str, Any]:
        found = self._sentences.of(row["word"], row["class"], 1, width)
        return {
            "kind": kind,
            "word": row["word"],
            "subwords": pieces(self._encoder, row["word"]),
            "class": row["class"],
            "contexts": row["contexts"],
            "right": " ".join(map(str, row["right"])),
            "to": str(order[step]),
            "before": row["found"][step - 1],
            "after": row["found"][step],
            "sentence": found[0] if found else "",
        }

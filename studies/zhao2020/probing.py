"""Probing the stores of the study: Tables 5 and 6, Figures 5 and 6."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import polars as pl

import embstore.probes as probes
from embstore.probes import ClassProbe, ProbeResult, WordSplit
from embstore.probes.splits import SPLITS
from embstore.store import Store
from embstore_studies.zhao2020.pairs import pairs_of
from embstore_studies.zhao2020.stores import Run, Stores

OWN = "own"  # the vocabulary of representations that have a vector for every word


def probe_types(run: Run, stores: Stores) -> pl.DataFrame:
    """Probe one vector per word, the paper's Table 5; once more on the words of each table that has not all."""
    complete = {name: store for name, store in stores.words.items() if name not in stores.vocabularies}
    complete["AVG"] = stores.full
    frames = [probe_stores(run, "types", complete, level="type")]
    for name, vocabulary in stores.vocabularies.items():
        words = restrict(run.words, vocabulary)
        empty = [split for split in SPLITS if not words.of(split)]
        if empty:
            run.notes.append(f"{name} has vectors for too few words: no {empty[0]} words, so no table")
            continue
        shared = {**complete, name: stores.words[name]}
        frames.append(probe_stores(run, f"types-{name}", shared, level="type", vocabulary=name, words=words))
    return pl.concat(frames)


def probe_contexts(run: Run, stores: Stores) -> pl.DataFrame:
    """Probe one vector per context with the control task, the paper's Table 6; saves the model's probes.

    The frame has the word-class pairs of the model too; see `separated`.
    """
    bags = {"P-BERT": stores.bags[None], **stores.other_bags}
    frames = [probe_stores(run, "bags", bags, control=True)]
    folder = pretrained_probes(run)

    def save(probe: ClassProbe, result: ProbeResult) -> None:
        probe.save(folder)
        run.notes.extend(note for note in result.notes if "no probe" not in note)

    frames.append(probe_stores(run, "bert", {"BERT": stores.full}, control=True, pairs=True, then=save, needs=folder))
    return pl.concat(frames, how="diagonal")


def probe_windows(run: Run, stores: Stores) -> pl.DataFrame:
    """Probe the layers and the bag of subwords by context, dev scores: the paper's Figure 5.

    `context` is the number of words on each side, or "passage". The frame has the word-class pairs of the model too;
    see `separated`.
    """
    frames = []
    for context, store in stores.bert.items():
        if context is not None:
            name = context if isinstance(context, str) else f"window-{context}"
            both = {"BERT": store, "P-BERT": stores.bags[context]}
            frame = probe_stores(run, name, both, splits=("dev",), pairs=True)
            frames.append(frame.with_columns(pl.lit(str(context)).alias("context")))
    return pl.concat(frames) if frames else pl.DataFrame()


def pretrained_probes(run: Run) -> Path:
    """Return the folder of the probes of the pretrained model, which setup (a) applies."""
    return run.folder.path / "probes" / "pretrained"


def probe_stores(
    run: Run,
    table: str,
    stores: Mapping[str, Store],
    *,
    splits: Sequence[str] = ("dev", "test"),
    vocabulary: str = OWN,
    pairs: bool = False,
    words: WordSplit | None = None,
    then: Callable[[ClassProbe, ProbeResult], None] | None = None,
    needs: Path | None = None,
    **settings: Any,
) -> pl.DataFrame:
    """Train and score probes on each store, or return the stored table.

    `words`: those that take part, if not all. `pairs`: also the word-class pairs of the model. `then` is called with
    the probes and their result; `needs` is what it leaves.
    """
    words = run.words if words is None else words
    wanted = repr(run.settings.probe(**settings))

    def make() -> pl.DataFrame:
        results, frames = [], []
        for name, store in stores.items():
            probe = run.settings.probe(**settings).fit(store, words)
            result = probe.score(splits=splits, name=name)
            if then is not None:
                then(probe, result)
            results.append(result)
            if pairs and name == "BERT":
                frames.append(pairs_of(probe, name, splits))
        summary = ProbeResult.concat(results).summary().with_columns(pl.lit(vocabulary).alias("vocabulary"))
        return pl.concat([summary, *frames], how="diagonal")

    made_from = {
        "stores": {name: store.digest for name, store in stores.items()},
        "words": words.sha256,
        "probes": wanted,
        "splits": list(splits),
        "pairs": pairs,
    }
    frame = run.folder.table(table, made_from, make, needs=needs)
    share = frame.filter(pl.col("metric") == "converged")["value"].mean()
    if isinstance(share, float) and share < 1:
        run.notes.append(
            f"{table}: early stopping ended the training of {share:.1%} of the probes, the last epoch that of the "
            "others: scores depend on the number of epochs"
        )
    return frame


def apply_pretrained(run: Run, name: str, store: Store) -> pl.DataFrame:
    """Score the probes of the pretrained model on another store: setup (a)."""
    folder = pretrained_probes(run)
    probe = probes.load(folder)
    assert isinstance(probe, ClassProbe)

    def make() -> pl.DataFrame:
        result = probe.score(data=store, splits=("dev",), name=name)
        return result.summary().with_columns(pl.lit(OWN).alias("vocabulary"))

    made_from = {"store": store.digest, "probes": probe.fitted_.store, "settings": repr(probe)}
    return run.folder.table(f"applied-{name}", made_from, make)


def restrict(words: WordSplit, vocabulary: frozenset[str]) -> WordSplit:
    """Return the words of a split that are in a vocabulary."""
    parts = {
        split: {word: classes for word, classes in words.of(split).items() if word in vocabulary} for split in SPLITS
    }
    return WordSplit(parts["train"], parts["dev"], parts["test"], words.frequency)

"""Wrong types and values of every argument of probes are refused in one line, before any data is read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import embstore as es
from embstore.errors import EmbstoreError, InvalidValueError
from embstore.probes import Training, ambiguous_sentences, code_length, load, split_words, trace
from tests.probes import class_store, edge_store, tree_store

STRANGE: list[Any] = [object(), b"x", {}, float("nan"), [object()], 2j]
NOT_COUNTS = [*STRANGE, 0, -1, 1.5, "3", True, float("inf"), [1]]
NOT_SEEDS = [*STRANGE, -1, 2**64, 0.5, "0", True, None, "1,2"]
NOT_RATES = [*STRANGE, 0, -0.1, "0.1", True, float("inf"), -float("inf"), None]
NOT_FLAGS = [*STRANGE, 0, 1, "yes", None, np.True_]
NOT_NAMES = [*STRANGE, 3, True, "deep", None]
NOT_LISTS = [*STRANGE, 3, "distance", ["a", "a"], [1], []]

BOTH = {
    "seed": NOT_SEEDS,
    "seeds": [*NOT_SEEDS, [], [-1], [2**64], [0, 0], [1.5], ["0"]],
    "training": [*STRANGE, None, 3],
}
BOTH |= {"device": [*STRANGE, 3, None, "tpu", "cuda:99"], "memory": [*STRANGE, 0, -1, "much", 1.5, None]}
SETTINGS: dict[Any, dict[str, list[Any]]] = {
    es.ClassProbe: BOTH
    | {"label": [*STRANGE, 3, "", None], "level": NOT_NAMES, "kind": NOT_NAMES, "hidden_size": [*NOT_COUNTS, None]}
    | {"classes": NOT_LISTS, "max_contexts": NOT_COUNTS, "balance": NOT_FLAGS, "control": NOT_FLAGS},
    es.EdgeProbe: BOTH
    | {"kind": NOT_NAMES, "layerwise": NOT_FLAGS, "control": NOT_FLAGS, "n_sentences": NOT_COUNTS}
    | {"projection": [*NOT_COUNTS, None], "hidden_size": [*NOT_COUNTS, None], "mixing_rate": NOT_RATES}
    | {"dropout": [*STRANGE, -0.1, 1, 1.0, "0", True, float("inf")]},
    es.StructuralProbe: BOTH
    | {"tasks": [*NOT_LISTS, ["height"]], "rank": NOT_COUNTS, "n_sentences": NOT_COUNTS, "decay": [*NOT_RATES, 1.1]},
    Training: {"epochs": NOT_COUNTS, "batch_size": NOT_COUNTS, "learning_rate": NOT_RATES[:-1]}
    | {"patience": [each for each in NOT_COUNTS if each is True or each != 0]},
}


def refused(call: Callable[[], object], of: type[EmbstoreError] = InvalidValueError) -> str:
    with pytest.raises(of) as found:
        call()
    assert len(str(found.value)) < 400
    return str(found.value)


@pytest.mark.parametrize("kind", SETTINGS, ids=lambda kind: kind.__name__)
def test_wrong_settings_are_refused(kind: Any) -> None:
    for name, values in SETTINGS[kind].items():
        for value in values:
            message = refused(lambda name=name, value=value: kind(**{name: value}))
            assert name.removesuffix("s") in message, (name, value)
    kind()  # the defaults are allowed


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("stores")
    edges = edge_store.make(folder / "edges.zarr", sentences=10, layers=(0, 1), planted=1)
    return {
        "class": class_store.make(folder / "class.zarr"),
        "edge": edges,
        "tree": tree_store.make(folder / "trees.zarr", sentences=10),
        "fitted": es.EdgeProbe(training=Training(epochs=1, patience=0), projection=4, hidden_size=4).fit(
            edges.store, edges.splits["train"]
        ),
    }


def test_wrong_arguments_of_fit_score_and_load_are_refused(made: dict[str, Any], tmp_path: Path) -> None:
    classes, edges, trees = made["class"], made["edge"], made["tree"]
    words, train = split_words(*classes.lists), edges.splits["train"]
    fast = Training(epochs=1, patience=0)
    probe, edge, tree = es.ClassProbe(training=fast), es.EdgeProbe(training=fast), es.StructuralProbe(training=fast)
    fitted = made["fitted"]
    calls: list[Callable[[Any], object]] = [
        lambda value: probe.fit(value, words),
        lambda value: probe.fit(classes.store, value),
        lambda value: edge.fit(value, train),
        lambda value: edge.fit(edges.store, [value]),
        lambda value: edge.fit(edges.store, train, checkpoint=value),
        lambda value: tree.fit(value, trees.trees),
        lambda value: tree.fit(trees.store, value),
        lambda value: tree.fit(trees.store, [value]),
        lambda value: split_words(value, {"a": []}),
        lambda value: split_words({"a": []}, value),
        lambda value: split_words({"a": [], "b": []}, {"c": []}, seed=value),
        lambda value: split_words({"a": [], "b": []}, {"c": []}, dev_share=value),
        lambda value: fitted.score(train, resamples=value),
        lambda value: fitted.score(train, data=value),
        lambda value: fitted.predict(train, seed=value),
        lambda value: fitted.save(value),
        lambda value: load(value),
        lambda value: code_length(edges.store, train, probe=edge, fractions=value),
        lambda value: code_length(edges.store, train, probe=value),
        lambda value: trace(edges.store, value),
        lambda value: trace(edges.store, [value]),
        lambda value: trace(edges.store, [(fitted, train)], n_sentences=value),
        lambda value: trace(edges.store, [(fitted, train)], sample_seed=value),
        lambda value: trace(edges.store, [(fitted, train)]).find(value),
        lambda value: ambiguous_sentences(trace(edges.store, [(fitted, train)]), limit=value),
        lambda value: ambiguous_sentences(trace(edges.store, [(fitted, train)]), rule=value),
    ]
    for call in calls:
        for value in (object(), 1.5, float("nan"), -1, [object()]):
            refused(lambda call=call, value=value: call(value))
    for layers in (1.5, [0.5], object(), "x", [object()], 99, [], b"0"):
        refused(lambda layers=layers: es.EdgeProbe(layers=layers, training=fast).fit(edges.store, train))
    for path in ("", tmp_path, "a\0b", tmp_path / "none"):
        refused(lambda path=path: load(path), EmbstoreError)


def test_sizes_beyond_the_memory_are_refused_before_anything_is_allocated(made: dict[str, Any]) -> None:
    classes, edges, trees = made["class"], made["edge"], made["tree"]
    fast = Training(epochs=1, patience=0)
    words, train = split_words(*classes.lists), edges.splits["train"]
    for size in (2**31, 2**64):
        for call in (
            lambda size=size: es.ClassProbe(kind="mlp", hidden_size=size, training=fast).fit(classes.store, words),
            lambda size=size: es.EdgeProbe(projection=size, training=fast).fit(edges.store, train),
            lambda size=size: es.EdgeProbe(hidden_size=size, training=fast).fit(edges.store, train),
            lambda size=size: code_length(edges.store, train, probe=es.EdgeProbe(hidden_size=size, training=fast)),
        ):
            assert refused(call).startswith("memory 4")
        large = Training(epochs=1, batch_size=size, patience=0)  # no more than all examples
        es.ClassProbe(training=large).fit(classes.store, words)
        es.EdgeProbe(training=large, projection=4, hidden_size=4).fit(edges.store, train)
        es.StructuralProbe(training=large, rank=2).fit(trees.store, trees.trees)

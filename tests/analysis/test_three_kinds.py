"""BERT, GPT-2 and ELMo over one corpus, side by side in one geometry figure."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import embstore as es
from tests.drawn import svg_texts
from tests.models import tiny
from tests.models.tiny_elmo import save_elmo


@pytest.mark.slow
def test_stores_of_three_kinds_in_one_figure(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="figures need matplotlib")
    models = {
        "BERT": tiny.save("bert", tmp_path / "bert"),
        "GPT-2": tiny.save("gpt2", tmp_path / "gpt2"),
        "ELMo": save_elmo(tmp_path / "elmo"),
    }
    corpus = tiny.random_sentences(80, seed=1)
    summaries, anisotropy = {}, {}
    for name, model in models.items():
        store = es.extract(
            es.plan(corpus, model=model, options=es.ExtractionOptions(dtype="float32"), calibrate=False),
            tmp_path / f"{name}.zarr",
        )
        table = es.geometry(store, min_contexts=3)
        summaries[name] = es.analysis.summarize_geometry(table)
        vectors = store.select(layers=store.layers[-1]).vectors(dtype="float64")[0]
        unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
        pairs = len(unit) * (len(unit) - 1)
        anisotropy[name] = (np.square(unit.sum(0)).sum() - len(unit)) / pairs
    figure = es.plot.geometry_figure(summaries)
    assert len(figure.axes) == 4
    for axis in figure.axes:
        assert [line.get_label() for line in axis.lines if not line.get_label().startswith("_")] == list(models)
    drawn = {line.get_label(): line.get_ydata()[-1] for line in figure.axes[0].lines}
    for name, value in anisotropy.items():
        assert drawn[name] == pytest.approx(value, abs=1e-5)
    counts = [len(summary["layer"].unique()) for summary in summaries.values()]
    assert counts[2] == 3, "layers 0-2 of ELMo"
    es.plot.save(figure, tmp_path / "kinds.svg")
    assert {*models, "layer", *(axis.get_title() for axis in figure.axes)} <= svg_texts(tmp_path / "kinds.svg")

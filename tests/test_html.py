"""What notebooks show of results."""

from __future__ import annotations

from pathlib import Path

import polars as pl

import embstore as es
from embstore.html import html_frame
from embstore.store import VerifyReport
from embstore.store.check.verify import Fault
from tests.store_making import make_store


class Clusters:
    def __repr__(self) -> str:
        return "<Clusters of '<b>' in layer 1>"


def test_a_result_is_shown_as_its_text_and_its_frame() -> None:
    shown = html_frame(Clusters(), pl.DataFrame({"word": ["<b>"]}))
    assert shown.startswith("<p>Clusters of &#x27;&lt;b&gt;&#x27; in layer 1</p><div>")
    assert "<b>" not in shown


def test_a_report_counts_in_words(tmp_path: Path) -> None:
    report = VerifyReport(tmp_path, (Fault("commits", None, "torn"),), (), 1, 10)
    assert repr(report).endswith(": 1 fault, 1 partition>")


def test_results_in_a_terminal_are_a_line(tmp_path: Path) -> None:
    make_store(tmp_path / "labels.zarr")
    store = es.open(tmp_path / "labels.zarr")
    found = es.analysis.knn_labels(store, "upos", layers=[0, 5], k=(1, 3))
    count = found.frame["count"][0]
    expected = f"KnnLabels of upos: {count:,} occurrences, leave-one-word-out, layers [0, 5], k [1, 3]"
    assert repr(found) == f"<{expected}>"
    assert found._repr_html_().startswith(f"<p>{expected}</p><div>")
    assert repr(store.index).startswith(f"<Index of {store.n_rows:,} rows, ")

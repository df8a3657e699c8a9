"""Progress bars and progress functions, and what notebooks show of results."""

from __future__ import annotations

import io
import re
import sys
from contextlib import redirect_stderr
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import polars as pl
import pytest

import embstore as es
from embstore import progress
from embstore.html import html_frame
from embstore.progress import reporting
from embstore.store import VerifyReport
from embstore.store.check.verify import Fault
from tests.store_making import make_store


class Terminal(io.StringIO):
    """Standard error as a terminal."""

    def isatty(self) -> bool:
        return True


def shown(how: progress.Progress, stream: io.StringIO, steps: tuple[int, ...] = (0, 4, 10), *, seconds: int = 1) -> str:
    """Work with a stream as standard error, on a clock that advances whenever it is read; return what is written."""
    clock = count(10**9, seconds).__next__
    with (
        mock.patch.object(progress, "time", SimpleNamespace(time=clock)),
        mock.patch("tqdm.std.time", clock),
        redirect_stderr(stream),
        reporting(how, total=10, unit="rows", label="extract") as report,
    ):
        for done in steps:
            report(done)
    return stream.getvalue()


def test_a_terminal_shows_a_bar_without_colors() -> None:
    text = shown(None, Terminal())
    assert "extract" in text
    assert "4.00/10.0" in text
    assert "\x1b[3" not in text
    assert "rows" not in shown(None, Terminal(), (10,)), "of short work"


def test_a_pipe_shows_a_bar_on_request_only_and_a_terminal_unless_it_is_refused() -> None:
    assert shown(None, io.StringIO()) == shown(False, Terminal()) == ""
    assert "rows/s" in shown(True, io.StringIO())


@pytest.mark.parametrize("config", [{"IPKernelApp": {}}, {}])
def test_a_notebook_shows_a_bar_and_a_plain_ipython_shell_as_a_pipe_none(
    monkeypatch: pytest.MonkeyPatch, config: dict[str, object]
) -> None:
    shell = SimpleNamespace(config=config)
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    assert bool(shown(None, io.StringIO())) == bool(config)


def test_a_bar_that_appears_later_counts_from_the_beginning_of_the_work() -> None:
    assert re.search(r"10\.0/10\.0 \[[1-9]\d:00", shown(None, Terminal(), (10,), seconds=600))


def test_a_function_is_called_with_what_is_done_and_the_total() -> None:
    calls: list[tuple[int, int | None]] = []
    with reporting(lambda done, total: calls.append((done, total))) as report:
        report(1)
        report(2, 5)
        report(3)
    assert calls == [(1, None), (2, 5), (3, 5)]


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

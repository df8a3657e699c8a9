"""Progress bars and progress functions."""

from __future__ import annotations

import io
import re
import sys
from contextlib import redirect_stderr
from itertools import count
from types import SimpleNamespace
from unittest import mock

import pytest

from embstore import progress
from embstore.progress import reporting


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


def test_a_pipe_shows_a_bar_on_request_only() -> None:
    assert shown(None, io.StringIO()) == ""
    assert "rows/s" in shown(True, io.StringIO())


def test_false_shows_no_bar() -> None:
    assert shown(False, Terminal()) == ""


def test_short_work_shows_no_bar() -> None:
    assert "rows" not in shown(None, Terminal(), (10,))


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

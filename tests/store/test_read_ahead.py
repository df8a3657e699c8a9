"""Items are read in order, when they are needed or by a thread ahead of that, into memory that is free."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest

from embstore.store.reading import ahead
from embstore.store.reading.ahead import read_ahead


@pytest.mark.parametrize(("quick_seconds", "by_thread"), [(1e9, 0), (-1.0, 7)], ids=["quick", "slow"])
@pytest.mark.parametrize("n_ahead", [1, 2])
def test_items_stay_valid_until_the_next(
    monkeypatch: pytest.MonkeyPatch, quick_seconds: float, by_thread: int, n_ahead: int
) -> None:
    monkeypatch.setattr(ahead, "QUICK_SECONDS", quick_seconds)
    memory, threads = [-1] * (n_ahead + 1), []

    def read(number: int, place: int) -> int:
        memory[place] = number
        threads.append(threading.current_thread() is not threading.main_thread())
        return place

    for number, place in enumerate(read_ahead(read, 9, n_ahead=n_ahead)):
        assert memory[place] == number
        assert len(threads) <= number + 1 + n_ahead
    assert number == 8
    assert sum(threads) == by_thread, "the first two show that reading is slow"
    assert threads == sorted(threads)


def test_a_quick_item_between_slow_ones_keeps_the_thread_away(monkeypatch: pytest.MonkeyPatch) -> None:
    now, seconds, threads = [0.0], [9, 0, 9, 0, 9, 9, 0, 0], []
    monkeypatch.setattr(ahead.time, "perf_counter", lambda: now[0])

    def read(number: int, _: int) -> None:
        now[0] += seconds[number]
        threads.append(threading.current_thread() is not threading.main_thread())

    assert len(list(read_ahead(read, 8))) == 8
    assert threads == [False] * 6 + [True] * 2


@pytest.mark.parametrize("wrong", [0, 5])
def test_an_error_is_raised_in_place_of_its_item_and_no_thread_is_left(
    monkeypatch: pytest.MonkeyPatch, wrong: int
) -> None:
    monkeypatch.setattr(ahead, "QUICK_SECONDS", -1.0)
    before = threading.enumerate()

    def read(number: int, _: int) -> int:
        if number == wrong:
            raise ValueError(f"item {number}")
        return number

    found: list[int] = []
    with pytest.raises(ValueError, match=f"item {wrong}"):
        found.extend(read_ahead(read, 9))
    assert found == list(range(wrong))
    items = read_ahead(lambda number, _: number, 9)
    assert [next(items) for _ in range(4)] == [0, 1, 2, 3]
    items.close()
    assert set(threading.enumerate()) <= set(before)
    assert list(read_ahead(read, 0)) == []


def test_a_loop_that_is_left_halfway_lets_the_process_end() -> None:
    code = (
        "import time; from embstore.store.reading.ahead import read_ahead\n"
        "items = read_ahead(lambda number, _: time.sleep(0.005), 99)\n"
        "for _ in range(4): next(items)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=600)

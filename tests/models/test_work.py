"""Batches come back in order, at once or while the next one runs."""

from __future__ import annotations

import pytest

from embstore.models.transformer.work import collected


class Pass:
    def __init__(self, number, told):
        self.number, self.told = number, told
        told.append(("run", number))

    def collect(self, clock, times):
        self.told.append(("collect", self.number))
        return self.number


@pytest.mark.parametrize(
    ("ahead", "order"),
    [
        (0, "run0 get0 run1 get1 run2 get2 run3 get3"),
        (1, "run0 run1 get0 run2 get1 run3 get2 get3"),
        (2, "run0 run1 run2 get0 run3 get1 get2 get3"),
    ],
)
def test_later_batches_may_run_before_one_is_collected(ahead, order):
    told = []
    passes = (Pass(number, told) for number in range(4))
    assert list(collected(passes, None, None, ahead=ahead)) == [0, 1, 2, 3]
    assert told == [({"run": "run", "get": "collect"}[step[:3]], int(step[3])) for step in order.split()]


def test_all_that_waits_is_collected_where_memory_is_short():
    told = []
    passes = (None if number == 2 else Pass(number, told) for number in range(4))
    assert list(collected(passes, None, None, ahead=2)) == [0, 1, 3]
    assert [number for what, number in told if what == "collect"] == [0, 1, 3]
    assert told.index(("collect", 1)) < told.index(("run", 3))


def test_nothing_comes_of_no_batches():
    assert list(collected(iter(()), None, None, ahead=1)) == []

"""Batches come back in order, at once or while the next one runs."""

from __future__ import annotations

import pytest

from embstore.models.work import collected


class Pass:
    def __init__(self, number, told):
        self.number, self.told = number, told
        told.append(("run", number))

    def collect(self, clock, times):
        self.told.append(("collect", self.number))
        return self.number


@pytest.mark.parametrize(
    ("ahead", "order"), [(False, "run0 get0 run1 get1 run2 get2"), (True, "run0 run1 get0 run2 get1 get2")]
)
def test_the_next_batch_may_run_before_one_is_collected(ahead, order):
    told = []
    passes = (Pass(number, told) for number in range(3))
    assert list(collected(passes, None, None, ahead=ahead)) == [0, 1, 2]
    assert told == [({"run": "run", "get": "collect"}[step[:3]], int(step[3])) for step in order.split()]


def test_nothing_comes_of_no_batches():
    assert list(collected(iter(()), None, None, ahead=True)) == []

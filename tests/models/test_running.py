"""Batches return in order while later ones run, and vectors leave a simulated GPU in a stream of their own."""

from __future__ import annotations

from collections import deque
from contextlib import contextmanager

import numpy as np
import pytest
import torch

from embstore.models.running import HostCopies, RunningBatch, collect, launched, mark


class Pass:
    def __init__(self, number, log):
        self.number, self.log = number, log
        log.append(("run", number))
        self.done = self

    def synchronize(self):
        self.log.append(("collect", self.number))

    def pooled(self):
        return [self.number]


@pytest.mark.parametrize(
    ("ahead", "order"),
    [
        (0, "run0 get0 run1 get1 run2 get2 run3 get3"),
        (1, "run0 run1 get0 run2 get1 run3 get2 get3"),
        (2, "run0 run1 run2 get0 run3 get1 get2 get3"),
    ],
)
def test_later_batches_may_run_before_one_is_collect(ahead, order):
    log = []
    passes = (Pass(number, log) for number in range(4))
    assert list(collect(passes, ahead=ahead)) == [0, 1, 2, 3]
    assert log == [({"run": "run", "get": "collect"}[step[:3]], int(step[3])) for step in order.split()]


def test_waiting_batches_are_collected_when_memory_is_short():
    log = []
    passes = (None if number == 2 else Pass(number, log) for number in range(4))
    assert list(collect(passes, ahead=2)) == [0, 1, 3]
    assert [number for what, number in log if what == "collect"] == [0, 1, 3]
    assert log.index(("collect", 1)) < log.index(("run", 3))


def test_vectors_that_stay_on_the_device_are_yielded_as_soon_as_they_are_launched():
    """The host waits for a batch only when two later ones are launched, also across calls; not at the end of one."""
    log, waiting, last = [], deque(), torch.zeros(1)

    class Mark:
        def __init__(self, number):
            self.synchronize = lambda: log.append(number)

    def batches(*numbers):
        for number in numbers:
            yield None if number < 0 else RunningBatch(np.array([number]), (last,), Mark(number + 0.5))

    def run(*numbers):
        return [(int(pooled.rows[0]), list(log)) for pooled in launched(batches(*numbers), waiting, ahead=2)]

    assert run(0, 1, 2, 3) == [(0, []), (1, []), (2, []), (3, [0.5])]
    assert log == [0.5, 1.5]
    assert run(4) == [(4, [0.5, 1.5])]
    assert log == [0.5, 1.5, 2.5]
    assert all(isinstance(done, Mark) for done in waiting), "what waits holds no vectors"
    run(-1)
    assert log == [0.5, 1.5, 2.5, 3.5, 4.5], "memory is short"


GPU = torch.device("cuda", 1)


class Stream:
    def __init__(self, name, log):
        self.name, self.log, self.device = name, log, GPU

    def wait_stream(self, other):
        self.log.append(f"{self.name} waits for {other.name}")


@pytest.fixture
def log(monkeypatch):
    log, current = [], []
    current.append(Stream("compute", log))
    make_empty, copy = torch.empty, torch.Tensor.copy_

    class Event:
        def record(self, stream):
            log.append(f"mark in {stream.name}")

    @contextmanager
    def entered(stream):
        current.append(stream)
        yield
        current.pop()

    def current_stream(device):
        assert device == GPU
        return current[-1]

    def empty(*shape, dtype, pin_memory):
        assert pin_memory
        return make_empty(*shape, dtype=dtype)

    def copied(here, there, non_blocking=False):
        log.append(f"{'begin to copy' if non_blocking else 'copy'} in {current[-1].name}")
        return copy(here, there)

    monkeypatch.setattr(torch.cuda, "Stream", lambda device: Stream("leave", log))
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "stream", entered)
    monkeypatch.setattr(torch.cuda, "current_stream", current_stream)
    monkeypatch.setattr(torch, "empty", empty)
    monkeypatch.setattr(torch.Tensor, "copy_", copied)
    return log


def test_a_copy_waits_for_the_vectors_and_nothing_waits_for_it(log):
    vectors, extremes = torch.arange(6.0).half().reshape(1, 2, 3), torch.tensor([[0.0], [5.0]])
    mark(GPU)
    copying = HostCopies(GPU).begin(np.arange(2), (vectors, extremes), ("residual", "query"))
    mark(GPU)
    assert log == [
        "mark in compute",
        "leave waits for compute",
        "begin to copy in leave",
        "begin to copy in leave",
        "mark in leave",
        "mark in compute",
    ]
    assert all(torch.equal(here, there) for here, there in zip(copying.vectors, (vectors, extremes), strict=True))
    assert copying.source[0] is vectors  # it must not be freed before the copy has ended

"""Vectors leave a card in a stream of their own, after what made them; the card itself is played here."""

from __future__ import annotations

from contextlib import contextmanager

import numpy as np
import pytest
import torch

from embstore.models.transformer.stopwatch import stopwatch
from embstore.models.transformer.transfer import HostCopies, to_device

CARD = torch.device("cuda", 1)


class Stream:
    def __init__(self, name, told):
        self.name, self.told, self.device = name, told, CARD

    def wait_stream(self, other):
        self.told.append(f"{self.name} waits for {other.name}")


@pytest.fixture
def told(monkeypatch):
    told, current = [], []
    current.append(Stream("compute", told))
    make_empty, copy = torch.empty, torch.Tensor.copy_

    class Event:
        def __init__(self, *, enable_timing):
            assert enable_timing

        def record(self, stream):
            told.append(f"mark in {stream.name}")

    @contextmanager
    def entered(stream):
        current.append(stream)
        yield
        current.pop()

    def current_stream(device):
        assert device == CARD
        return current[-1]

    def empty(*shape, dtype, pin_memory):
        assert pin_memory
        return make_empty(*shape, dtype=dtype)

    def copied(here, there, non_blocking=False):
        told.append(f"{'begin to copy' if non_blocking else 'copy'} in {current[-1].name}")
        return copy(here, there)

    monkeypatch.setattr(torch.cuda, "Stream", lambda device: Stream("leave", told))
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "stream", entered)
    monkeypatch.setattr(torch.cuda, "current_stream", current_stream)
    monkeypatch.setattr(torch, "empty", empty)
    monkeypatch.setattr(torch.Tensor, "copy_", copied)
    return told


def test_a_copy_waits_for_the_vectors_and_nothing_waits_for_it(told):
    clock = stopwatch(CARD)
    vectors, extremes = torch.arange(6.0).half().reshape(1, 2, 3), torch.tensor([[0.0], [5.0]])
    clock.mark()
    copying = HostCopies(CARD).begin((vectors, extremes), clock)
    clock.mark()
    assert told == [
        "mark in compute",
        "leave waits for compute",
        "mark in leave",
        "begin to copy in leave",
        "begin to copy in leave",
        "mark in leave",
        "mark in compute",
    ]
    assert all(torch.equal(here, there) for here, there in zip(copying.host, (vectors, extremes), strict=True))
    assert copying.device[0] is vectors  # it must live until the copy has ended


def test_arrays_go_there_through_pinned_memory(monkeypatch):
    asked = []
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda self: (asked.append("pin"), self)[1])
    monkeypatch.setattr(torch.Tensor, "to", lambda self, device, **options: (asked.append((device, options)), self)[1])
    array = np.arange(6).reshape(2, 3).T
    assert np.array_equal(to_device(array, CARD).numpy(), array)
    assert asked == ["pin", (CARD, {"non_blocking": True})]


def test_on_a_cpu_nothing_is_copied():
    vectors = torch.zeros(1, 2, 3)
    cpu = torch.device("cpu")
    assert HostCopies(cpu).begin((vectors,), stopwatch(cpu)).host[0] is vectors

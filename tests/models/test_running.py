"""Batches return in order while later ones run on a device."""

from __future__ import annotations

from collections import deque

import numpy as np
import torch

from embstore.models.running import RunningBatch, launched


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

"""Executors that complete tasks in any order, run some twice, and pickle what passes through them."""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np


class Scattered(ThreadPoolExecutor):
    """Run tasks in threads, pickled as for another process; tasks end in an order drawn with `seed`.

    `order`: the order in which the tasks end, drawn if not given. `done`: how many tasks have run.
    """

    def __init__(self, seed: int = 0, *, n_workers: int = 3, order: list[int] | None = None) -> None:
        super().__init__(n_workers)
        self._rng = np.random.default_rng(seed)
        self._order = order
        self.done = 0

    def submit(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        place = int(self._rng.integers(5)) if self._order is None else self._order[self.done % len(self._order)]
        call = pickle.dumps((function, args, kwargs))
        self.done += 1
        return super().submit(_run, call, 0.004 * place, self.done % 3 == 0)


def _run(call: bytes, seconds: float, twice: bool) -> Any:
    time.sleep(seconds)
    for _ in range(1 + twice):
        function, args, kwargs = pickle.loads(call)
        result = pickle.dumps(function(*args, **kwargs))
    return pickle.loads(result)

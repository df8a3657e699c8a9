"""Read items before they are needed, where reading them takes long."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from queue import SimpleQueue
from threading import Thread
from typing import TypeVar

T = TypeVar("T")
QUICK_SECONDS = 2e-3  # for an item that is in memory: to hand it over from a thread takes as long as to read it
SLOW_ITEMS = 2  # one after the other, before a thread is started: the first item may have to open files


def read_ahead(read: Callable[[int, int], T], count: int, *, n_ahead: int = 2) -> Iterator[T]:
    """Yield items 0 to `count - 1`; once reading is slow, a thread stays `n_ahead` items ahead.

    `read` is called with the number of an item and with that of the memory it may use, from 0 to `n_ahead`: what was
    read there before is no longer needed.
    """
    n_slow = 0
    for number in range(count):
        if n_slow == SLOW_ITEMS:
            yield from _by_thread(read, range(number, count), n_ahead)
            return
        began = time.perf_counter()
        item = read(number, 0)
        n_slow = n_slow + 1 if time.perf_counter() - began > QUICK_SECONDS else 0
        yield item


def _by_thread(read: Callable[[int, int], T], numbers: range, n_ahead: int) -> Iterator[T]:
    """Yield items that a thread reads; small ones are handed over fastest by queues without a Python lock."""
    ready: SimpleQueue[T | BaseException] = SimpleQueue()
    allowed: SimpleQueue[bool] = SimpleQueue()
    stopped = False

    def work() -> None:
        try:
            for number in numbers:
                if not allowed.get() or stopped:
                    return
                ready.put(read(number, number % (n_ahead + 1)))
        except BaseException as error:  # raised again in the thread that waits for the item
            ready.put(error)

    for _ in range(n_ahead):
        allowed.put(True)
    thread = Thread(target=work, name="embstore-read-ahead", daemon=True)  # a loop left halfway lets Python end
    thread.start()
    try:
        for _ in numbers:
            item = ready.get()
            if isinstance(item, BaseException):
                raise item
            allowed.put(True)
            yield item
    finally:
        stopped = True
        allowed.put(False)
        thread.join()

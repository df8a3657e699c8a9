"""What probes of every family need: layers of a store, batches read ahead of their use, seeded draws."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from queue import SimpleQueue
from threading import Thread
from typing import TypeVar

import torch

from embstore.errors import InvalidValueError
from embstore.store import Selection, Store
from embstore.store.layout import resolve_layers

T = TypeVar("T")
Layers = int | str | Sequence[int] | None
READ_AHEAD = 2  # batches that are read before they are needed
VERIFY = "run embstore verify to find damaged rows"


def layers_of(data: Store | Selection, layers: Layers) -> tuple[int, ...]:
    """Return the layers of a store or selection that are meant, ascending; see `Probe`.

    Raises InvalidValueError for a layer that is not stored.
    """
    return resolve_layers(layers, tuple(sorted(data.layers)), ascending=True)


def require_distinct(what: str, values: Sequence[object]) -> None:
    """Raise InvalidValueError for no values, or one that is given twice."""
    if not values or len(set(values)) < len(values):
        raise InvalidValueError(f"{what} must be one or more, each once, not {list(values)}")


def seeded(*key: object) -> torch.Generator:
    """Return a generator whose random numbers depend on the key only."""
    digest = hashlib.sha256(repr(key).encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:7], "little"))


def store_of(data: Store | Selection) -> Store:
    return data if isinstance(data, Store) else data.store


def read_ahead(read: Callable[[int], T], count: int) -> Iterator[T]:
    """Yield `read(0)` to `read(count - 1)`, read by a thread that stays READ_AHEAD items ahead.

    An item may reuse the memory of the item READ_AHEAD + 1 before it. Queues without a Python lock are used, since
    small batches are read faster than a thread pool hands them over.
    """
    ready: SimpleQueue[T | BaseException] = SimpleQueue()
    allowed: SimpleQueue[bool] = SimpleQueue()
    stopped = False

    def work() -> None:
        try:
            for number in range(count):
                if not allowed.get() or stopped:
                    return
                ready.put(read(number))
        except BaseException as error:  # raised again in the thread that waits for the item
            ready.put(error)

    for _ in range(READ_AHEAD):
        allowed.put(True)
    thread = Thread(target=work, name="embstore-probes")
    thread.start()
    try:
        for _ in range(count):
            item = ready.get()
            if isinstance(item, BaseException):
                raise item
            allowed.put(True)
            yield item
    finally:
        stopped = True
        allowed.put(False)
        thread.join()

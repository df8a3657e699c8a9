"""An iterator that runs ahead of its consumer in a thread of its own."""

from __future__ import annotations

from collections.abc import Generator, Iterable
from queue import Full, Queue
from threading import Event, Thread
from typing import TypeVar

T = TypeVar("T")


def prefetched(items: Iterable[T], *, ahead: int = 2) -> Generator[T, None, None]:
    """Yield the items, made up to `ahead` of time in another thread; its errors are raised here.

    Closing the generator ends the thread.
    """
    queue: Queue[tuple[T | None, BaseException | None]] = Queue(ahead)
    closed = Event()

    def put(item: T | None, error: BaseException | None) -> bool:
        while not closed.is_set():
            try:
                queue.put((item, error), timeout=0.1)
            except Full:
                continue
            return True
        return False

    def produce() -> None:
        try:
            for item in items:
                if not put(item, None):
                    return
            put(None, StopIteration())
        except BaseException as error:
            put(None, error)

    thread = Thread(target=produce, name="embstore-prefetch", daemon=True)
    thread.start()
    try:
        while True:
            item, error = queue.get()
            if isinstance(error, StopIteration):
                return
            if error is not None:
                raise error
            yield item  # type: ignore[misc]
    finally:
        closed.set()
        thread.join()

"""Examples that probes learn from: vectors of a store or in memory, read in batches, the next one ahead."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from embstore.store import Store

READ_AHEAD = 2


class Examples(Protocol):
    """Vectors of some examples in some layers, by their places from 0."""

    width: int
    dtype: np.dtype[Any]

    def __len__(self) -> int: ...

    def read(self, places: NDArray[np.int64], layers: Sequence[int], out: NDArray[Any], /) -> None:
        """Fill `out` [layer, n, width], C-contiguous and of `dtype`."""
        ...


class StoredExamples:
    """Occurrences of a store, `rows` int64 [n]; nothing is held in memory."""

    def __init__(self, store: Store, rows: NDArray[np.int64]) -> None:
        self._store = store
        self._rows = rows
        self.width = store.hidden_size
        self.dtype = store.vector_dtype

    def __len__(self) -> int:
        return len(self._rows)

    def read(self, places: NDArray[np.int64], layers: Sequence[int], out: NDArray[Any], /) -> None:
        self._store.gather_layers(self._rows[places], layers, out=out)


class HeldExamples:
    """Vectors in memory: an array [n, width] float32 a layer."""

    def __init__(self, vectors: Mapping[int, NDArray[np.float32]]) -> None:
        self._vectors = vectors
        first = next(iter(vectors.values()))
        self._count, self.width = first.shape
        self.dtype = np.dtype(np.float32)

    def __len__(self) -> int:
        return int(self._count)

    def read(self, places: NDArray[np.int64], layers: Sequence[int], out: NDArray[Any], /) -> None:
        for layer, target in zip(layers, out, strict=True):
            np.take(self._vectors[layer], places, 0, target, "clip")


def iter_batches(
    examples: Examples,
    order: NDArray[np.int64],
    layers: Sequence[int],
    *,
    batch_size: int,
    device: torch.device,
) -> Iterator[tuple[NDArray[np.int64], torch.Tensor]]:
    """Yield (places, columns): float32 [layer, n, width + 1], the last column 1, good until the next is asked for.

    `order`: places, cut into batches as they come; within a batch they ascend. A thread reads ahead.
    """
    size = len(layers) * batch_size
    pinned = device.type == "cuda"
    stored = torch.from_numpy(np.empty(0, examples.dtype)).dtype
    rooms = [torch.empty(size * examples.width, dtype=stored, pin_memory=pinned) for _ in range(READ_AHEAD + 1)]
    columns = torch.empty(size * (examples.width + 1), device=device)
    batches = [np.sort(order[start : start + batch_size]) for start in range(0, len(order), batch_size)]

    def read(number: int) -> torch.Tensor:
        places = batches[number]
        wanted = (len(layers), len(places), examples.width)
        room = rooms[number % len(rooms)][: int(np.prod(wanted))].view(wanted)
        examples.read(places, layers, room.numpy())
        return room

    copied: list[torch.cuda.Event | None] = [None] * len(rooms)

    def wait_and_read(number: int) -> torch.Tensor:
        event = copied[number % len(rooms)]
        if event is not None:
            event.synchronize()  # what the room held may still be on its way to the card
        return read(number)

    with ThreadPoolExecutor(1, "embstore-examples") as reader:
        waiting = [reader.submit(wait_and_read, number) for number in range(min(READ_AHEAD, len(batches)))]
        try:
            for number, places in enumerate(batches):
                vectors = waiting.pop(0).result()
                shape = (len(layers), len(places), examples.width + 1)
                out = columns[: int(np.prod(shape))].view(shape)
                out[:, :, :-1].copy_(vectors.to(device, non_blocking=True))
                out[:, :, -1] = 1
                if pinned:
                    copied[number % len(rooms)] = event = torch.cuda.Event()  # type: ignore[no-untyped-call]
                    event.record()
                if number + READ_AHEAD < len(batches):
                    waiting.append(reader.submit(wait_and_read, number + READ_AHEAD))
                yield places, out
        finally:
            for future in waiting:
                future.cancel()

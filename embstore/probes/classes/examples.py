"""Examples of class probes: vectors of a store or in memory, read in batches, the next ones ahead of their use."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from embstore.probes.reading import READ_AHEAD, read_ahead
from embstore.probes.training import digest_of
from embstore.store import Store


class Examples(Protocol):
    """Vectors of examples in several layers; examples are numbered from 0."""

    width: int
    dtype: np.dtype[Any]

    def __len__(self) -> int: ...

    def read(self, numbers: NDArray[np.int64], layers: Sequence[int], out: NDArray[Any], /) -> None:
        """Fill `out` [layer, n, width], C-contiguous and of `dtype`."""
        ...

    def digest(self) -> str:
        """Return a hash that identifies the vectors."""
        ...


class StoredExamples:
    """Occurrences of a store, `rows` int64 [n]; their vectors are read when they are needed."""

    def __init__(self, store: Store, rows: NDArray[np.int64]) -> None:
        self._store, self._rows = store, rows
        self.width = store.hidden_size
        self.dtype = store.vector_dtype

    def __len__(self) -> int:
        return len(self._rows)

    def read(self, numbers: NDArray[np.int64], layers: Sequence[int], out: NDArray[Any], /) -> None:
        self._store.gather_layers(self._rows[numbers], layers, out=out)

    def digest(self) -> str:
        return digest_of(self._store.digest, self._rows)


class ArrayExamples:
    """Vectors in memory: an array [n, width] float32 for each layer."""

    def __init__(self, vectors: Mapping[int, NDArray[np.float32]]) -> None:
        self._vectors = vectors
        first = next(iter(vectors.values()))
        self._count, self.width = first.shape
        self.dtype = np.dtype(np.float32)

    def __len__(self) -> int:
        return int(self._count)

    def read(self, numbers: NDArray[np.int64], layers: Sequence[int], out: NDArray[Any], /) -> None:
        for layer, target in zip(layers, out, strict=True):
            np.take(self._vectors[layer], numbers, 0, target, "clip")

    def digest(self) -> str:
        return digest_of(*(part for layer in sorted(self._vectors) for part in (layer, self._vectors[layer])))


@dataclass(frozen=True, eq=False)
class LabelledExamples:
    """Examples with their labels: `targets` bool [groups, outputs], and the `group` int64 [n] of each example."""

    examples: Examples
    group: NDArray[np.int64]
    targets: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.examples)


def iter_batches(
    examples: Examples,
    order: NDArray[np.int64],
    layers: Sequence[int],
    *,
    batch_size: int,
    device: torch.device,
) -> Iterator[tuple[NDArray[np.int64], torch.Tensor]]:
    """Yield (numbers, columns) of each batch; columns are float32 [layer, n, width + 1], the last column 1.

    `order` is cut into batches; within a batch the numbers ascend. The columns are overwritten by the next batch.
    """
    size = len(layers) * batch_size
    pinned = device.type == "cuda"
    stored = torch.from_numpy(np.empty(0, examples.dtype)).dtype
    buffers = [torch.empty(size * examples.width, dtype=stored, pin_memory=pinned) for _ in range(READ_AHEAD + 1)]
    columns = torch.empty(size * (examples.width + 1), device=device)
    batches = [np.sort(order[start : start + batch_size]) for start in range(0, len(order), batch_size)]
    copied: list[torch.cuda.Event | None] = [None] * len(buffers)

    def read(number: int) -> torch.Tensor:
        event = copied[number % len(buffers)]
        if event is not None:
            event.synchronize()  # the buffer may still be copied to the GPU
        shape = (len(layers), len(batches[number]), examples.width)
        buffer = buffers[number % len(buffers)][: int(np.prod(shape))].view(shape)
        examples.read(batches[number], layers, buffer.numpy())
        return buffer

    for number, vectors in enumerate(read_ahead(read, len(batches))):
        shape = (len(layers), len(batches[number]), examples.width + 1)
        out = columns[: int(np.prod(shape))].view(shape)
        out[:, :, :-1].copy_(vectors.to(device, non_blocking=True))
        out[:, :, -1] = 1
        if pinned:
            copied[number % len(buffers)] = event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            event.record()
        yield batches[number], out

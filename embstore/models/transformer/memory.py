"""The memory of a device: how large a batch fits, and what is done where one does not."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Generic, TypeVar

import torch

from embstore.errors import DeviceMemoryError, SmallerBatchesWarning
from embstore.models.transformer.batches import Batch

SIZES = (65536, 32768, 16384, 8192, 4096, 2048, 1024)  # subwords of a batch that may be chosen
SHARE = 0.5  # of the free memory that a batch may take: the allocator keeps more than is in use
_SIGNS = ("out of memory", "ALLOC_FAILED", "can't allocate memory", "not enough memory")

T = TypeVar("T")


def fitting_batch(free_nbytes: int, *, position_nbytes: int) -> int:
    """Return how many subwords make a batch where so many bytes are free and each position costs so many.

    Powers of two, so that a little more or less that is free gives the same batches.
    """
    for size in SIZES:
        if size * position_nbytes <= SHARE * free_nbytes:
            return size
    return SIZES[-1]


def free_nbytes(device: torch.device) -> int:
    """Return what is free on a CUDA device, what torch keeps for itself and does not use included."""
    free, _ = torch.cuda.mem_get_info(device)
    return int(free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device))


def means_out_of_memory(error: BaseException) -> bool:
    """Tell whether an error is that of a device or host that has no memory left."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(sign in str(error) for sign in _SIGNS)


def release(device: torch.device) -> None:
    """Give back what torch keeps for itself and does not use."""
    if device.type == "cuda":
        torch.cuda.empty_cache()


@contextmanager
def memory_needed(task: str, device: torch.device) -> Iterator[None]:
    """Let a lack of memory be one line that names what it was wanted for."""
    try:
        yield
    except DeviceMemoryError:
        raise
    except Exception as error:
        if not means_out_of_memory(error):
            raise
        raise DeviceMemoryError(f"{task} does not fit into the memory of {device}: {ADVICE}") from error


ADVICE = "end what else uses it, choose compute dtype float16 or a smaller model, or run on the cpu"


class Halving(Generic[T]):
    """Runs batches, those in two that the memory does not hold, down to one sentence.

    `most`: the positions of a batch since one did not fit, for this and every later call; None: none failed yet.
    """

    def __init__(self, device: torch.device) -> None:
        self.most: int | None = None
        self._device = device

    def run(
        self, batches: Iterable[Batch], run: Callable[[Batch], T], split: Callable[[Batch], Sequence[Batch]]
    ) -> Iterator[T | None]:
        """Yield what `run` makes of each batch, or None where memory is short: what waits should be collected.

        `split` makes two or more batches of one. Raises DeviceMemoryError where one sentence alone does not fit.
        """
        for batch in batches:
            waiting = [batch]
            while waiting:
                one = waiting.pop()
                if self.most is not None and one.positions > self.most and len(one.sentences) > 1:
                    waiting.extend(reversed(split(one)))
                    continue
                result, fits = self._try(one, run)
                if fits:
                    yield result
                    continue
                yield None
                release(self._device)
                if len(one.sentences) > 1:
                    self._shrink(one)
                    waiting.append(one)
                    continue
                yield self._alone(one, run)

    @contextmanager
    def on_trial(self) -> Iterator[None]:
        """Say nothing of what does not fit, and forget it: a model may make too much of one kind of batch alone."""
        before = self.most
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SmallerBatchesWarning)
            try:
                yield
            finally:
                self.most = before

    def _try(self, batch: Batch, run: Callable[[Batch], T]) -> tuple[T | None, bool]:
        """Run a batch; what it held is let go before this returns, since the error keeps it alive."""
        try:
            return run(batch), True
        except Exception as error:
            if not means_out_of_memory(error):
                raise
            return None, False

    def _alone(self, batch: Batch, run: Callable[[Batch], T]) -> T:
        task = f"one sentence of {batch.positions:,} subwords, special ones included,"
        try:
            return run(batch)
        except Exception as error:
            if not means_out_of_memory(error):
                raise
            raise DeviceMemoryError(
                f"{task} does not fit into the memory of {self._device}: give a smaller --max-length, or {ADVICE}"
            ) from error

    def _shrink(self, batch: Batch) -> None:
        first = self.most is None
        self.most = max(1, batch.positions // 2)
        if first:
            warnings.warn(
                f"a batch of {batch.positions:,} subwords did not fit into the memory of {self._device}: it and those "
                f"after it are run in parts of {self.most:,} or fewer, which may change the last bits of vectors; give "
                f"--batch-subwords {self.most} to make such a store again",
                SmallerBatchesWarning,
                stacklevel=2,
            )

"""Memory of a device: how large a batch fits, and what happens when one does not."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

import torch

from embstore.errors import DeviceMemoryError, ModelError, SmallerBatchesWarning
from embstore.models.batching import Batch
from embstore.models.running import RunningBatch

SIZES = (65536, 32768, 16384, 8192, 4096, 2048, 1024)  # batch sizes that may be chosen, in subwords
SHARE = 0.5  # of the free memory that a batch may take: the allocator reserves more than is in use
ADVICE = "end what else uses it, choose compute dtype float16 or a smaller model, or run on the cpu"
_MESSAGES = ("out of memory", "ALLOC_FAILED", "can't allocate memory", "not enough memory")


def fitting_batch(free_nbytes: int, *, position_nbytes: int, held: Callable[[int], int] = lambda size: 0) -> int:
    """Return the batch size in subwords for that many free bytes, where each position takes `position_nbytes`.

    `held`: the bytes of what else is kept there next to batches of a size. Only powers of two, so that small changes of
    the free memory give the same batches.
    """
    fits = (size for size in SIZES if size * position_nbytes <= SHARE * (free_nbytes - held(size)))
    return next(fits, SIZES[-1])


def free_nbytes(device: torch.device) -> int:
    """Return the free bytes of a CUDA device, including those that torch has reserved and does not use."""
    free, _ = torch.cuda.mem_get_info(device)
    return int(free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device))


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether the error means that the device or the host has no memory left."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(message in str(error) for message in _MESSAGES)


def is_fault(error: BaseException) -> bool:
    """Return whether a GPU has failed, after which its process cannot use it any more."""
    return isinstance(error, getattr(torch, "AcceleratorError", ())) or "CUDA error" in str(error)


@contextmanager
def memory_needed(task: str, device: torch.device, *, advice: str = ADVICE) -> Iterator[None]:
    """Let the block raise DeviceMemoryError, which names the task, without memory, and ModelError if a GPU fails."""
    try:
        yield
    except DeviceMemoryError:
        raise
    except Exception as error:
        if is_out_of_memory(error):
            raise DeviceMemoryError(f"{task} does not fit into the memory of {device}: {advice}") from error
        if is_fault(error):
            why = str(error).splitlines()[0]
            raise ModelError(f"{task} ended the use of {device}: {why}; CUDA_LAUNCH_BLOCKING=1 shows where") from error
        raise


class SplittingRunner:
    """Runs batches and splits those that do not fit into the memory, down to single sentences.

    `max_positions`: the size that later batches are split to, for every later call; None until a batch does not fit.
    """

    def __init__(self, device: torch.device) -> None:
        self.max_positions: int | None = None
        self._device = device

    def run(
        self, batches: Iterable[Batch], run: Callable[[Batch], RunningBatch], split: Callable[[Batch], Sequence[Batch]]
    ) -> Iterator[RunningBatch | None]:
        """Yield `run(batch)` for each batch, or None when memory is short: the caller should free what it holds.

        `split` makes two or more batches of one. Raises DeviceMemoryError if a single sentence does not fit.
        """
        for batch in batches:
            waiting = [batch]
            while waiting:
                one = waiting.pop()
                several = len(one.sentences) > 1
                if self.max_positions is not None and one.positions > self.max_positions and several:
                    waiting.extend(reversed(split(one)))
                    continue
                result, fits = self._try(one, run)
                if fits:
                    yield result
                    result = None  # is freed before the next batch is run
                    continue
                yield None
                if self._device.type == "cuda":
                    torch.cuda.empty_cache()
                if several:
                    self._reduce(one)
                    waiting.append(one)
                    continue
                task = f"one sentence of {one.positions:,} subwords, special ones included,"
                with memory_needed(task, self._device, advice=f"give a smaller --max-length, or {ADVICE}"):
                    result = run(one)
                yield result

    @contextmanager
    def trial(self) -> Iterator[None]:
        """Ignore batches that do not fit inside the block: another batching may need less memory."""
        before = self.max_positions
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SmallerBatchesWarning)
            try:
                yield
            finally:
                self.max_positions = before

    def _try(self, batch: Batch, run: Callable[[Batch], RunningBatch]) -> tuple[RunningBatch | None, bool]:
        """Run a batch; returning frees the tensors that the error would keep alive."""
        try:
            return run(batch), True
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            return None, False

    def _reduce(self, batch: Batch) -> None:
        first = self.max_positions is None
        self.max_positions = max(1, batch.positions // 2)
        if first:
            warnings.warn(
                f"a batch of {batch.positions:,} subwords did not fit into the memory of {self._device}: it and later "
                f"ones are run in parts of at most {self.max_positions:,}, which may change the last bits of vectors; "
                f"--batch-subwords {self.max_positions} reproduces such a store",
                SmallerBatchesWarning,
                stacklevel=2,
            )

"""A GPU played on the CPU, which finds races between streams: torch's CUDA Sanitizer, fed by every operator.

Tensors stay on the CPU, and the code under test is given the device cuda:1 while cuda:0 is the current one. Each
stream of the GPU, and each thread of the host, is a line of time; the sanitizer finds accesses to the same memory that
neither a stream, an event, a wait, a future nor a queue puts in an order. All memory that operators have seen is kept,
as freed memory that is used again looks like a race. Whatever makes the host wait for the GPU is noted.

Threads are played as well, see `played_threads`: in one real thread, so that every run is the same.
"""

from __future__ import annotations

import contextlib
import threading
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

import numpy as np
import torch
from torch.cuda._sanitizer import EventHandler
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map, tree_map_only

GPU = torch.device("cuda", 1)
HOST = 99  # the stream number of the first thread of the host; the others have larger ones
VIEWS = {"view", "slice", "select", "transpose", "t", "unsqueeze", "squeeze", "expand", "detach", "_unsafe_view",
         "as_strided", "permute", "alias", "split", "_reshape_alias", "unbind", "diagonal", "is_pinned"}  # fmt: skip


WAITS = {"_local_scalar_dense", "item", "is_nonzero", "equal", "allclose", "nonzero", "argwhere", "masked_select",
         "_unique2", "unique_dim", "unique_consecutive", "bincount"}  # fmt: skip
UPLOADS = (torch.tensor, torch.as_tensor, torch.Tensor.to)
PRETENDED: dict[Any, Any] = {torch.Tensor.device: GPU, torch.Tensor.is_cuda: True}
FETCHES = (torch.Tensor.cpu, torch.Tensor.numpy, torch.Tensor.tolist)


class PlayedCuda:
    """What was found: `races`, `kernels`, the names of the operators that ran in each stream, and `waits` of the host.

    `Stream` and `Event` are those of the GPU; tests may break a method of theirs. `n_made`: events made. `line`: the
    thread of the host that runs now.
    """

    def __init__(self) -> None:
        self.handler, self.lock = EventHandler(), threading.RLock()
        self.races: list[object] = []
        self.kernels: dict[int, list[str]] = defaultdict(list)
        self.waits: list[str] = []
        self.n_made = 0
        self.on_gpu: set[int] = set()
        self.kept: dict[int, Any] = {}
        self.forced = False
        self.n_events = self.n_streams = 0
        self.Stream, self.Event = _stream_class(self), _event_class(self)
        self.current = {index: [self.Stream(torch.device("cuda", index))] for index in (0, 1)}
        self.line = self.n_lines = HOST
        self.handler._handle_stream_creation(HOST)

    def new_line(self) -> int:
        """Return a further thread of the host."""
        self.n_lines += 1
        self.handler._handle_stream_creation(self.n_lines)
        return self.n_lines

    def current_stream(self, device: torch.device | int | None = None) -> Any:
        index = device.index if isinstance(device, torch.device) else device
        return self.current[index or 0][-1]

    @contextlib.contextmanager
    def stream(self, stream: Any) -> Iterator[None]:
        self.current[stream.device.index].append(stream)
        try:
            yield
        finally:
            self.current[stream.device.index].pop()

    def mark(self, line: int) -> int:
        """Return an event after all that a stream or thread has done."""
        self.n_events += 1
        self.handler._handle_event_creation(self.n_events)
        self.handler._handle_event_record(self.n_events, line)
        return self.n_events

    def order(self, before: int, after: int) -> None:
        """Let a stream wait for all that another one has been given."""
        self.handler._handle_event_wait(self.mark(before), after)

    def launch(self, name: str, stream: int, read: set[int], written: set[int]) -> None:
        """Run an operator in a stream; one of the GPU begins after all that the host has done."""
        with self.lock:
            if stream < HOST:
                self.order(self.line, stream)
            self.kernels[stream].append(name)
            read, written = read - {0}, written - {0}  # the address of all tensors without elements
            found = self.handler._handle_kernel_launch(stream, read - written, written, set(), name, defaultdict(list))
            self.races += found

    def wait(self, why: str) -> None:
        """Let the host wait for all that the current stream of the GPU has been given."""
        with self.lock:
            self.waits.append(why)
            self.order(self.current_stream(GPU).id, self.line)

    def has(self, tensor: object) -> bool:
        """Return whether a tensor is on the GPU."""
        return isinstance(tensor, torch.Tensor) and tensor.untyped_storage().data_ptr() in self.on_gpu

    def keep(self, tensor: torch.Tensor) -> int:
        """Keep the memory of a tensor until the end; returns its address."""
        storage = tensor.untyped_storage()
        self.kept[storage.data_ptr()] = storage
        return storage.data_ptr()

    def peek(self, tensor: torch.Tensor) -> np.ndarray:
        """Return the values of a tensor on the GPU without waiting for it."""
        with torch._C.DisableTorchFunction():
            return tensor.numpy()

    def host(self, array: np.ndarray | torch.Tensor, *, writes: bool = False) -> None:
        """The host reads or writes memory, seen from outside of torch."""
        memory = {self.keep(torch.as_tensor(array))}
        self.launch("host", self.line, set() if writes else memory, memory if writes else set())


def _stream_class(played: PlayedCuda) -> type:
    class Stream:
        def __init__(self, device: torch.device) -> None:
            self.device, self.id = device, played.n_streams
            played.n_streams += 1
            if self.id:
                played.handler._handle_stream_creation(self.id)

        def wait_stream(self, other: Stream) -> None:
            played.order(other.id, self.id)

        def wait_event(self, event: Any) -> None:
            played.handler._handle_event_wait(event.id, self.id)

        def synchronize(self) -> None:
            played.order(self.id, played.line)

    return Stream


def _event_class(played: PlayedCuda) -> type:
    class Event:
        def __init__(self, enable_timing: bool = False) -> None:
            played.n_events += 1
            played.n_made += 1
            self.id = played.n_events
            played.handler._handle_event_creation(self.id)

        def record(self, stream: Any = None) -> None:
            with played.lock:
                played.handler._handle_event_record(self.id, (stream or played.current_stream()).id)

        def synchronize(self) -> None:
            with played.lock:
                played.handler._handle_event_wait(self.id, played.line)

        def elapsed_time(self, later: Event) -> float:
            return 1.0

    return Event


class _Devices(TorchFunctionMode):
    """Makes on the CPU what is requested on the GPU or in pinned memory, and notes which it was."""

    def __init__(self, played: PlayedCuda) -> None:
        super().__init__()
        self.played = played

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = {name: value for name, value in (kwargs or {}).items() if name != "pin_memory"}
        own = bool(args) and self.played.has(args[0])
        if func is torch.Tensor.pin_memory:
            return args[0].clone()
        if own and (getter := getattr(func, "__self__", None)) in PRETENDED:
            return PRETENDED[getter]
        if func in FETCHES and not own:
            self.played.host(args[0])
        listed = [*args, *kwargs.values()]
        to_host = func is torch.Tensor.to and any(
            str(value) == "cpu" for value in listed if isinstance(value, str | torch.device)
        )
        if own and (to_host or func in FETCHES):
            return self._fetched(func, args[0], blocking=not kwargs.get("non_blocking", False))
        if not any(isinstance(value, torch.device) and value.type == "cuda" for value in listed):
            return func(*args, **kwargs)
        args, kwargs = tree_map(lambda x: torch.device("cpu") if isinstance(x, torch.device) else x, (args, kwargs))
        if own and func is torch.Tensor.to:
            return func(*args, **kwargs)
        if func is torch.Tensor.to:
            kwargs["copy"] = True
        self.played.forced = True
        try:
            made = func(*args, **kwargs)
        finally:
            self.played.forced = False
        self.played.on_gpu.add(made.untyped_storage().data_ptr())
        if func in UPLOADS and not kwargs.get("non_blocking", False):
            self.played.wait("upload")
        return made

    def _fetched(self, func: Any, tensor: torch.Tensor, *, blocking: bool) -> Any:
        """Copy a tensor of the GPU to the host."""
        with torch._C.DisableTorchFunction():
            made = tensor.clone()
        self.played.on_gpu.discard(made.untyped_storage().data_ptr())
        if blocking:
            self.played.wait(func.__name__)
        return func(made) if func is not torch.Tensor.to else made


class _Operators(TorchDispatchMode):
    """Feeds the sanitizer: an operator with a tensor of the GPU runs in its current stream, another one on the host."""

    def __init__(self, played: PlayedCuda) -> None:
        super().__init__()
        self.played = played

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs, played = kwargs or {}, self.played
        out = func(*args, **kwargs)
        name = func._schema.name.removeprefix("aten::")
        if name in VIEWS:
            return out
        read: set[int] = set()
        written: set[int] = set()
        made: set[int] = set()
        named = {argument.name: argument for argument in func._schema.arguments}
        given = [*zip(func._schema.arguments, args, strict=False), *((named[key], kwargs[key]) for key in kwargs)]
        for argument, value in given:
            target = written if argument.alias_info is not None and argument.alias_info.is_write else read
            tree_map_only(torch.Tensor, lambda x, t=target: t.add(played.keep(x)), value)
        tree_map_only(torch.Tensor, lambda x: made.add(played.keep(x)), out)
        made -= read | written
        on_gpu = played.forced or bool((read | written) & played.on_gpu)
        played.on_gpu = played.on_gpu | made if on_gpu else played.on_gpu - made
        made = set() if name.startswith(("empty", "new_empty")) else made
        played.launch(name, played.current_stream(GPU).id if on_gpu else played.line, read, written | made)
        if on_gpu and (name in WAITS or _waits(name, args, kwargs, played)):
            played.wait(name)
        return out


def _waits(name: str, args: Any, kwargs: Any, played: PlayedCuda) -> bool:
    """Return whether the host waits: for a copy in between, for how many a mask chooses, or how long the result is."""
    if name == "copy_":
        blocking = not (kwargs.get("non_blocking", False) or (len(args) > 2 and args[2]))
        return blocking and played.has(args[0]) != played.has(args[1])
    if name in ("index", "index_put_", "index_put"):
        return any(each is not None and each.dtype in (torch.bool, torch.uint8) for each in args[1])
    return name == "repeat_interleave" and kwargs.get("output_size") is None


@contextlib.contextmanager
def played_cuda() -> Iterator[PlayedCuda]:
    """Play a GPU inside the block."""
    played = PlayedCuda()
    names = ("Stream", "Event", "stream", "current_stream")
    before = {name: getattr(torch.cuda, name) for name in names}
    for name in names:
        setattr(torch.cuda, name, lambda *args, at=name, **options: getattr(played, at)(*args, **options))
    try:
        with _Operators(played), _Devices(played):
            yield played
    finally:
        for name, value in before.items():
            setattr(torch.cuda, name, value)


class _Threads:
    """What threads of a pool were given to do, the earliest first."""

    def __init__(self, played: PlayedCuda) -> None:
        self.played = played
        self.waiting: deque[_Task] = deque()

    def run_one(self) -> None:
        """Let the earliest task run for which its pool has a thread; the current thread waits meanwhile."""
        task = next((task for task in self.waiting if task.pool.free), None)
        assert task is not None, "all threads wait for one another"
        self.waiting.remove(task)
        played, line = self.played, task.pool.free.popleft()
        before = played.line, played.current
        played.line, played.current = line, {index: streams[:1] for index, streams in played.current.items()}
        played.handler._handle_event_wait(task.begins, line)
        try:
            task.set_result(task.work())
        except Exception as error:
            task.set_exception(error)
        task.ends = played.mark(line)
        played.line, played.current = before
        task.pool.free.append(line)


class _Task(Future[Any]):
    """Is run when something waits for it, as late as can be."""

    ends = 0

    def __init__(self, threads: _Threads, pool: Any, work: Callable[[], Any]) -> None:
        super().__init__()
        self.threads, self.pool, self.work = threads, pool, work
        self.begins = threads.played.mark(threads.played.line)

    def result(self, timeout: float | None = None) -> Any:
        while not self.done():
            self.threads.run_one()
        self.threads.played.handler._handle_event_wait(self.ends, self.threads.played.line)
        return super().result()

    def cancel(self) -> bool:
        return self in self.threads.waiting and (self.threads.waiting.remove(self) or super().cancel())


def _pool_class(threads: _Threads) -> type:
    class Pool:
        """Plays a ThreadPoolExecutor."""

        def __init__(self, max_workers: int, name: str = "") -> None:
            self.free = deque(threads.played.new_line() for _ in range(max_workers))

        def submit(self, function: Callable[..., Any], *args: Any) -> Future[Any]:
            threads.waiting.append(_Task(threads, self, lambda: function(*args)))
            return threads.waiting[-1]

        def __enter__(self) -> Pool:
            return self

        def __exit__(self, *error: object) -> None:
            for task in [task for task in threads.waiting if task.pool is self]:
                with contextlib.suppress(Exception):
                    task.result()

    return Pool


def _queue_class(threads: _Threads) -> type:
    class Queue:
        """Plays a SimpleQueue."""

        def __init__(self) -> None:
            self.items: deque[tuple[Any, int]] = deque()

        def empty(self) -> bool:
            return not self.items

        def put(self, item: Any) -> None:
            self.items.append((item, threads.played.mark(threads.played.line)))

        def get(self) -> Any:
            while not self.items:
                threads.run_one()
            item, mark = self.items.popleft()
            threads.played.handler._handle_event_wait(mark, threads.played.line)
            return item

    return Queue


def played_threads(played: PlayedCuda) -> tuple[type, type]:
    """Return what plays ThreadPoolExecutor and SimpleQueue: work is done as late as can be, on a line of its thread."""
    threads = _Threads(played)
    return _pool_class(threads), _queue_class(threads)

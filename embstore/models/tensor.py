"""Tensor parallel: several processes, one a device, run one model together, each with a part of every matrix.

This process is rank 0 and does all that it does with a whole model. The others load their part, and repeat each call of
the network with the same inputs, since the parts of a matrix product are summed over all of them.
"""

from __future__ import annotations

import functools
import gc
import io
import os
import pickle
import queue
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any, NoReturn

import torch
import torch.distributed as dist

from embstore.devices import OMP_THREADS, n_cores
from embstore.errors import DeviceMemoryError, EmbstoreError, InvalidValueError, ModelError
from embstore.models.memory import is_out_of_memory
from embstore.models.placing import Place
from embstore.models.transformer.layers import DeepEnough, LayerTap
from embstore.models.transformer.varlen import KEYWORD, pinned_backends, varlen_attention

STARTED, READY = "embstore: started", "embstore: ready"  # what a process says of itself
LOADING = timedelta(hours=2)
ENDING_SECONDS = 5.0  # until a process that should end is killed
NOTICED_SECONDS = 2.0  # until the end of a process is known here, if it is why a pass fails
LOST_SECONDS = 30.0  # until a pass that waits for a process that is gone ends this one
BEGIN = "import sys, pickle; sys.path = pickle.load(sys.stdin.buffer); "
BEGIN += "from embstore.models import checkpoint, tensor; tensor.follow(checkpoint.load_part)"

Until = tuple[tuple[str, ...], int]  # the names of the blocks, and the last layer that is asked for


@dataclass(frozen=True)
class Part:
    """What a process loads: its part of the model in a folder."""

    folder: Path
    dtype: torch.dtype
    place: Place
    deepest: int | None
    rank: int
    meeting: str


def require_tensor_parallel(config: Any, place: Place, name: str) -> None:
    """Raise InvalidValueError, before anything is loaded, if a model cannot be divided over that many devices."""
    text, n = config.get_text_config(), place.n_ranks
    if not (getattr(config, "base_model_tp_plan", None) or getattr(text, "base_model_tp_plan", None)):
        raise InvalidValueError(
            f"the model {name!r} ({config.model_type}) has no plan for device 'tensor' in transformers: "
            "use device split, or devices with a model each"
        )
    heads = {key: getattr(text, key, None) for key in ("num_attention_heads", "num_key_value_heads")}
    for key, count in heads.items():
        if isinstance(count, int) and count % n:
            raise InvalidValueError(
                f"device 'tensor:{n}' does not divide the {count} {key.removeprefix('num_').replace('_', ' ')} of "
                f"{name!r}: give tensor:N with an N that does, or use device split"
            )
    gc.collect()  # an encoder that nobody has any more
    if dist.is_initialized() or "LOCAL_RANK" in os.environ:
        raise InvalidValueError(
            "device 'tensor' starts its own processes, for a single model: run it without torchrun, and drop the model "
            "that is loaded so"
        )


@contextmanager
def other_parts(
    folder: Path, config: Any, dtype: torch.dtype, place: Place, deepest: int | None
) -> Iterator[Callable[[Any], None]]:
    """Load the other parts of a model, if it has any, while the block loads one, and give that one to the result.

    If the block fails because another process has ended, the error says why that did. See `require_tensor_parallel`.
    """
    if place.n_ranks == 1:
        yield lambda network: None
        return
    require_tensor_parallel(config, place, str(folder))
    ranks = Ranks(folder, dtype, place, deepest)
    try:
        yield ranks.follow_calls
    except BaseException as error:
        if ranks.ended and isinstance(error, Exception):
            ranks.close_with(ModelError(ranks.failure))
        ranks.close()
        raise


class Ranks:
    """The other processes of a model, and what has become of them; ends them with this one, or when it is closed."""

    def __init__(self, folder: Path, dtype: torch.dtype, place: Place, deepest: int | None) -> None:
        self.name, self.place = str(folder), place
        self.until: Until | None = None
        self._own_folder = tempfile.mkdtemp(prefix="embstore-")
        self.ended: list[str] = []  # in the order in which processes ended
        self._running = self._closed = False
        self._lost = threading.Event()
        self._event: Any = None
        self._processes: list[subprocess.Popen[bytes]] = []
        self._said: list[queue.Queue[str]] = []
        part = Part(folder, dtype, place, deepest, 0, f"{self._own_folder}/meeting")
        try:
            for rank in range(1, place.n_ranks):
                main = place.main if place.main.type == "cpu" else torch.device(place.main.type, rank)
                self._start(replace(part, rank=rank, place=replace(place, main=main)))
            self.wait_for(STARTED)
            join(part)
        except BaseException:
            self.close()
            raise

    def _start(self, part: Part) -> None:
        environment = {OMP_THREADS: str(max(1, n_cores() // part.place.n_ranks)), **os.environ}
        process = subprocess.Popen(
            [sys.executable, "-c", BEGIN],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=environment | {"LOCAL_RANK": str(part.rank)},
        )
        said: queue.Queue[str] = queue.Queue()
        self._processes.append(process)
        self._said.append(said)
        threading.Thread(target=self._watch, args=(process, part.rank, said), daemon=True).start()
        for each in (sys.path, part):
            pickle.dump(each, process.stdin)  # type: ignore[arg-type]
        with suppress(BrokenPipeError):
            process.stdin.flush()  # type: ignore[union-attr]

    def _watch(self, process: subprocess.Popen[bytes], rank: int, said: queue.Queue[str]) -> None:
        """Follow what a process says; if it ends although a pass waits for it, end this one with a line."""
        last = ""
        for line in process.stdout or ():
            last = line.decode(errors="replace").strip() or last
            if last in (STARTED, READY):
                said.put(last)
        code = process.wait()
        why = f"signal {-code}" if code < 0 else last or f"status {code}"
        self.ended.append(f"process {rank} ended: {why[-300:]}")
        self._lost.set()
        said.put("")
        deadline = time.monotonic() + LOST_SECONDS
        while self._waits() and not self._closed:
            if time.monotonic() > deadline:
                print(f"embstore: {self.failure}", file=sys.stderr, flush=True)
                os._exit(1)
            time.sleep(0.1)

    def _waits(self) -> bool:
        return self._running or not (self._event is None or self._event.query())

    @property
    def failure(self) -> str:
        """Which process ended first, and why."""
        return f"the model {self.name!r} on {self.place.n_ranks} devices has stopped: {self.ended[0]}"

    def wait_for(self, word: str) -> None:
        """Wait until all processes have said a word; raises ModelError if one ends instead."""
        for said in self._said:
            if said.get() != word:
                self.close_with(ModelError(self.failure))

    def follow_calls(self, network: Any) -> None:
        """Have all processes repeat the calls of a network from now on, and end with it."""
        self.wait_for(READY)
        own = network.forward

        @functools.wraps(own)
        def forward(*args: Any, **inputs: Any) -> Any:
            with self._pass(), torch.no_grad():
                self._send((args, inputs, self.until))
                return own(*args, **inputs)

        network.forward, network.ranks = forward, self
        weakref.finalize(network, self.close)

    @contextmanager
    def ending_at(self, names: tuple[str, ...], deepest: int) -> Iterator[None]:
        """Have the calls inside the block end with the block that receives layer `deepest`; `names`: of all blocks."""
        self.until = names, deepest
        try:
            yield
        finally:
            self.until = None

    @contextmanager
    def _pass(self) -> Iterator[None]:
        """Close, with an error of one line, if a pass does not come to its end here or in another process."""
        if self.ended and not self._closed:
            self.close_with(ModelError(self.failure))
        if self._closed:
            raise ModelError(f"the model {self.name!r} has stopped: load it again")
        self._running = True
        try:
            yield
        except DeepEnough:
            raise
        except Exception as error:
            short = is_out_of_memory(error)
            if not short and self._lost.wait(NOTICED_SECONDS):
                short, error = is_out_of_memory(RuntimeError(self.ended[0])), ModelError(self.failure)
            text = f"a pass of {self.name!r} on {self.place.n_ranks} devices has failed: {one_line(error)}"
            self.close_with(DeviceMemoryError(f"{text}; choose fewer --batch-subwords") if short else ModelError(text))
        except BaseException:
            self.close()
            raise
        finally:
            self._running = False
            if self.place.main.type == "cuda":
                self._event = torch.cuda.Event()  # type: ignore[no-untyped-call]
                self._event.record()

    def _send(self, call: Any) -> None:
        payload = io.BytesIO()
        sender = _Sender(payload)
        sender.dump(call)
        for process in self._processes:
            pickle.dump(payload.getvalue(), process.stdin)  # type: ignore[arg-type]
            process.stdin.flush()  # type: ignore[union-attr]
        for tensor in sender.tensors:
            dist.broadcast(tensor, 0)

    def close_with(self, error: EmbstoreError) -> NoReturn:
        """Close and raise an error."""
        self.close()
        raise error from None

    def close(self) -> None:
        """End the other processes; later passes are refused."""
        if self._closed:
            return
        self._closed = True
        with suppress(Exception):  # peers may be gone
            (
                dist.destroy_process_group
                if self.place.main.type == "cpu"
                else dist.distributed_c10d._abort_process_group
            )()
        for process in self._processes:
            with suppress(OSError):
                process.stdin.close()  # type: ignore[union-attr]
        for process in self._processes:
            with suppress(subprocess.TimeoutExpired):
                process.wait(ENDING_SECONDS)
            process.kill()
        shutil.rmtree(self._own_folder, ignore_errors=True)


def join(part: Part) -> None:
    """Meet the other processes; returns when all are there."""
    store: Any = dist.FileStore(part.meeting, part.place.n_ranks)  # type: ignore[attr-defined]
    how: dict[str, Any] = {"store": store, "rank": part.rank, "world_size": part.place.n_ranks, "timeout": LOADING}
    if part.place.main.type == "cuda":
        torch.cuda.set_device(part.rank)
        dist.init_process_group("nccl", device_id=torch.device("cuda", part.rank), **how)
    else:
        dist.init_process_group("gloo", **how)


class _Sender(pickle.Pickler):
    """Pickles all but the values of tensors, which are sent from device to device, in this order."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file)
        self.tensors: list[torch.Tensor] = []

    def persistent_id(self, value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return None
        self.tensors.append(value.contiguous())
        return value.shape, value.dtype


class _Receiver(pickle.Unpickler):
    def __init__(self, call: bytes, device: torch.device) -> None:
        super().__init__(io.BytesIO(call))
        self._device = device

    def persistent_load(self, kind: Any) -> torch.Tensor:
        tensor = torch.empty(kind[0], dtype=kind[1], device=self._device)
        dist.broadcast(tensor, 0)
        return tensor


def follow(load: Callable[[Part], Any]) -> NoReturn:
    """Be one of the other processes: load a part with `load` and repeat calls until the input ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for rank 0 to handle
    try:
        part: Part = pickle.load(sys.stdin.buffer)
        calls: queue.Queue[bytes] = queue.Queue()
        threading.Thread(target=_read, args=(calls, part), daemon=True).start()
        print(STARTED, flush=True)
        join(part)
        network, device = load(part), part.place.main
        print(READY, flush=True)
        while True:
            with torch.inference_mode(), pinned_backends(device):
                repeat(network, *_Receiver(calls.get(), device).load())
    except BaseException as error:
        print(one_line(error), flush=True)
        os._exit(1)


def _read(calls: queue.Queue[bytes], part: Part) -> None:
    """Pass calls on; end this process, whatever it waits for, when rank 0 has closed its end or is gone."""
    with suppress(EOFError, pickle.UnpicklingError):
        while True:
            calls.put(pickle.load(sys.stdin.buffer))
    shutil.rmtree(Path(part.meeting).parent, ignore_errors=True)
    os._exit(0)


def repeat(network: Any, args: tuple[Any, ...], inputs: dict[str, Any], until: Until | None) -> None:
    """Repeat a call of the network, as far as rank 0 runs it, and keep nothing."""
    inputs.pop("output_hidden_states", None)
    with varlen_attention(network) if KEYWORD in inputs else nullcontext():
        if until is None:
            network(*args, **inputs)
            return
        names, deepest = until
        blocks = tuple(map(network.get_submodule, names))
        tap = LayerTap(network, blocks, transposed=False, num_hidden_layers=deepest, hidden_size=0, final_norm=False)
        tap.run(inputs, (deepest,), lambda layer, state: None)


def one_line(error: BaseException) -> str:
    """Return the message of an error in one line."""
    return " ".join(str(error).split())[:300] or type(error).__name__

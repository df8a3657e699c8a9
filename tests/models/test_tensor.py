"""Tensor parallel: two processes on a CPU give the vectors of one, end together, and say why they fail."""

from __future__ import annotations

import gc
import io
import os
import signal
import subprocess
import sys
import time
import types
from pathlib import Path

import numpy as np
import pytest
import torch

import embstore as es
from embstore.errors import DeviceMemoryError, InvalidValueError, ModelError
from embstore.models import load_encoder, loading, placing, tensor
from embstore.models.placing import Place
from tests.models.oracle import relative_error
from tests.models.test_large import LAYERS, encoded
from tests.models.tiny import SENTENCES, save


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    return save("llama", tmp_path_factory.mktemp("llama"))


def processes_of(encoder):
    return encoder.network.model.ranks._processes


def require_equal_stores(encoder, whole, folder):
    one, two = (es.plan(SENTENCES, model=each, progress=False) for each in (encoder, whole))
    assert one.encoder_spec.device == "tensor:2"
    stores = es.extract(one, folder / "one.zarr"), es.extract(two, folder / "two.zarr")
    vectors, expected = (each.vectors([*range(len(each))], layers=3)[0][None].astype(np.float32) for each in stores)
    assert relative_error(vectors, expected) < 2e-3  # float16


@pytest.mark.slow
@pytest.mark.parametrize("name", ["llama", "mixtral"])
def test_two_processes_give_the_vectors_of_one(tmp_path, name):
    folder = save(name, tmp_path / "model")
    whole = load_encoder(folder, device="cpu")
    encoder = load_encoder(folder, device="tensor:2")
    try:
        assert (encoder.split_over, encoder.info) == ("tensor:2", whole.info)
        weights = encoder.network.model.layers[0].mlp
        part = next(p for p in weights.parameters() if hasattr(p, "to_local"))
        assert part.to_local().numel() == part.numel() // 2
        for layers, options in ((LAYERS, {}), ((0, 1), {}), ((2,), {"attention_window": 2}), (LAYERS, {})):
            vectors, _ = encoded(encoder, layers, **options)
            assert relative_error(vectors, encoded(whole, layers, **options)[0]) < 2e-5
        for batching in encoder.candidate_batchings():
            encoder.use_batching(batching)
            assert relative_error(encoded(encoder)[0], encoded(whole)[0]) < 2e-5
        with pytest.raises(ModelError, match=r"are on 2 devices: only the site residual .*; use device split$"):
            encoded(encoder, sites=("head_output",))
        with pytest.raises(InvalidValueError, match="starts its own processes, for a single model"):
            load_encoder(folder, device="tensor:2")
        require_equal_stores(encoder, whole, tmp_path)
    finally:
        started = processes_of(encoder)
        encoder = part = weights = None
        gc.collect()
    assert [process.poll() for process in started] == [0]
    assert not torch.distributed.is_initialized()


@pytest.mark.slow
def test_a_process_that_is_lost_is_an_error_of_one_line(llama):
    encoder = load_encoder(llama, device="tensor:2", layers=1)
    assert (encoder.deepest, len(encoder.network.model.layers)) == (1, 2)
    encoded(encoder, (0, 1))
    processes_of(encoder)[0].kill()
    with pytest.raises(ModelError, match=rf"'{llama}' on 2 devices has (stopped|failed).*process 1 ended: signal 9$"):
        encoded(encoder, (0, 1))
    with pytest.raises(ModelError, match=r"has stopped: load it again$"):
        encoded(encoder, (0, 1))


@pytest.mark.slow
def test_a_pass_that_does_not_fit_is_not_tried_again(llama):
    encoder = load_encoder(llama, device="tensor:2")

    def fail(*_):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")

    encoder.network.model.layers[1].register_forward_pre_hook(fail)
    with pytest.raises(DeviceMemoryError, match=r"on 2 devices has failed: CUDA out of .*; choose fewer --batch-sub"):
        encoded(encoder)
    assert [process.poll() is None for process in processes_of(encoder)] == [False]


@pytest.mark.slow
def test_nothing_is_left_of_a_model_when_its_process_is_killed(llama):
    call = f"""from tests.models.test_tensor import *; encoder = load_encoder({str(llama)!r}, device="tensor:2")
print(*[process.pid for process in processes_of(encoder)], flush=True); signal.pause()"""
    root = Path(__file__).parents[2]
    with subprocess.Popen([sys.executable, "-c", call], cwd=root, stdout=subprocess.PIPE, text=True) as process:
        other = int(process.stdout.readline())
        process.send_signal(signal.SIGKILL)
    deadline = time.monotonic() + 600
    while is_alive(other) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not is_alive(other)


def is_alive(pid):
    status = Path(f"/proc/{pid}/status")
    return status.exists() and "State:\tZ" not in status.read_text()


@pytest.mark.parametrize(
    ("begin", "reason"),
    [("raise SystemExit('no memory left')", "no memory left"), ("import os; os.kill(os.getpid(), 9)", "signal 9")],
)
@pytest.mark.slow
def test_a_process_that_does_not_start(llama, monkeypatch, begin, reason):
    monkeypatch.setattr(tensor, "BEGIN", begin)
    with pytest.raises(ModelError, match=rf"on 2 devices has stopped: process 1 ended: {reason}$"):
        load_encoder(llama, device="tensor:2")
    assert not torch.distributed.is_initialized()


def test_models_that_cannot_be_divided_so(llama, tmp_path, monkeypatch):
    with pytest.raises(InvalidValueError, match=r"bert. has no plan for device 'tensor' in tr.*: use device split, or"):
        load_encoder(save("bert", tmp_path), device="tensor:2")
    with pytest.raises(InvalidValueError, match=r"'tensor:4' does not divide the 2 key value heads of .*use device sp"):
        load_encoder(llama, device="tensor:4")
    monkeypatch.setenv("LOCAL_RANK", "0")
    with pytest.raises(InvalidValueError, match="run it without torchrun"):
        load_encoder(llama, device="tensor:2")
    monkeypatch.setattr(loading, "find_elmo", lambda name: "files")
    with pytest.raises(InvalidValueError, match="is ELMo, which is not divided"):
        load_encoder(llama, device="tensor:2")


@pytest.mark.parametrize("device", ["tensor", "tensor:", "tensor:1", "tensor:x", "tensor:65"])
def test_numbers_of_processes_that_are_refused(monkeypatch, device):
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda **_: None)
    with pytest.raises(InvalidValueError, match=r"is not allowed: give N from 2 to 64 processes on this CPU$"):
        Place.of(device)


def test_as_many_processes_as_there_are_gpus(monkeypatch):
    kind = types.SimpleNamespace(type="cuda")
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda **_: kind)
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: 4)
    monkeypatch.setattr(placing, "choose_device", lambda name: torch.device("cuda"))
    assert Place.of("tensor") == Place(torch.device("cuda"), n_ranks=4)
    assert Place.of("tensor:2").split_over == "tensor:2"
    with pytest.raises(InvalidValueError, match="'tensor:8' is not allowed: give N from 2 to 4 CUDA GPUs here"):
        Place.of("tensor:8")
    kind.type = "mps"
    with pytest.raises(InvalidValueError, match="needs CUDA GPUs, not mps"):
        Place.of("tensor")


@pytest.mark.parametrize("waits", [True, False])
def test_a_pass_that_waits_for_a_lost_process_ends_this_one(monkeypatch, capsys, waits):
    """On a GPU nothing else would end it: the process is played, since gloo sees that another is gone."""
    exits = []
    monkeypatch.setattr(tensor, "LOST_SECONDS", -1)
    ranks = types.SimpleNamespace(ended=[], _lost=types.SimpleNamespace(set=lambda: None), _closed=False)
    ranks._waits, ranks.failure = lambda: waits and not exits, "it has stopped"
    monkeypatch.setattr(os, "_exit", exits.append)
    process = types.SimpleNamespace(stdout=io.BytesIO(b"line\nno memory\n\n"), wait=lambda: 1)
    tensor.Ranks._watch(ranks, process, 3, types.SimpleNamespace(put=lambda word: None))
    assert exits == [1] * waits
    assert capsys.readouterr().err == "embstore: it has stopped\n" * waits
    assert ranks.ended == ["process 3 ended: no memory"]

"""vLLM as an encoder, with a vLLM that writes what its connector for hidden states writes."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers

import embstore as es
from embstore.errors import EmbstoreWarning, InvalidValueError, MissingPackageError, ModelError
from embstore.models import encoder_from_shorthand, load_encoder, model_kind
from embstore.models.vllm import encoder as vllm_encoder
from embstore.models.vllm import engine
from tests.extraction.plans import plan_of
from tests.extraction.test_pipeline import many, small_partitions
from tests.models import tiny
from tests.models.fake_vllm import install
from tests.models.oracle import gather, relative_error, word_spans
from tests.store.example import all_files

KINDS = {"llama": "LlamaForCausalLM", "gpt2": "GPT2LMHeadModel"}


def decoder(name: str, folder: Path) -> Path:
    """Save a tiny decoder with its language modeling head."""
    tiny.save(name, folder)
    transformers.utils.logging.disable_progress_bar()
    torch.manual_seed(0)
    getattr(transformers, KINDS[name]).from_pretrained(folder).save_pretrained(folder)
    transformers.utils.logging.enable_progress_bar()
    return folder


@pytest.fixture(scope="module")
def llama(tmp_path_factory) -> Path:
    return decoder("llama", tmp_path_factory.mktemp("llama"))


@pytest.fixture
def vllm(monkeypatch, tmp_path):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return install(monkeypatch)


def vectors(encoder, layers, *, sentences=tiny.SENTENCES, pooling="mean", batch_subwords=64):
    tokenized = encoder.tokenize(sentences)
    spans, _ = word_spans(tokenized)
    passes = encoder.encode(tokenized, spans, layers=layers, pooling=pooling, batch_subwords=batch_subwords)
    return gather(passes, spans, len(layers), encoder.info.hidden_size)


@pytest.mark.parametrize(("name", "locks"), [("llama", True), ("gpt2", False)])
@pytest.mark.quick(1)
def test_vectors_are_those_of_transformers(name, locks, vllm, tmp_path):
    folder = decoder(name, tmp_path / name)
    vllm.locks, vllm.lag = locks, 0.02
    encoder, own = encoder_from_shorthand(f"vllm:{folder}"), load_encoder(folder, device="cpu")
    assert (encoder.info.weights_sha256, encoder.info.name) == (own.info.weights_sha256, f"vllm:{name}")
    assert encoder.info.max_subwords == own.info.max_subwords - 1
    for pooling, layers in (("mean", (0, 1, 2, 3)), ("max", (3, 1))):
        given = {"layers": layers, "pooling": pooling}
        assert encoder.self_check(encoder.tokenize(tiny.SENTENCES), **given) < 2e-5
        assert relative_error(vectors(encoder, layers, pooling=pooling), vectors(own, layers, pooling=pooling)) < 2e-5
    assert len(vllm.made[-1].batches) > 1
    encoder.close()
    assert not list(tmp_path.glob("embstore-*"))


def test_files_are_deleted_once_they_are_read(vllm, llama, tmp_path):
    encoder = encoder_from_shorthand(f"vllm:{llama}")
    vectors(encoder, (1, 3))
    (folder,) = tmp_path.glob("embstore-*")
    assert not list(folder.iterdir())


@pytest.mark.slow
def test_vllm_is_started_for_what_is_asked(vllm, llama):
    encoder = encoder_from_shorthand(f"vllm:{llama}?tensor_parallel_size=2&gpu_memory_utilization=0.5", layers="1,last")
    vectors(encoder, (1, 3))
    vectors(encoder, (3,))
    (only,) = vllm.made
    assert only.layers == [1, 3]
    assert (only.options["tensor_parallel_size"], only.options["gpu_memory_utilization"]) == (2, 0.5)
    assert only.options["enable_prefix_caching"] is only.options["enable_chunked_prefill"] is False
    vectors(encoder, (3,), sentences=[["cat"] * 300])
    vectors(encoder, (0,))
    assert [(one.layers, one.options["max_model_len"]) for one in vllm.made[1:]] == [([3], 320), ([0], 320)]


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("missing", r"^the hidden states that vLLM wrote of 'vllm:\w+' cannot be read: No such file .*-2\.safe"),
        ("truncated", r"^the hidden states that vLLM wrote of 'vllm:\w+' cannot be read: .*incomplete"),
        ("tokens", r"^vLLM returned states of other subwords of 'vllm:\w+' than it was given: \d-\d+\.safetensors$"),
        ("shape", r"^vLLM returned states of the shape \(\d+, 2, 32\) of 'vllm:\w+', not \(\d+, 1, 32\) "),
        ("answers", r"^vLLM returned the hidden states of \d of \d sentences: install a version that has Example"),
    ],
)
@pytest.mark.parametrize("locks", [True, False])
@pytest.mark.quick(5)
def test_a_wrong_file_is_a_line(fault, message, locks, vllm, llama, monkeypatch):
    monkeypatch.setattr(engine, "WAIT_SECONDS", 0.0)
    vllm.locks = locks

    def spoil(number, path):
        if number == 2 and fault == "missing":
            path.unlink()
        if number == 2 and fault == "truncated":
            os.truncate(path, path.stat().st_size // 2)

    vllm.spoil = staticmethod(spoil)
    if fault == "tokens":
        vllm.tokens = staticmethod(lambda ids: [*ids[:-1], ids[-1] + 1])
    if fault == "answers":
        vllm.answers = staticmethod(lambda outputs: outputs[1:])
    encoder = encoder_from_shorthand(f"vllm:{llama}")
    if fault == "shape":
        monkeypatch.setattr(vllm, "states", lambda self, ids: torch.zeros(len(ids), 2, 32))
    with pytest.raises(ModelError, match=message):
        vectors(encoder, (1,))


@pytest.mark.slow
def test_states_after_the_final_norm_are_not_taken(vllm, llama, monkeypatch):
    """A vLLM that applied the norm itself would be normed twice, which the comparison with transformers finds."""
    plain = vllm.states
    norm = transformers.AutoModel.from_pretrained(llama).norm

    def normed(self, ids):
        with torch.inference_mode():
            return norm(plain(self, ids))

    monkeypatch.setattr(vllm, "states", normed)
    encoder = encoder_from_shorthand(f"vllm:{llama}")
    with pytest.raises(ModelError, match=r"no batching of 'vllm:.*' reproduces its plain forward pass: .*vllm"):
        encoder.self_check(encoder.tokenize(tiny.SENTENCES), layers=(3,), pooling="mean")


def test_a_model_that_transformers_cannot_load_is_not_compared_and_says_so(vllm, llama, monkeypatch):
    def refuse(*args, **options):
        raise ModelError("a quantization that is not installed")

    monkeypatch.setattr(vllm_encoder, "load", refuse)
    encoder = encoder_from_shorthand(f"vllm:{llama}")
    with pytest.warns(
        EmbstoreWarning, match="not compared .*cannot load it here: a quantization that is not installed"
    ):
        assert np.isnan(encoder.self_check(encoder.tokenize(tiny.SENTENCES), layers=(3,), pooling="mean"))
    assert np.isfinite(vectors(encoder, (3,))).all()


@pytest.mark.parametrize(
    ("name", "options", "error", "message"),
    [
        (
            "vllm:{llama}",
            {"device": "cuda:1"},
            InvalidValueError,
            "set CUDA_VISIBLE_DEVICES, and for several GPUs write",
        ),
        ("vllm:{llama}", {"device": "split"}, InvalidValueError, "device 'split' is not for vLLM"),
        (
            "vllm:{llama}?tensor_parallel_size=0",
            {},
            InvalidValueError,
            "tensor_parallel_size '0' is not allowed: give 1",
        ),
        (
            "vllm:{llama}?gpu_memory_utilization=all",
            {},
            InvalidValueError,
            "utilization 'all' is not allowed: give 0.01",
        ),
        ("vllm:{llama}?trust_remote_code=1", {}, InvalidValueError, "cannot be read: write vllm:MODEL, with"),
        ("vllm:{bert}", {}, ModelError, r"\(BertModel\) is not a decoder with a language modeling head"),
        ("vllm:nowhere/at/all", {}, ModelError, "there is no model folder 'nowhere/at/all'"),
        ("bag:vllm:{llama}", {}, ModelError, "there is no bag of 'vllm:.*', which has context"),
    ],
)
def test_what_vllm_does_not_do_is_refused(name, options, error, message, vllm, llama, tmp_path):
    bert = tiny.save("bert", tmp_path / "bert") if "bert" in name else None
    with pytest.raises(error, match=message):
        encoder_from_shorthand(name.format(llama=llama, bert=bert), **options)
    assert not vllm.made


def test_windows_sites_and_pairs_are_refused(vllm, llama):
    encoder = encoder_from_shorthand(f"vllm:{llama}")
    corpus = es.open_corpus([["a", "b"]])
    with pytest.raises(InvalidValueError, match="attention window"):
        plan_of(corpus, model=encoder, attention_window=2)
    with pytest.raises(ModelError, match="LlamaForCausalLM has no site mlp_output: only the site residual"):
        plan_of(corpus, model=encoder, sites=["mlp_output"])
    assert not vllm.made


def test_without_vllm_the_package_is_named(llama):
    assert model_kind(f"vllm:{llama}") == "vllm"
    with pytest.raises(MissingPackageError, match=r"pip install 'embstore\[vllm\]'"):
        encoder_from_shorthand(f"vllm:{llama}")


@pytest.mark.slow
def test_a_store_that_was_broken_off_gets_the_same_bytes(vllm, llama, tmp_path, monkeypatch):
    small_partitions(monkeypatch)
    corpus = es.open_corpus(many(200))
    options = {"model": f"vllm:{llama}", "layers": [0, 3], "batch_subwords": 64}

    def extracted(name):
        return es.extract(plan_of(corpus, **options), tmp_path / name)

    whole = extracted("whole.zarr")
    n_batches, answer = len(vllm.made[-1].batches), vllm.generate

    def failing(self, *given, **more):
        if len(self.batches) == n_batches - 2:
            raise RuntimeError("CUDA error: an illegal\nmemory access")
        return answer(self, *given, **more)

    monkeypatch.setattr(vllm, "generate", failing)
    with pytest.raises(ModelError, match=r"^vLLM failed with 'vllm:.*': CUDA error: an illegal memory access$"):
        extracted("broken.zarr")
    with pytest.warns(es.errors.UnfinishedStoreWarning):
        assert es.open(tmp_path / "broken.zarr").n_committed_rows > 0
    monkeypatch.setattr(vllm, "generate", answer)
    again = extracted("broken.zarr")
    assert len(vllm.made[-1].batches) < n_batches
    assert all_files(again.path) == all_files(whole.path)

"""Large models: split over devices and the disk, without blocks that nobody needs, quantized; decoders of all kinds."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers

import embstore as es
from embstore.errors import ModelError
from embstore.models import load_encoder
from embstore.models.placing import Place, own_dtype
from tests.fake_devices import fake_devices
from tests.models.oracle import PlainScript, gather, relative_error, tokenize, word_spans
from tests.models.tiny import DECODERS, SENTENCES, save

LAYERS = (0, 1, 2, 3)
HALVES = {"embed_tokens": "fake:0", "rotary_emb": "fake:0", "layers.0": "fake:0"}
HALVES |= {"layers.1": "fake:1", "layers.2": "fake:1", "norm": "fake:1"}
SLOW = ("falcon_h1", "jamba", "mamba2", "qwen3_next", "recurrent_gemma", "rwkv", "deepseek_v3", "llama4", "gpt_oss")
NO_WINDOWS = {"mamba", "mamba2", "rwkv", "jamba", "qwen3_next", "llama4"}  # refused, with the name of the model
FULL_WINDOWS = {"falcon_h1", "recurrent_gemma", "rwkv"}  # accept a window that is wider than all they can read


def encoded(encoder, layers=LAYERS, **options):
    """Check an encoder and return the vectors of the words of SENTENCES."""
    tokenized = tokenize(encoder, SENTENCES)
    spans, names = word_spans(tokenized)
    encoder.self_check(tokenized, layers=layers, pooling="mean", **options)
    passes = encoder.encode(tokenized, spans, layers=layers, pooling="mean", batch_subwords=256, **options)
    return gather(passes, spans, len(layers), encoder.info.hidden_size), names


def plainly(folder, names):
    """Return what a plain script reads at the blocks themselves, one sentence at a time."""
    script = PlainScript.open(folder)
    blocks = next(part for part in script.model.modules() if isinstance(part, torch.nn.ModuleList))
    states: list[torch.Tensor] = []
    blocks[0].register_forward_pre_hook(lambda _, args, named: states.append(*args[:1]), with_kwargs=True)
    for block in blocks:
        block.register_forward_hook(lambda _, args, out: states.append(out[0] if isinstance(out, tuple) else out))
    vectors = []
    for sentence in SENTENCES:
        encoding = script.tokenizer.encode(sentence, is_pretokenized=True)
        states.clear()
        with torch.inference_mode():
            last = script.model(torch.tensor([encoding.ids])).last_hidden_state
        layers = torch.cat([*states[:-1], last]).numpy()
        owners = np.array([-1 if word is None else word for word in encoding.word_ids])
        vectors.append([layers[:, owners == word].mean(1) for word in range(len(sentence))])
    return np.stack([vectors[sentence][word] for sentence, word in names], axis=1)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) if name in SLOW else name for name in DECODERS]
)
@pytest.mark.quick(1)
def test_a_decoder_gives_the_states_of_its_blocks(tmp_path, name):
    encoder = load_encoder(save(name, tmp_path))
    vectors, names = encoded(encoder)
    assert encoder.causal
    assert len(encoder.network.tap.blocks) == encoder.info.num_hidden_layers == 3
    assert relative_error(vectors, plainly(tmp_path, names)) < 2e-5
    if name in NO_WINDOWS - FULL_WINDOWS:
        with pytest.raises(ModelError, match=f"{tmp_path.name}.*; use context windows$"):
            encoded(encoder, attention_window=1000)
        return
    wide, _ = encoded(encoder, attention_window=1000)
    assert relative_error(wide, vectors) < 2e-5
    if name in FULL_WINDOWS:
        with pytest.raises(ModelError, match=r"words more than 2 words away change its layer 1; use context windows$"):
            encoded(encoder, attention_window=2)


@pytest.mark.parametrize("name", ["mixtral", "qwen2_moe"])
@pytest.mark.quick(1)
def test_a_window_wider_than_a_sentence_changes_nothing_of_experts(tmp_path, name):
    encoder = load_encoder(save(name, tmp_path))
    wide, names = encoded(encoder, attention_window=1000)
    assert relative_error(wide, plainly(tmp_path, names)) < 2e-5


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    return save("llama", tmp_path_factory.mktemp("llama"))


def require_equal_over_two_devices(folder):
    """Compare a model over two fake devices with the whole one."""
    whole, _ = encoded(load_encoder(folder))
    with fake_devices():
        encoder = load_encoder(folder, device_map=HALVES)
        places = {key: str(value.device) for key, value in encoder.network.model.named_parameters()}
        vectors, _ = encoded(encoder)
        with pytest.raises(RuntimeError, match="was given tensors of cpu, fake:1"):
            torch.ones(3) + torch.ones(3).to("fake:1")
    assert (places["layers.0.mlp.up_proj.weight"], places["layers.1.mlp.up_proj.weight"]) == ("fake:0", "fake:1")
    assert (str(encoder.device), encoder.device_map) == ("fake:0", HALVES)
    on_first = sum(p.nbytes for p in encoder.network.model.parameters() if str(p.device) == "fake:0")
    batch = encoder.network.batch_nbytes(n_features=128, batch_subwords=64)
    assert encoder.projected_nbytes(n_features=128, batch_subwords=64) == on_first + batch
    assert relative_error(vectors, whole) < 2e-5


@pytest.mark.slow
def test_a_model_over_two_devices(llama):
    """In a process of its own: torch forgets no kind of device, and other tests would ask it for its state."""
    call = f"from {__name__} import *; require_equal_over_two_devices({str(llama)!r})"
    environment = {**os.environ, "HF_DEACTIVATE_ASYNC_LOAD": "1"}  # the fake devices are those of one thread
    folder = Path(__file__).parents[2]
    ran = subprocess.run([sys.executable, "-c", call], cwd=folder, env=environment, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr


@pytest.mark.parametrize(
    "name", ["llama", *(pytest.param(name, marks=pytest.mark.slow) for name in ("mixtral", "bert"))]
)
def test_a_model_that_stays_on_the_disk(tmp_path, name, capfd):
    whole = load_encoder(save(name, tmp_path))
    expected, _ = encoded(whole)
    parts = {name.partition(".")[0] for name, _ in whole.network.model.named_parameters()}
    encoder = load_encoder(tmp_path, device_map={**dict.fromkeys(parts, "disk"), min(parts): "cpu"})
    assert (encoder.info, encoder.device.type) == (whole.info, "cpu")
    assert encoder.network.weights_nbytes < whole.network.weights_nbytes
    assert relative_error(encoded(encoder)[0], expected) < 2e-5
    assert capfd.readouterr() == ("", "")


def test_weights_on_several_devices_are_not_packed(llama):
    """They would be used without the hooks that move what a block is given."""
    for device_map in (None, "auto", {"": "cpu"}):
        assert (load_encoder(llama, device_map=device_map).network.packed.nbytes > 0) == (device_map is None)


@pytest.mark.slow
@pytest.mark.parametrize("device_map", [None, "auto"])
def test_a_quantized_checkpoint(tmp_path, tmp_path_factory, device_map):
    pytest.importorskip("bitsandbytes", reason="bitsandbytes is not installed")
    llama = save("llama64", tmp_path_factory.mktemp("whole"))
    config = transformers.BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_compute_dtype=torch.float32)
    made = transformers.AutoModel.from_pretrained(llama, quantization_config=config, dtype=torch.float32)
    made.save_pretrained(tmp_path)
    for file in llama.glob("tokenizer*"):
        (tmp_path / file.name).write_bytes(file.read_bytes())
    whole, encoder = load_encoder(llama), load_encoder(tmp_path, device_map=device_map)
    vectors, names = encoded(encoder)
    with torch.inference_mode():
        plain = PlainScript(PlainScript.open(llama).tokenizer, made.eval(), False)
        expected = np.stack([plain.span(SENTENCES[s], w, w + 1, "mean") for s, w in names], axis=1)
    assert relative_error(vectors, expected) < 2e-5
    assert encoder.network.packed.nbytes == 0
    assert encoder.network.weights_nbytes < 0.5 * (whole.network.weights_nbytes - whole.network.packed.nbytes)


@pytest.mark.parametrize(
    ("kind", "stored", "place", "expected"),
    [
        ("Llama", torch.bfloat16, Place(torch.device("cuda")), torch.bfloat16),
        ("Llama", torch.float32, Place(torch.device("cuda")), torch.float16),
        ("Llama", torch.bfloat16, Place(torch.device("cpu")), torch.float32),
        ("Llama", torch.bfloat16, Place(torch.device("cpu"), "auto"), torch.bfloat16),
        ("Llama", torch.float32, Place(torch.device("cuda"), "auto"), torch.float16),
        ("UMT5", torch.float32, Place(torch.device("cuda")), torch.bfloat16),
        ("T5", torch.float16, Place(torch.device("cuda")), torch.float16),
        ("Funnel", None, Place(torch.device("cuda")), torch.float16),
    ],
)
def test_the_dtype_of_a_checkpoint(kind, stored, place, expected):
    config = getattr(transformers, f"{kind}Config")()
    config.dtype = stored
    assert own_dtype(config, place) == expected


def test_a_split_model_computes_in_the_dtype_of_its_checkpoint(tmp_path, llama):
    transformers.AutoModel.from_pretrained(llama, dtype=torch.bfloat16).save_pretrained(tmp_path)
    for file in llama.glob("tokenizer*"):
        (tmp_path / file.name).write_bytes(file.read_bytes())
    with es.config(device="split"):
        assert load_encoder(tmp_path).compute_dtype == "bfloat16"
    assert load_encoder(tmp_path).compute_dtype == "float32"

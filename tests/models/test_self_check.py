"""A batching that changes vectors is found, and the next one is tried."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

import embstore as es
from embstore.errors import ModelError
from embstore.models import batched, load_encoder
from embstore.models.batched import TOLERANCE, fastest
from embstore.models.batching import BATCHINGS
from embstore.models.transformer import encoder as transformer
from embstore.models.transformer import layers, varlen
from embstore.models.transformer import network as networks
from embstore.models.transformer.inputs import additive
from embstore.models.transformer.selfcheck import require_own_mask
from embstore.models.transformer.varlen import KEYWORD, SentenceBounds, pinned_backends
from tests.models.oracle import gather, relative_error, tokenize, word_spans
from tests.models.tiny import ARCHITECTURES, SENTENCES, save

GAINS_BY_PACKING = layers.gains_by_packing  # before the fixture of all tests


@pytest.fixture
def encoder(tmp_path):
    return load_encoder(save("bert", tmp_path))


def meddle(encoder, change):
    """Change the arguments of the model."""
    forward = encoder.network.model.forward
    encoder.network.model.forward = lambda **inputs: forward(**change(dict(inputs)))


def without_bounds(inputs):
    """A model that does not pass on where its sentences end."""
    inputs.pop(KEYWORD, None)
    return inputs


def ignore_packing(inputs):
    without_bounds(inputs)
    if "attention_mask" in inputs and inputs["attention_mask"].dim() == 4:
        inputs.pop("attention_mask")
    return inputs


def ignore_positions(inputs):
    without_bounds(inputs)
    if inputs.get("attention_mask") is not None and inputs["attention_mask"].dim() == 4:
        inputs.pop("position_ids", None)
    return inputs


def refuse_packing(inputs):
    without_bounds(inputs)
    if "attention_mask" in inputs and inputs["attention_mask"].dim() == 4:
        raise ValueError("a mask of two dimensions is needed")
    return inputs


def ignore_masks(inputs):
    inputs.pop("attention_mask", None)
    return without_bounds(inputs)


def slide(inputs, reach=40):
    """Attention that ends some subwords away, which only long sentences show."""
    ids = inputs["input_ids"]
    place = torch.arange(ids.shape[1])
    near = (place[:, None] - place[None, :]).abs() <= reach
    mask = inputs.get("attention_mask")
    if mask is None or mask.dim() == 2:
        seen = torch.ones_like(ids) if mask is None else mask
        allowed = near[None, None] & seen[:, None, None, :].bool()
        inputs["attention_mask"] = torch.zeros(allowed.shape).masked_fill_(~allowed, torch.finfo().min)
    return inputs


@pytest.mark.parametrize(
    ("change", "chosen"),
    [
        (dict, "varlen"), (without_bounds, "packed"), (ignore_packing, "padded"), (ignore_positions, "padded"),
        (refuse_packing, "padded"), (slide, "padded"), (ignore_masks, "equal"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("n_subwords", [None, 1])
@pytest.mark.quick(2)
def test_the_first_exact_batching_is_chosen(encoder, change, chosen, n_subwords):
    meddle(encoder, change)
    tokenized = tokenize(encoder, SENTENCES)
    assert encoder.self_check(tokenized, layers=(0, 1, 2, 3), pooling="mean", n_subwords=n_subwords) < 2e-5
    assert encoder.batching == chosen
    spans, _ = word_spans(tokenized)
    options = {"layers": (1, 3), "pooling": "mean"}
    passes = encoder.encode(tokenized, spans, **options, batch_subwords=256)
    expected = encoder.plain_vectors(tokenized, spans, **options)
    assert relative_error(gather(passes, spans, 2, 32), expected) < 2e-5


def test_why_a_batching_is_refused_is_in_the_plan_and_the_error(encoder):
    meddle(encoder, refuse_packing)
    plan = es.plan(SENTENCES, model=encoder, options=es.ExtractionOptions(layers=[3]), calibrate=False)
    assert encoder.batching == "padded"
    assert plan.advice[:2] == [
        "the batching varlen is not used: it fails (the model did not pass the bounds of the sentences on to its "
        "attention)",
        "the batching packed is not used: it fails (a mask of two dimensions is needed)",
    ]
    with pytest.raises(ModelError, match=r"reproduces .*: packed fails \(a mask of two dimensions is needed\)$"):
        encoder.self_check(tokenize(encoder, SENTENCES), layers=(3,), pooling="mean", batching="packed")


@pytest.mark.parametrize("kind", [RuntimeError, getattr(torch, "AcceleratorError", RuntimeError)])
def test_a_gpu_that_has_failed_is_reported_at_once(encoder, kind):
    """No other batching can be tried: all later calls of the process fail too."""
    tried = []

    def fail(inputs):
        if "attention_mask" not in inputs or inputs["attention_mask"].dim() == 4:
            tried.append(inputs)
            raise kind("CUDA error: an illegal memory access was encountered\nCUDA kernel errors might be later")
        return inputs

    meddle(encoder, fail)
    with pytest.raises(ModelError, match=r"^the self-check of .* ended the use of cpu: CUDA error: .* encountered; "):
        encoder.self_check(tokenize(encoder, SENTENCES), layers=(3,), pooling="mean")
    assert len(tried) == 1


MASSIVE = 3000.0  # what the first position of GPT-2 has in its inner layers, where others have 1 to 5


def massive(folder, dtype):
    file = save("gpt2", folder) / "model.safetensors"
    weights = {name: value * (0.2 if "c_proj" in name else 1) for name, value in load_file(file).items()}
    weights["wpe.weight"][0, 7] = MASSIVE
    save_file(weights, file, {"format": "pt"})
    return load_encoder(folder, compute_dtype=dtype)


def leak(inputs):
    """A batch whose sentences see each other, or whose positions see only themselves."""
    if "use_cache" not in inputs:  # the plain pass
        return inputs
    n = inputs["input_ids"].shape[1]
    if KEYWORD in inputs:
        return inputs | {KEYWORD: SentenceBounds.of(np.array([n]), causal=True, device=torch.device("cpu"))}
    mask, place = inputs.get("attention_mask"), torch.arange(n)
    seen = place[:, None] >= place if mask is not None and mask.dim() == 4 else place[:, None] == place
    dtype = torch.float32 if mask is None or mask.dim() == 2 else mask.dtype
    return inputs | {"attention_mask": additive(seen, dtype).expand(len(inputs["input_ids"]), 1, n, n)}


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("batching", BATCHINGS)
@pytest.mark.quick(2)
def test_a_massive_value_hides_no_wrong_vector(tmp_path, batching, dtype):
    """Of one inner layer, each vector is compared by its own length, not by the largest value of the layer."""
    encoder = massive(tmp_path, dtype)
    options = {"layers": (2,), "pooling": "mean", "batching": batching}
    tokenized = tokenize(encoder, SENTENCES)
    assert encoder.self_check(tokenized, **options) < TOLERANCE[encoder.dtype] / 2
    assert encoder.plain_vectors(tokenized, word_spans(tokenized)[0], layers=(2,), pooling="mean").max() > 1000
    meddle(encoder, leak)
    with pytest.raises(ModelError, match=rf"no batching .* reproduces its plain forward pass.* {batching} "):
        encoder.self_check(tokenized, **options)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.quick(1)
def test_a_massive_value_hides_no_wrong_mask_of_windows(tmp_path, dtype):
    encoder = massive(tmp_path, dtype)
    options = {"layers": (2,), "pooling": "mean", "attention_window": 2}
    encoder.self_check(tokenize(encoder, SENTENCES), **options)
    encoder.network.inputs = replace(encoder.network.inputs, causal=False)
    with pytest.raises(ModelError, match=r"an attention window wider than the sentence changes layer 1 of"):
        require_own_mask(encoder.network, tokenize(encoder, SENTENCES))


@pytest.mark.parametrize("reach", [20, 40, 150])
@pytest.mark.quick(1)
def test_one_short_sentence_is_enough_to_find_a_fault(encoder, reach):
    meddle(encoder, lambda inputs: slide(inputs, reach))
    encoder.self_check(tokenize(encoder, [["cat"]]), layers=(3,), pooling="mean")
    assert encoder.batching == "padded"


@pytest.mark.parametrize(("layer", "shortest", "of_a_kind"), [(3, 5, False), (2, 90, False), (3, 90, True)])
def test_a_small_extraction_has_a_small_check_of_every_layer_and_kind(encoder, layer, shortest, of_a_kind):
    """Long sentences run until each kind of block has, short ones to the end; a fault in either is found."""
    blocks, n_positions = encoder.network.model.encoder.layer, [0, 0, 0]

    def meddle_with(number, given, output):
        n_positions[number] += output[..., 0].numel()
        is_wrong = fault and number == layer - 1 and output.shape[0] == 1 and output.shape[1] > shortest
        return output + 0.1 * (is_wrong and encoder.network.model.config._attn_implementation == varlen.NAME)

    for number, block in enumerate(blocks):
        block.register_forward_hook(lambda _, *given, number=number: meddle_with(number, *given))
    if of_a_kind:
        blocks[layer - 1].attention.reach = 7
    deepest, fault = encoder.network.layers_of_all_kinds, False
    assert deepest == (layer if of_a_kind else 2)
    tokenized, options = tokenize(encoder, SENTENCES), {"layers": (3,), "pooling": "mean"}
    encoder.self_check(tokenized, **options, n_subwords=10**6)
    assert n_positions[0] == n_positions[2]
    n_positions[:] = 0, 0, 0
    encoder.self_check(tokenized, **options, n_subwords=1)
    assert n_positions[0] == n_positions[deepest - 1]
    assert (n_positions[2] < n_positions[0] / 5) == (deepest < 3)
    fault = True
    encoder.self_check(tokenized, **options, n_subwords=1)
    assert encoder.batching == "packed"


@pytest.mark.parametrize(("longest", "chosen"), [(30, "packed"), (60, "padded"), (None, "padded")])
@pytest.mark.quick(2)
def test_no_sentence_longer_than_those_of_the_extraction_is_checked(encoder, monkeypatch, longest, chosen):
    meddle(encoder, lambda inputs: slide(inputs, 40))
    lengths = []
    plain_states = encoder.plain_states
    monkeypatch.setattr(
        encoder, "plain_states", lambda *given: lengths.append(len(plain_states(*given)[0])) or plain_states(*given)
    )
    encoder.self_check(tokenize(encoder, [["cat"]]), layers=(3,), pooling="mean", longest=longest)
    assert encoder.batching == chosen
    assert max(lengths) == (longest or encoder.info.max_subwords)


def test_sentences_without_words(encoder):
    assert encoder.self_check(tokenize(encoder, [[], ["\u200b"]]), layers=(3,), pooling="mean") < 2e-5
    assert encoder.self_check(tokenize(encoder, []), layers=(3,), pooling="mean") < 2e-5


def test_a_model_that_no_batching_reproduces_is_refused(encoder):
    tokenized = tokenize(encoder, SENTENCES)
    encoder.self_check(tokenized, layers=(3,), pooling="mean")
    calls = []

    def drift(module, args, output):
        calls.append(1)
        return output + 0.01 * len(calls)

    encoder.network.model.embeddings.register_forward_hook(drift)
    with pytest.raises(ModelError, match=r"no batching .* reproduces .*: varlen differs by .*; equal differs by"):
        encoder.self_check(tokenized, layers=(3,), pooling="mean")
    assert encoder.batching == "varlen"


@pytest.mark.parametrize("name", ["bert", "gpt2"])
@pytest.mark.quick(1)
def test_wrong_packed_weights_are_dropped(tmp_path, name):
    encoder = load_encoder(save(name, tmp_path))
    forwards = encoder.network.packed.forwards
    module, forward = list(forwards.items())[1]
    forwards[module] = lambda inputs: 1.001 * forward(inputs)
    tokenized = tokenize(encoder, SENTENCES)
    assert encoder.self_check(tokenized, layers=(3,), pooling="mean") < 2e-5
    assert (encoder.batching, encoder.network.packed.nbytes) == ("varlen", 0)
    encoder.free()
    assert encoder.network.packed.nbytes == 0, "nor are they packed when they are loaded again"


@pytest.mark.parametrize(("capability", "packs"), [("AVX512", True), ("AVX2", False), ("DEFAULT", False)])
@pytest.mark.quick(2)
def test_weights_are_packed_where_the_cpu_gains(tmp_path, monkeypatch, capability, packs):
    monkeypatch.setattr(layers, "gains_by_packing", GAINS_BY_PACKING)
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    network = load_encoder(save("bert", tmp_path)).network
    assert (network.packed.nbytes > 0) == packs


def test_the_plain_pass_runs_the_stock_model(encoder):
    tokenized, network = tokenize(encoder, SENTENCES), encoder.network
    encoder.self_check(tokenized, layers=(3,), pooling="mean")
    assert len(network.packed.forwards) == 19  # the pooler's too
    assert not any("forward" in vars(module) for module in network.packed.forwards)
    used, forward = [], torch.nn.Linear.forward
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.nn.Linear, "forward", lambda *given: used.append(1) or forward(*given))
        spans, _ = word_spans(tokenized)
        list(encoder.encode(tokenized, spans, layers=(3,), pooling="mean", batch_subwords=64))
        assert used == []
        encoder.plain_vectors(tokenized, spans, layers=(3,), pooling="mean")
        assert used


def test_hidden_states_that_are_not_finite_are_refused(encoder):
    with torch.no_grad():
        encoder.network.model.embeddings.word_embeddings.weight[:] = 3e38
    with pytest.raises(ModelError, match=r"layer 0 .* not finite in float32"):
        encoder.self_check(tokenize(encoder, SENTENCES), layers=(0,), pooling="mean")


CAUSAL = ("gpt2", "gpt_neox", "llama", "mistral", "mixtral", "qwen2_moe")


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("name", ["bert", "modernbert", "t5", *CAUSAL])
@pytest.mark.quick(3)
def test_causality_is_that_of_the_architecture(tmp_path, name, dtype):
    encoder = load_encoder(save(name, tmp_path), compute_dtype=dtype)
    assert encoder.causal == (name in CAUSAL)


def test_an_architecture_that_says_nothing_is_judged_by_its_effect():
    """The attention of Bloom, XLNet and DeBERTa has no `is_causal`."""
    bloom = transformers.BloomModel(transformers.BloomConfig(vocab_size=50, hidden_size=32, n_layer=2, n_head=4))
    for model, causal in (
        (bloom, True),
        (ARCHITECTURES["xlnet"]()[0], False),
        (ARCHITECTURES["deberta_v2"]()[0], False),
    ):
        assert not any(hasattr(module, "is_causal") for module in model.modules())
        given = {"input_ids": torch.arange(10, 17)[None]}
        with torch.no_grad():
            states = model.eval()(**given, output_hidden_states=True).hidden_states
            assert networks._is_causal(model, given, states, 2e-5) == causal


def test_no_position_beyond_the_table_is_tried():
    """On a GPU a position without an embedding ends the use of the device, so it must not be left to an IndexError."""
    model, _ = ARCHITECTURES["gpt2"]()
    given, tried = {"input_ids": torch.arange(10, 17)[None]}, []
    states = tuple(torch.rand(1, 7, 32) for _ in range(4))  # no positions give these
    for padding in (None, 300, 313, 10**9):
        model.config.pad_token_id = padding
        handle = model.register_forward_pre_hook(
            lambda module, args, inputs: tried.append(int(inputs["position_ids"].max())), with_kwargs=True
        )
        with torch.no_grad():
            assert networks._position_offset(model.eval(), given, states, 1e-6) is None
        handle.remove()
    assert tried == [6, 7, 8, 6, 307, 8, 6, 8, 6, 8]


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("bert", {"causal": True}),
        ("mixtral", {"causal": False}),
        ("gpt2", {"causal": False}),
        ("mistral", {"window": None}),
    ],
)
@pytest.mark.quick(2)
def test_a_wrong_mask_of_windows_is_found_without_that_mask(tmp_path, name, wrong):
    """The batches and the plain pass of a window have the same wrong mask, so their difference says nothing."""
    encoder = load_encoder(save(name, tmp_path))
    encoder.network.inputs = replace(encoder.network.inputs, **wrong)
    with pytest.raises(ModelError, match=r"an attention window wider than the sentence changes layer 1 of"):
        encoder.self_check(tokenize(encoder, SENTENCES), layers=(3,), pooling="mean", attention_window=2)


def test_the_fastest_batching_is_that_of_the_shortest_round(monkeypatch):
    """The first round warms up, one of five per cent more is as good, and few rounds are run of slow ones."""
    took = {"varlen": [90, 105, 107], "packed": [1, 104, 101], "padded": [1, 100, 150], "equal": [200, 150, 140]}
    now, runs = 0.0, []

    def run(name, scale=1e-3):
        nonlocal now
        now += scale * took[name][min(runs.count(name), 2)]
        runs.append(name)

    monkeypatch.setattr(batched, "perf_counter", lambda: now)
    assert fastest(["equal", "varlen", "packed", "padded"], run) == "varlen"
    assert len(runs) == 4 * 4
    runs.clear()
    took["varlen"] = [1, 106, 106]
    assert fastest(["varlen", "packed", "padded"], run) == "packed"
    runs.clear()
    assert fastest(["varlen", "padded"], lambda name: run(name, 1.0)) == "padded"
    assert runs == ["varlen", "padded"] * 2


@pytest.mark.slow
def test_a_gpu_chooses_the_fastest_exact_batching_and_measures_it_once(encoder, monkeypatch):
    given = []

    def choose(batchings, run):
        for name in batchings:
            run(name)
        given.append(tuple(batchings))
        return "padded"

    monkeypatch.setattr(batched, "fastest", choose)
    encode, timed = encoder.encode, []

    def spy(*given, **options):
        timed.append((options.get("on_device", False), options["batch_subwords"]))
        return encode(*given, **options)

    monkeypatch.setattr(encoder, "encode", spy)
    monkeypatch.setattr(batched, "wait", timed.append)
    tokenized, options = tokenize(encoder, SENTENCES), {"layers": (0, 3), "pooling": "mean", "batch_subwords": 150}
    encoder.self_check(tokenized, **options)
    assert (encoder.batching, given) == ("varlen", []), "a CPU takes the first exact one, whatever its speed"
    monkeypatch.setattr(transformer.TransformerEncoder, "choices_vary", True)
    for _ in range(2):
        assert encoder.self_check(tokenized, **options) < 2e-5
        assert encoder.batching == "padded"
    assert given == [("varlen", "packed", "padded", "equal")], "measured once"
    assert timed.count((True, 150)) == timed.count(encoder.device) == 4, "timed as an extraction runs them"
    encoder.self_check(tokenize(encoder, [SENTENCES[0] * 4]), **options)
    assert len(given) == 2, "measured again for sentences of other lengths"
    meddle(encoder, ignore_packing)
    encoder.self_check(tokenized, **options)
    assert given[2:] == [("padded", "equal")], "what is not exact is not timed"
    encoder.self_check(tokenized, **options, batching="equal")
    assert (encoder.batching, len(given)) == ("equal", 3), "a resumed store keeps its batching"
    with pytest.raises(ModelError, match=r"plain forward pass \(allowed is 2e-05\): packed differs by"):
        encoder.self_check(tokenized, **options, batching="packed")


def test_passes_on_a_gpu_use_no_backend_that_builds_graphs(encoder, monkeypatch):
    with pinned_backends(torch.device("cuda")):
        assert torch.backends.cuda.flash_sdp_enabled()
        assert not torch.backends.cuda.cudnn_sdp_enabled()
    seen = []
    inside = torch.backends.cuda.cudnn_sdp_enabled
    encoder.network.model.register_forward_pre_hook(lambda *_: seen.append(inside()))
    monkeypatch.setattr(transformer, "pinned_backends", lambda device: pinned_backends(torch.device("cuda")))
    encoder.drop_fast_layers()
    tokenized = tokenize(encoder, SENTENCES)
    spans, _ = word_spans(tokenized)
    list(encoder.encode(tokenized, spans, layers=(3,), pooling="mean", batch_subwords=64))
    n_batches = len(seen)
    encoder.plain_vectors(tokenized, spans, layers=(3,), pooling="mean")
    assert n_batches > 1
    assert len(seen) > n_batches
    assert not any(seen)

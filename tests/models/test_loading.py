"""What can be loaded and what not, models before their training, and the model that made a store, found again."""

from __future__ import annotations

import hashlib
import json
import os
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

import embstore as es
from embstore.errors import InvalidValueError, ModelError, StorageError, StoreMismatchError
from embstore.models import load_encoder, model_kind, save_untrained
from embstore.models.origin import _used
from embstore_explorer.stores import Explored
from tests.extraction.plans import plan_of
from tests.models import tiny
from tests.models.oracle import tokenize
from tests.models.tiny import SENTENCES, save

TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json")


@pytest.fixture
def folder(tmp_path):
    return save("bert", tmp_path / "model")


def refused(model, match: str, **options: object) -> None:
    with pytest.raises((ModelError, InvalidValueError), match=match) as caught:
        load_encoder(model, **options)
    assert caught.value.exit_status == 2


def edit_weights(folder, change) -> None:
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def edit_config(folder, **values: object) -> None:
    config = json.loads((folder / "config.json").read_text("utf-8"))
    (folder / "config.json").write_text(json.dumps(config | values), "utf-8")


def test_a_model_is_described(folder):
    encoder = load_encoder(folder)
    info = encoder.info
    assert (info.name, encoder.source) == ("model", str(folder))
    assert (info.architecture, info.num_hidden_layers, info.hidden_size) == ("BertModel", 3, 32)
    assert (info.max_subwords, info.final_norm, info.revision) == (318, False, None)
    assert info.weights_sha256 == hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()
    assert info.tokenizer_sha256 == load_encoder(str(folder)).info.tokenizer_sha256


@pytest.mark.parametrize(("name", "limit"), [("roberta", 318), ("gpt2", 320), ("t5", None), ("xlnet", None)])
def test_the_length_limit_counts_offsets_and_specials(tmp_path, name, limit):
    assert load_encoder(save(name, tmp_path)).info.max_subwords == limit


def test_the_tokenizer_may_set_a_lower_limit(folder):
    config = json.loads((folder / "tokenizer_config.json").read_text("utf-8"))
    (folder / "tokenizer_config.json").write_text(json.dumps(config | {"model_max_length": 100}), "utf-8")
    assert load_encoder(folder).info.max_subwords == 98


def test_shards_are_hashed_in_order(tmp_path, folder):
    encoder = load_encoder(folder)
    encoder.network.model.save_pretrained(tmp_path / "sharded", max_shard_size="20kB")
    for name in TOKENIZER_FILES:
        if (folder / name).exists():
            (tmp_path / "sharded" / name).write_bytes((folder / name).read_bytes())
    shards = sorted((tmp_path / "sharded").glob("model-*.safetensors"))
    assert len(shards) > 1
    expected = hashlib.sha256(b"".join(shard.read_bytes() for shard in shards)).hexdigest()
    assert load_encoder(tmp_path / "sharded").info.weights_sha256 == expected
    shards[0].unlink()
    refused(tmp_path / "sharded", f"has no {shards[0].name}")


@pytest.mark.parametrize(
    "name",
    [None, True, "x/" * 3000, "\ud800", "a\0b", Path("nowhere"), "./nowhere", "a/b/c", "spaces are not allowed"],
    ids=lambda name: repr(name)[:9],
)
@pytest.mark.parametrize("load", [load_encoder, model_kind])
def test_what_is_no_name(name, load):
    with pytest.raises((ModelError, InvalidValueError)) as caught:
        load(name)
    assert len(str(caught.value)) < 200


def without_tokenizer(folder):
    for name in TOKENIZER_FILES:
        (folder / name).unlink(missing_ok=True)


def own_code(folder):
    (folder / "own.py").write_text("raise SystemExit('ran')", "utf-8")
    edit_config(folder, model_type="own", auto_map={"AutoConfig": "own.Config", "AutoModel": "own.Model"})


def pickled(folder):
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()


def weights(content):
    """Return a change that replaces the weights with bytes, or cuts them after a number of bytes."""

    def change(folder):
        file = folder / "model.safetensors"
        file.write_bytes(content if isinstance(content, bytes) else file.read_bytes()[:content])

    return change


def replaced(name, content=None):
    """Return a change that puts bytes, or a pipe that nobody writes to, in the place of a file."""

    def change(folder):
        (folder / name).unlink(missing_ok=True)
        if content is None:
            os.mkfifo(folder / name)
        else:
            (folder / name).write_bytes(content)

    return change


def header(edit):
    """Return a change of the header of the weights."""

    def change(folder):
        data = (folder / "model.safetensors").read_bytes()
        (length,) = struct.unpack("<Q", data[:8])
        entries = json.loads(data[8 : 8 + length])
        edit(next(entry for name, entry in entries.items() if name != "__metadata__"))
        text = json.dumps(entries).encode()
        (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data[8 + length :])

    return change


def index_of(content):
    """Return a change that puts an index in the place of the weights."""

    def change(folder):
        (folder / "model.safetensors").unlink()
        (folder / "model.safetensors.index.json").write_bytes(content)

    return change


def shards(*names):
    return index_of(json.dumps({"weight_map": dict(enumerate(names))}).encode())


NESTED = b'{"a":' * 200_000


def test_an_index_next_to_the_weights_is_ignored_as_transformers_does(folder):
    expected = load_encoder(folder).info.weights_sha256
    (folder / "model.safetensors.index.json").write_text('{"weight_map": {"a": "model-00001-of-00002.safetensors"}}')
    assert load_encoder(folder).info.weights_sha256 == expected


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (replaced("config.json", NESTED), "is not of a known model"),
        (replaced("config.json"), "has no config.json"),
        (lambda folder: edit_config(folder, vocab_size=10**13), "cannot be loaded"),
        (lambda folder: os.truncate(folder / "tokenizer.json", 3000), "tokenizer of .* cannot be loaded"),
        (replaced("model.safetensors"), "has no model.safetensors"),
        (index_of(NESTED), "is not a safetensors index"),
        (shards("../other/model.safetensors"), "is not the name of a file in its folder"),
        (header(lambda entry: entry.update(shape=[2**40, 2**20])), "are damaged"),
        (weights(struct.pack("<Q", 2**62)), "are damaged"),
        (weights(struct.pack("<Q", 2) + b"{}"), "do not contain"),
        (lambda folder: edit_config(folder, model_type="of-the-future"), "is not of a known model"),
        (
            lambda folder: edit_config(folder, intermediate_size=52),
            "loaded: its weights have other shapes than its config",
        ),
        (replaced("tokenizer_config.json", b'{"model_max_length": "x"}'), "tokenizer of .* cannot be loaded"),
        (replaced("tokenizer_config.json", b'{"model_max_length": 0}'), "model_max_length is 0: give a number above 0"),
        (own_code, "is not of a known model"),
        (without_tokenizer, "has no tokenizer"),
        (replaced("adapter_config.json", b"{}"), "is an adapter: give a model with the adapter merged"),
        (weights(5000), "are damaged"),
        (pickled, "pickled weights are never loaded: convert them"),
        (lambda folder: (folder / "model.safetensors").unlink(), "has no model.safetensors; give a folder with"),
    ],
)
@pytest.mark.quick(10)
def test_a_damaged_folder_is_refused(folder, change, match):
    change(folder)
    refused(folder, match)


@pytest.mark.parametrize("kind", ["ViT", "CLIP", "Wav2Vec2"])
def test_models_of_something_else_than_text(folder, kind):
    small = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    parts = {"text_config": small, "vision_config": small} if kind == "CLIP" else small
    model = getattr(transformers, f"{kind}Model")(getattr(transformers, f"{kind}Config")(**parts))
    (folder / "config.json").unlink()
    model.save_pretrained(folder)
    refused(folder, "has no embeddings of subwords: use a model of text")


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_not_finite(folder, value):
    name = "encoder.layer.1.output.dense.weight"
    edit_weights(folder, lambda tensors: tensors[name].view(-1).__setitem__(5, value))
    refused(folder, f"contain NaN or infinity in '{name}'")


def test_weights_beyond_float16(folder):
    edit_weights(folder, lambda tensors: tensors["embeddings.LayerNorm.bias"].__setitem__(0, 1e6))
    load_encoder(folder)
    refused(folder, "in 'embeddings.LayerNorm.bias' .as float16.*wider", compute_dtype="float16")


@pytest.mark.parametrize("name", ["encoder.layer.2.attention.self.query.weight", "embeddings.LayerNorm.bias"])
def test_missing_weights_are_not_random(folder, name):
    edit_weights(folder, lambda tensors: tensors.pop(name))
    refused(folder, f"do not contain 1 parameters that the hidden states need, such as '{name}'")


def test_a_pooler_that_hidden_states_do_not_need_may_be_missing(folder):
    whole = load_encoder(folder)

    def drop(tensors):
        del tensors["pooler.dense.weight"], tensors["pooler.dense.bias"]

    edit_weights(folder, drop)
    encoder = load_encoder(folder)
    tokenized = tokenize(encoder, SENTENCES)
    assert encoder.self_check(tokenized, layers=(0, 1, 2, 3), pooling="mean") < 2e-5
    assert whole.info.weights_sha256 != encoder.info.weights_sha256


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_unknown_options(folder):
    with es.config(device="cuda"):
        refused(folder, "device 'cuda' is not available here; choose one of auto, cpu")
    refused(folder, "unknown compute dtype 'int8'; allowed are auto, float32", compute_dtype="int8")
    refused(folder, "device_map {} is not allowed", device_map={})


def test_a_model_of_the_hub_is_known_by_its_revision(folder, monkeypatch):
    import huggingface_hub

    asked = {}

    def fetched(name: str, **options: object) -> str:
        asked.update(options, name=name)
        return str(folder)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fetched)
    info = load_encoder("someone/something", revision="main").info
    assert (info.name, info.revision) == ("someone/something", folder.name)
    assert asked["revision"] == "main"
    assert not any(pattern.endswith((".bin", ".py", "*")) for pattern in asked["allow_patterns"])


@pytest.mark.slow
def test_loading_is_silent_and_leaves_settings_alone(folder):
    script = (
        "import sys, transformers; from embstore.models import load_encoder\n"
        "before = transformers.utils.logging.get_verbosity()\n"
        "load_encoder(sys.argv[1])\n"
        "assert transformers.utils.logging.get_verbosity() == before\n"
        "assert transformers.utils.logging.is_progress_bar_enabled()\n"
    )
    edit_weights(folder, lambda tensors: tensors.pop("pooler.dense.weight"))
    ran = subprocess.run([sys.executable, "-c", script, str(folder)], capture_output=True, text=True, timeout=600)
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "", "")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.save("bert", tmp_path_factory.mktemp("models") / "tiny-bert")


def test_the_same_seed_draws_the_same_model_and_another_another(model: Path, tmp_path: Path) -> None:
    torch.manual_seed(5)
    before = torch.rand(1)
    torch.manual_seed(5)
    folders = [save_untrained(model, tmp_path / str(number), seed=seed) for number, seed in enumerate((1, 1, 2))]
    assert torch.equal(torch.rand(1), before)  # the caller's numbers are as they were
    first, again, other = (load_file(folder / "model.safetensors") for folder in folders)
    trained = load_file(model / "model.safetensors")
    name = next(name for name in first if name.endswith("attention.self.query.weight"))
    assert set(first) == set(other)
    assert all(torch.equal(first[key], again[key]) for key in first)
    assert not torch.equal(first[name], other[name])
    assert not torch.equal(first[name], trained.get(name, trained.get(f"bert.{name}", other[name])))


def test_it_extracts_with_the_tokenizer_of_the_model(model: Path, tmp_path: Path) -> None:
    drawn = save_untrained(model, tmp_path / "drawn")
    plans = [es.plan([["the", "cat", "sat"]], model=each, calibrate=False) for each in (model, drawn)]
    assert plans[0].survey.n_subwords == plans[1].survey.n_subwords
    assert plans[0].layout.layers == plans[1].layout.layers
    assert plans[0].encoder.info.tokenizer_sha256 == plans[1].encoder.info.tokenizer_sha256
    assert plans[0].encoder.info.weights_sha256 != plans[1].encoder.info.weights_sha256


def test_what_is_no_model_is_refused_and_nothing_is_replaced(model: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="no model folder"):
        save_untrained(tmp_path / "none", tmp_path / "out")
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "notes.txt").write_text("mine")
    before = {path.name: path.read_bytes() for path in model.iterdir()}
    for folder in (tmp_path / "kept", model):  # the second would be the trained model itself
        with pytest.raises(StorageError, match="exists already"):
            save_untrained(model, folder)
    assert (tmp_path / "kept" / "notes.txt").read_text() == "mine"
    assert {path.name: path.read_bytes() for path in model.iterdir()} == before


TEXT = "the old [bank] was steep"


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with a model in a folder below it, and a cache of its own."""
    monkeypatch.setenv("EMBSTORE_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("EMBSTORE_MODEL", raising=False)
    tiny.save("bert", tmp_path / "work/out/tiny")
    monkeypatch.chdir(tmp_path / "work")
    return tmp_path / "work"


def extracted(path: Path) -> es.Store:
    return es.extract(plan_of(tiny.SENTENCES, model="out/tiny", dtype="float32"), path)


def test_a_model_below_the_working_directory_is_found_from_another(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = extracted(work / "made.zarr")
    vectors, near = store.select().vectors(), es.neighbors(store, TEXT, k=3)
    assert str(work) not in (store.path / "zarr.json").read_text("utf-8")
    (work.parent / "elsewhere").mkdir()
    monkeypatch.chdir(work.parent / "elsewhere")
    assert es.neighbors(store, TEXT, k=3).equals(near)
    assert Explored(store).can_encode
    assert Explored(store).encoder().info.name == "tiny"
    assert np.array_equal(es.store.thin(store.path).select().vectors(), vectors)


def test_a_model_that_was_moved_is_named_by_an_option_or_a_variable(
    work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = extracted(work / "made.zarr")
    near = es.neighbors(store, TEXT, k=3)
    moved = (work / "out/tiny").rename(work / "out/other")
    gone = r"the model 'tiny' that made .* is not found, no longer at .*: .*--model .*EMBSTORE_MODEL"
    for use in (
        lambda: es.neighbors(store, TEXT, k=3),
        lambda: es.store.thin(store.path),
        lambda: Explored(store).encoder(),
    ):
        with pytest.raises(ModelError, match=gone):
            use()
    assert not Explored(store).can_encode
    monkeypatch.setenv("EMBSTORE_MODEL", str(moved))
    assert es.neighbors(store, TEXT, k=3).equals(near)
    assert Explored(store).can_encode
    monkeypatch.delenv("EMBSTORE_MODEL")
    assert es.neighbors(store, TEXT, k=3).equals(near), "the place is remembered"


@pytest.mark.parametrize("damage", [lambda place: place.write_bytes(b"/\xff\0\n"), os.mkfifo])
def test_a_damaged_memory_of_the_place_is_none(work: Path, damage: Callable[[Path], object]) -> None:
    store = extracted(work / "made.zarr")
    (place,) = (work.parent / "cache/models").iterdir()
    place.unlink()
    damage(place)
    _used.clear()  # as in another process
    with pytest.raises(ModelError, match="is not found"):
        es.neighbors(store, TEXT, k=3)


def changed_config(folder: Path, **fields: object) -> None:
    config = json.loads((folder / "config.json").read_text("utf-8"))
    (folder / "config.json").write_text(json.dumps(config | fields), "utf-8")


def test_another_configuration_is_another_model(work: Path) -> None:
    made = plan_of(tiny.SENTENCES, model="out/tiny", dtype="float32")
    store, virtual = es.extract(made, work / "made.zarr"), es.extract(made, work / "virtual.zarr", virtual=True)
    changed_config(work / "out/tiny", hidden_act="gelu_new")
    for use in (
        lambda: virtual.select().vectors(),
        lambda: es.neighbors(store, TEXT, k=3),
        lambda: es.store.thin(store.path),
        lambda: Explored(store).encoder(),
    ):
        with pytest.raises(ModelError, match=r"has another configuration than the model 'tiny' that made .*--model"):
            use()
    with pytest.raises(StoreMismatchError, match=r"was made with model\.config_sha256"):
        extracted(store.path)


def test_fields_that_change_no_vector_are_left_out(work: Path) -> None:
    before = es.load_encoder("out/tiny").info
    unused = {"transformers_version": "9.9", "id2label": {"0": "x"}, "hidden_dropout_prob": 0.5, "use_cache": False}
    changed_config(work / "out/tiny", **unused, dtype="bfloat16", _name_or_path="elsewhere")
    assert es.load_encoder("out/tiny").info == before
    for fields in ({"layer_norm_eps": 1e-3}, {"pad_token_id": 3}, {"hidden_act": "relu"}):
        changed_config(work / "out/tiny", **fields)
        other = es.load_encoder("out/tiny").info
        assert other.config_sha256 != before.config_sha256, fields
        before = other

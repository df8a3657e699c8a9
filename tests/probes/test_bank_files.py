"""Saved probes are the same probes, or say what is wrong with them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from importlib import resources
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from embstore.errors import InvalidValueError, SavedProbesError, SavedProbesNotFoundError
from embstore.probes.classes.classes import apply_probes, probe_classes
from embstore.probes.classes.files import SavedBank
from embstore.probes.splits import PARTS
from embstore.store.metadata import document_crc32c
from tests.probes.class_store import Made, make

KINDS: list[dict[str, Any]] = [
    {"kind": "linear", "control": True},
    {"kind": "mlp", "hidden_size": 6, "level": "type", "control": True, "seeds": (3, 1)},
    {"kind": "mlp", "hidden_size": 4, "patience": None, "max_contexts": None},
]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    return make(tmp_path_factory.mktemp("stores") / "made.zarr")


@pytest.fixture(scope="module")
def saved(made: Made, tmp_path_factory: pytest.TempPathFactory) -> Path:
    train, test = made.lists
    folder = tmp_path_factory.mktemp("saved") / "probes"
    probe_classes(made.store, train=train, test=test, epochs=2, **KINDS[0]).bank.save(folder)
    return folder


@pytest.mark.parametrize("options", KINDS, ids=["linear", "types", "mlp"])
def test_what_is_read_is_what_was_saved(made: Made, tmp_path: Path, options: dict[str, Any]) -> None:
    train, test = made.lists
    result = probe_classes(made.store, train=train, test=test, epochs=2, splits=PARTS, **options)
    bank = result.bank
    bank.save(tmp_path / "a" / "probes")
    read = SavedBank.load(tmp_path / "a" / "probes")
    assert read.bank.shape == bank.bank.shape
    for name, tensor in bank.bank.weights.items():
        assert torch.equal(tensor, read.bank.weights[name])
    assert (read.split, read.training, read.asking, read.store) == (bank.split, bank.training, bank.asking, bank.store)
    np.testing.assert_array_equal(read.dev_loss, bank.dev_loss)
    assert apply_probes(tmp_path / "a" / "probes", made.store, splits=PARTS).frame.equals(result.frame)
    bank.save(tmp_path / "a" / "probes")  # in place of the first
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["probes"]


def test_the_metadata_are_valid_and_say_what_made_the_probes(made: Made, saved: Path) -> None:
    schema = json.loads(resources.files("embstore.schemas").joinpath("probes.schema.json").read_text("utf-8"))
    jsonschema.Draft202012Validator.check_schema(schema)
    fields = json.loads((saved / "probes.json").read_text("utf-8"))
    jsonschema.validate(fields, schema)
    assert fields["store"]["digest"] == made.store.digest
    assert fields["words"]["sha256"] == SavedBank.load(saved).split.sha256
    for wrong in ({"kind": "deep"}, {"layers": []}, {"width": 0}, {"more": 1}, {"crc32c": -1}):
        assert not jsonschema.Draft202012Validator(schema).is_valid(fields | wrong)


def test_the_tensors_are_plain_weights_and_biases(made: Made, saved: Path) -> None:
    tensors = load_file(saved / "probes.safetensors")
    assert {name: array.shape for name, array in tensors.items()} == {"weight": (3, 1, 6, 8), "bias": (3, 1, 6)}
    bank = SavedBank.load(saved).bank
    vectors = made.vectors[:, :5]
    expected = np.einsum("lsof,lnf->lson", tensors["weight"], vectors) + tensors["bias"][..., None]
    np.testing.assert_allclose(bank.logits(vectors), expected, atol=1e-5)


def test_what_is_no_bank_is_said(saved: Path, tmp_path: Path) -> None:
    with pytest.raises(SavedProbesNotFoundError, match=r"nowhere holds no saved probes: there is no probes\.json"):
        SavedBank.load(tmp_path / "nowhere")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.tex").write_text("x")
    with pytest.raises(InvalidValueError, match=r"full exists and holds something else than probes"):
        SavedBank.load(saved).save(tmp_path / "full")
    assert (tmp_path / "full" / "thesis.tex").exists()


def _cut(folder: Path) -> None:
    path = folder / "probes.safetensors"
    path.write_bytes(path.read_bytes()[:-9])


def _flip(folder: Path) -> None:
    path = folder / "probes.safetensors"
    data = bytearray(path.read_bytes())
    data[-3] ^= 1
    path.write_bytes(data)


def _changed(folder: Path, **fields: Any) -> None:
    path = folder / "probes.json"
    held = json.loads(path.read_text()) | fields
    path.write_text(json.dumps(held))


def _sealed(folder: Path, **fields: Any) -> None:
    path = folder / "probes.json"
    held = json.loads(path.read_text()) | fields
    held["crc32c"] = document_crc32c(held)
    path.write_text(json.dumps(held))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (_cut, r"are damaged \(probes\.safetensors was changed\): train them again"),
        (_flip, r"are damaged \(probes\.safetensors was changed\)"),
        (lambda folder: (folder / "words.json").unlink(), r"are damaged \(No such file or directory\)"),
        (lambda folder: (folder / "words.json").write_text("{}"), r"are damaged \(words\.json was changed\)"),
        (lambda folder: _changed(folder, width=9), r"are damaged \(probes\.json was changed\)"),
        (lambda folder: _sealed(folder, width=9), "has not the tensors that"),
        (lambda folder: _sealed(folder, format_version=2), "have format 2, newer than 1"),
        (lambda folder: (folder / "probes.json").write_text("[]"), "are damaged"),
    ],
)
def test_damage_is_found(saved: Path, tmp_path: Path, damage: Callable[[Path], object], message: str) -> None:
    folder = tmp_path / "probes"
    shutil.copytree(saved, folder)
    damage(folder)
    with pytest.raises(SavedProbesError, match=message) as refused:
        SavedBank.load(folder)
    assert "\n" not in str(refused.value)

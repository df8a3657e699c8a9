"""A model before its training: the same kind, other weights, the same for a seed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

import embstore as es
from embstore.errors import ModelError, StorageError
from embstore.models import save_untrained
from tests.models import tiny


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.save("bert", tmp_path_factory.mktemp("models") / "tiny-bert")


def test_the_same_seed_draws_the_same_model_and_another_another(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from safetensors.torch import load_file

    torch.manual_seed(5)
    before = torch.rand(1)
    torch.manual_seed(5)
    synced: set[str] = set()
    monkeypatch.setattr(os, "fsync", lambda file: synced.add(os.readlink(f"/proc/self/fd/{file}")))
    folders = [save_untrained(model, tmp_path / str(number), seed=seed) for number, seed in enumerate((1, 1, 2))]
    assert torch.equal(torch.rand(1), before)  # the caller's numbers are as they were
    assert {f"{tmp_path}/.2.new/{path.name}" for path in folders[2].iterdir()} | {str(tmp_path)} <= synced
    assert len({path.stat().st_mode for path in folders[0].iterdir()}) == 1  # safetensors writes for the owner alone
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
    assert plans[0].n_subwords == plans[1].n_subwords
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

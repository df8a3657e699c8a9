"""Files of ELMo that are damaged, missing or of something else, each refused in one line."""

from __future__ import annotations

import json
import os
from pathlib import Path

import h5py
import numpy as np
import pytest

from embstore.errors import ModelError
from embstore.models import load_encoder
from tests.models.tiny_elmo import save_elmo


@pytest.fixture
def folder(tmp_path):
    return save_elmo(tmp_path / "elmo")


def refused(folder: Path, match: str) -> None:
    with pytest.raises(ModelError, match=match):
        load_encoder(folder)


@pytest.mark.parametrize(
    ("section", "key", "value", "match"),
    [
        ("lstm", "dim", None, "options.json' are not those of ELMo at lstm.dim: None is not of type 'integer'"),
        ("lstm", "dim", 11, r"contain RNN_0/RNN/MultiRNNCell/Cell0/LSTMCell/W_0 as float32 \(12, 40\)"),
        ("lstm", "n_layers", 3, "do not contain RNN_0/RNN/MultiRNNCell/Cell2/LSTMCell/W_0"),
        ("char_cnn", "filters", [[51, 2]], "have char_cnn.filters 51 wide; a word has 50 characters"),
        ("char_cnn", "filters", [[1, 4], [2, 5], [4, 7]], r"contain CNN/W_cnn_2 as float32 .* \(1, 4, 3, 7\)"),
    ],
)
def test_odd_options(folder, section, key, value, match):
    options = json.loads((folder / "options.json").read_text("utf-8"))
    options[section][key] = value
    (folder / "options.json").write_text(json.dumps(options), "utf-8")
    refused(folder, match)


@pytest.mark.parametrize("name", ["char_embed", "CNN_high_1/b_carry", "RNN_1/RNN/MultiRNNCell/Cell1/LSTMCell/W_P_0"])
@pytest.mark.parametrize(
    ("value", "match"), [(np.nan, "NaN or infinity in"), (np.inf, "NaN or infinity in"), (None, "do not contain")]
)
def test_weights_that_are_no_numbers_or_missing(folder, name, value, match):
    with h5py.File(folder / "lm_weights.hdf5", "r+") as file:
        if value is None:
            del file[name]
        else:
            file[name][1] = value
    refused(folder, f"lm_weights.hdf5' .*{match} {name}; ")


def test_weights_beyond_the_compute_dtype(folder):
    with h5py.File(folder / "lm_weights.hdf5", "r+") as file:
        file["CNN_proj/W_proj"][0, 0] = 1e6
    load_encoder(folder)
    with pytest.raises(ModelError, match=r"contain values beyond 65504 in CNN_proj/W_proj; choose a wider"):
        load_encoder(folder, compute_dtype="float16")


@pytest.mark.parametrize("kept", [0, 100, 3000])
def test_truncated_weights(folder, kept):
    whole = (folder / "lm_weights.hdf5").read_bytes()
    (folder / "lm_weights.hdf5").write_bytes(whole[:kept])
    refused(folder, "weights .*lm_weights.hdf5' are damaged: .*; download them again")


def test_files_that_are_missing_or_too_many(folder):
    whole = (folder / "lm_weights.hdf5").read_bytes()
    (folder / "other_weights.hdf5").write_bytes(whole)
    refused(folder, r"has several \*weights.hdf5: lm_weights.hdf5, other_weights.hdf5; remove all but one")
    (folder / "other_weights.hdf5").unlink()
    (folder / "lm_weights.hdf5").unlink()
    refused(folder, r"ELMo folder .* has no file \*weights.hdf5")
    (folder / "lm_weights.hdf5").write_bytes(whole)
    (folder / "options.json").unlink()
    refused(folder, r"ELMo folder .* has no file \*options.json")


@pytest.mark.parametrize("name", ["options.json", "lm_weights.hdf5"])
@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
def test_files_that_are_no_files(folder, name, make):
    (folder / name).unlink()
    make(folder / name)
    refused(folder, f"{name}' is not a file")

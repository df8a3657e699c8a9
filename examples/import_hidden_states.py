"""Import hidden states that NeuroX or AllenNLP wrote: an HDF5 file with a dataset [layer, word, feature] a sentence.

python examples/import_hidden_states.py elmo.hdf5 elmo.zarr [sentences.txt]

The datasets are named by the numbers of the sentences; `sentence_to_index` has the sentences, unless a file gives them,
one a line, the words separated by spaces.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import h5py
import numpy as np

import embstore as es


def main(source: str, out: str, texts: str | None = None) -> es.Store:
    with h5py.File(source) as file:
        numbers = sorted(int(name) for name in file if name != "sentence_to_index")
        if texts is None:
            mapping = json.loads(file["sentence_to_index"][0])
            lines = {int(number): sentence for sentence, number in mapping.items()}
        else:
            lines = dict(enumerate(Path(texts).read_text("utf-8").splitlines()))
        sentences = [lines[number].split() for number in numbers]
        for number, words in zip(numbers, sentences, strict=True):
            if file[str(number)].shape[-2] != len(words):
                raise SystemExit(f"sentence {number} has {len(words)} words, its dataset {file[str(number)].shape[-2]}")
        arrays = (np.array(file[str(number)], ndmin=3) for number in numbers)  # one layer alone is [word, feature]
        store = es.store.write_arrays(out, sentences, arrays, model=f"imported from {Path(source).name}")
    print(f"{store.path}: {store.n_rows} occurrences in layers {list(store.layers)}")
    return store


if __name__ == "__main__":
    if len(sys.argv) < 3:
        raise SystemExit("python examples/import_hidden_states.py FILE.hdf5 STORE.zarr [SENTENCES.txt]")
    main(*sys.argv[1:4])

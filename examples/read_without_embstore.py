"""Read a store with zarr-python and xarray, or with h5py: embstore is not imported.

    python examples/read_without_embstore.py STORE.zarr|STORE.h5 WORD

docs/reference/format.md describes every array.
"""

import sys
from itertools import pairwise

import numpy as np


def strings(bytes_: np.ndarray, offsets: np.ndarray) -> list[str]:
    """Decode strings in Arrow's layout: UTF-8 bytes, and the offset of each string."""
    text = bytes_.tobytes()
    return [text[start:stop].decode() for start, stop in pairwise(offsets)]


def main(path: str, word: str) -> np.ndarray:
    if path.endswith(".h5"):
        import h5py

        root = h5py.File(path, "r")
    else:
        import xarray
        import zarr

        root = zarr.open_group(path, mode="r")
        print(xarray.open_zarr(path, consolidated=False)["hidden_states"].sizes)

    # The rows of a word: its number among the types, then the rows of each type in CSR form.
    words = strings(root["types/form_bytes"][:], root["types/form_offsets"][:])
    if word not in words:
        sys.exit(f"the store has no word {word!r}")
    start, stop = root["types/indptr"][words.index(word) : words.index(word) + 2]
    rows = root["types/occurrences"][start:stop]

    # Its vectors, layer by layer. Rows that are not written yet are NaN in Zarr; /commits lists the written partitions.
    layers = root["layer"][:]
    vectors = np.stack([root["hidden_states"][number, :, :][rows] for number in range(len(layers))])
    print(f"{word!r}: {len(rows)} occurrences in layers {layers.tolist()}, vectors {vectors.shape} {vectors.dtype}")
    for row in rows[:5]:
        print(
            f"  row {row}: sentence {root['occurrences/sentence'][row]}, word {root['occurrences/position'][row]} of it"
        )
    return vectors


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(*sys.argv[1:])

"""Open a store with the tools that everybody has: zarr-python and xarray, or h5py. No embstore is imported.

    python examples/read_without_embstore.py STORE.zarr|STORE.h5 WORD

See docs/format.md for every array.
"""

import sys
from itertools import pairwise

import numpy as np


def strings(bytes_: np.ndarray, offsets: np.ndarray) -> list[str]:
    """Strings in Arrow's layout: UTF-8 bytes, and where each begins."""
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

    # A word's rows: its number among the types, then the CSR of types to occurrences.
    words = strings(root["type/form_bytes"][:], root["type/form_offsets"][:])
    if word not in words:
        sys.exit(f"the store has no word {word!r}")
    start, stop = root["type/indptr"][words.index(word) : words.index(word) + 2]
    rows = root["type/occurrences"][start:stop]

    # Its vectors, one array a layer. A row that was never written is NaN in Zarr; /commits says which were.
    layers = root["layer"][:]
    vectors = np.stack([root["hidden_states"][at, :, :][rows] for at in range(len(layers))])
    print(f"{word!r}: {len(rows)} occurrences in layers {layers.tolist()}, vectors {vectors.shape} {vectors.dtype}")
    for row in rows[:5]:
        print(
            f"  row {row}: sentence {root['occurrence/sentence'][row]}, word {root['occurrence/position'][row]} of it"
        )
    return vectors


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(*sys.argv[1:])

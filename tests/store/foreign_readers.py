"""Read a store with other tools and print what they see; run as a script, with no embstore anywhere.

Usage: foreign_readers.py TOOL STORE... Prints for each store the SHA-256 of each array's bytes in C order, as JSON.
"""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np


def by_zarr(path: str) -> dict[str, np.ndarray]:
    import zarr

    group = zarr.open_group(path, mode="r")
    found = {}

    def walk(node: Any, prefix: str) -> None:
        for name, array in node.arrays():
            assert array.metadata.dimension_names, name
            found[prefix + name] = array[...]
        for name, inner in node.groups():
            walk(inner, f"{prefix}{name}/")

    walk(group, "")
    return found


def by_tensorstore(path: str) -> dict[str, np.ndarray]:
    import tensorstore

    found = {}
    for node in sorted(Path(path).rglob("zarr.json")):
        if json.loads(node.read_text())["node_type"] == "array":
            spec = {"driver": "zarr3", "kvstore": {"driver": "file", "path": f"{node.parent}/"}}
            array = tensorstore.open(spec, read=True).result()
            assert all(array.domain.labels), node
            found[node.parent.relative_to(path).as_posix()] = array.read().result()
    return found


def by_xarray(path: str) -> dict[str, np.ndarray]:
    import xarray

    engine: dict[str, Any] = {"engine": "zarr", "consolidated": False}
    if path.endswith(".h5"):
        engine = {"engine": "h5netcdf"}
    dataset = xarray.open_dataset(path, **engine)
    assert dataset["hidden_states"].dims == ("layer", "occurrence", "feature")
    arrays = {"hidden_states", "scale", "center", "layer", "commits", "checksum"}
    assert set(dataset.variables) <= arrays  # the scales without values are dimensions only
    assert dataset["commits"].dims == ("partition", "record")
    assert set(dataset["hidden_states"].coords) == {"layer"}
    chosen = dataset["hidden_states"].sel(layer=dataset["layer"].values[1])
    np.testing.assert_array_equal(chosen.values, dataset["hidden_states"].values[1])
    tree = xarray.open_datatree(path, **engine)
    assert not any("phony" in name for node in tree.subtree for name in map(str, node.dims))
    assert tree["occurrences/type"].dims == tree["types/occurrences"].dims == ("occurrence",)
    assert tree["sentences/text_offsets"].dims == tree["sentences/indptr"].dims == ("sentence_bound",)
    found = {}
    for node in tree.subtree:
        for name, variable in node.to_dataset(inherit=False).variables.items():
            found[f"{node.path.strip('/')}/{name}".lstrip("/")] = variable.values
    return found


def by_h5py(path: str) -> dict[str, np.ndarray]:
    import h5py

    found: dict[str, np.ndarray] = {}
    with h5py.File(path, "r") as file:
        assert isinstance(json.loads(file.attrs["embstore"]), dict)

        def visit(name: str, node: Any) -> None:
            if isinstance(node, h5py.Dataset) and not node.is_scale:
                for dim, size in zip(node.dims, node.shape, strict=True):
                    assert dim.label == dim[0].name.split("/")[-1], name
                    assert dim[0].is_scale, name
                    assert dim[0].shape == (size,), name
                found[name] = node[...]

        file.visititems(visit)
        assert file["layer"].is_scale
        found["layer"] = file["layer"][...]
    return found


def described(array: np.ndarray) -> list[str]:
    """The dtype, the shape and the SHA-256 of the bytes."""
    digest = hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()
    return [*map(str, (array.dtype, *array.shape)), digest]


if __name__ == "__main__":
    read = globals()[f"by_{sys.argv[1]}"]
    seen = [{name: described(array) for name, array in read(path).items()} for path in sys.argv[2:]]
    assert not any(name.split(".")[0] == "embstore" for name in sys.modules)
    print(json.dumps(seen))

"""What is explored: the stores with their layers, labels and fields."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Annotated, Any

from embstore_explorer.parameters import Bounds, Number
from embstore_explorer.queries.registry import Asked

MAX_VALUES = 1000  # of a label column


def stores(asked: Asked) -> list[dict[str, Any]]:
    """Describe the stores in their order."""
    return [
        {
            "name": one.name,
            "address": one.address,
            "model": str(one.store.metadata.model["name"]),
            "layers": list(one.store.layers),
            "dim": one.store.hidden_size,
            "rows": one.store.n_rows,
            "written": one.store.n_committed_rows,
            "types": len(one.store.index.words),
            "sentences": len(one.store.index.text),
            "finished": one.store.finished,
            "can_encode": one.can_encode,
            "missing_model": one.missing_model,
            "takes_model": one.takes_model,
            "subwords": one.store.metadata.extraction["unit"] == "subword",
            "umap": find_spec("umap") is not None,
            "labels": [
                {"name": name, "values": labels.names.slice(0, min(len(labels.names), MAX_VALUES))}
                for name, labels in one.store.index.own_labels.items()
            ],
            "fields": [{"name": name, "kind": field.kind} for name, field in one.store.index.fields.items()],
            "probes": [{"name": name, "kind": each.kind} for name, each in one.probes.items()],
        }
        for one in asked.stores
    ]


def model(asked: Asked, *, store: Number = 0, place: Annotated[str, Bounds(1, 4095)]) -> dict[str, Any]:
    """Use the model of a folder or name for a store from now on, if it made the store."""
    one = asked.store(store)
    one.use_model(place)
    return {"store": one.name, "can_encode": one.can_encode}


def reopen(asked: Asked, *, store: Number = 0) -> dict[str, Any]:
    """Open what is now at the place of a store that was replaced; queries under way still read the one before."""
    one = asked.stores[store] = asked.store(store).again()
    return {"store": one.name, "rows": one.store.n_rows}

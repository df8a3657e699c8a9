"""What is explored: the stores with their layers, labels and fields."""

from __future__ import annotations

from typing import Any

from embstore_explorer.queries.registry import Asked
from embstore_explorer.stores import Explored

MAX_VALUES = 1000  # of a label column


def stores(asked: Asked) -> list[dict[str, Any]]:
    """Describe the stores in their order."""
    return [_described(each) for each in asked.stores]


def _described(one: Explored) -> dict[str, Any]:
    store, index = one.store, one.store.index
    return {
        "name": one.name,
        "address": one.address,
        "model": str(store.metadata.model["name"]),
        "layers": list(store.layers),
        "dim": store.hidden_size,
        "rows": store.n_rows,
        "written": store.n_committed_rows,
        "types": len(index.words),
        "sentences": len(index.texts),
        "finished": store.finished,
        "can_encode": one.can_encode,
        "labels": [
            {"name": name, "values": labels.names.slice(0, min(len(labels.names), MAX_VALUES))}
            for name, labels in index.own_labels.items()
        ],
        "fields": [{"name": name, "kind": field.kind} for name, field in index.fields.items()],
        "probes": [{"name": name, "kind": each.kind} for name, each in one.probes.items()],
    }

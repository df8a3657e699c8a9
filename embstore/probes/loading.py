"""Reading saved probes of any kind."""

from __future__ import annotations

import os

from embstore.probes.base import SavedProbe, read_probe
from embstore.probes.classes.probe import ClassProbe
from embstore.probes.edges.probe import EdgeProbe
from embstore.probes.structure.probe import StructuralProbe

PROBES: dict[str, type[ClassProbe] | type[EdgeProbe] | type[StructuralProbe]] = {
    probe.name: probe for probe in (ClassProbe, EdgeProbe, StructuralProbe)
}


def load(path: str | os.PathLike[str]) -> ClassProbe | EdgeProbe | StructuralProbe:
    """Read fitted probes that were saved with their `save`, to score and predict on other stores.

    Raises SavedProbesNotFoundError if there are none, SavedProbesError if they are damaged or of a newer version.
    """

    def build(saved: SavedProbe) -> ClassProbe | EdgeProbe | StructuralProbe:
        return PROBES[saved.probe]._loaded(saved)

    return read_probe(path, build)

"""Reading saved probes of any kind."""

from __future__ import annotations

from pathlib import Path

from embstore.arguments import checked
from embstore.errors import SavedProbesError
from embstore.probes.classes.probe import ClassProbe
from embstore.probes.edges.probe import EdgeProbe
from embstore.probes.rows.probe import RowProbe
from embstore.probes.saved import read_tensors
from embstore.probes.structure.probe import StructuralProbe
from embstore.probes.training import Training


@checked
def load(path: str | Path) -> ClassProbe | EdgeProbe | RowProbe | StructuralProbe:
    """Read fitted probes that were saved with their `save`, to use on other stores; raises SavedProbesError."""
    file = Path(path)
    if not file.is_file():
        raise SavedProbesError(f"{file} is not a file of saved probes: give one that save or --save wrote")
    try:
        document, tensors = read_tensors(file)
        kept = document["settings"]
        kind = {each.name: each for each in (ClassProbe, EdgeProbe, RowProbe, StructuralProbe)}[document["probe"]]
        probe = kind(**{**kept, "training": Training(**kept["training"])})
        probe.fitted_ = probe._restored(document["fitted"], tensors, document["store"])
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RuntimeError) as error:
        raise SavedProbesError(f"the probes {file} are damaged ({error}): train them again") from None
    return probe

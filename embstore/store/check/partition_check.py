"""Whether arrays are those of a partition, before anything of them is written."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from numpy.typing import NDArray

from embstore.errors import InvalidValueError
from embstore.store.arrays import payload_specs
from embstore.store.metadata import Metadata
from embstore.store.vectors import INT8_FILL


def check_partition(metadata: Metadata, partition: int, arrays: Mapping[str, NDArray[Any]]) -> int:
    """Return the rows of a partition; raises InvalidValueError where it is not there or the arrays are not its own."""
    layout = metadata.layout
    if not 0 <= partition < layout.n_partitions:
        raise InvalidValueError(f"there is no partition {partition}: the store has {layout.n_partitions}")
    start, stop = layout.span(partition)
    specs = {spec.path: spec for spec in payload_specs(metadata)}
    if set(arrays) != set(specs):
        raise InvalidValueError(f"a partition holds {sorted(specs)}, not {sorted(arrays)}")
    for name, spec in specs.items():
        shape = (spec.shape[0], stop - start, *spec.shape[2:])
        if arrays[name].shape != shape or arrays[name].dtype != spec.dtype:
            raise InvalidValueError(
                f"{name} of partition {partition} must be {spec.dtype} {shape}, "
                f"not {arrays[name].dtype} {arrays[name].shape}"
            )
    if metadata.dtype == "int8" and (arrays["hidden_states"] == INT8_FILL).any():
        raise InvalidValueError(f"the int8 code {INT8_FILL} means not written and cannot be stored")
    return stop - start

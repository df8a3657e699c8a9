"""Loops over arrays: those of the C extension where it is installed, else the same in numpy, which is slower.

`EMBSTORE_PURE=1` in the environment leaves the extension out, as on a machine without a compiler.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Any

from embstore.kernels.plain import (
    Candidates,
    add_cosines,
    all_finite,
    gather_rows,
    is_resident,
    pack_queries,
    padded_queries,
    partitions_of,
    rank_rows,
    score_pairs,
    will_need,
)

__all__ = [
    "Candidates",
    "add_cosines",
    "all_finite",
    "compiled_name",
    "gather_rows",
    "is_resident",
    "pack_queries",
    "padded_queries",
    "partitions_of",
    "rank_rows",
    "score_pairs",
    "will_need",
]

VERSIONS = ("C", "C with AVX2", "C with AVX-512")  # by the numbers of `limit_target`

_extension: Any = None
if os.environ.get("EMBSTORE_PURE", "0") in ("", "0"):
    with suppress(ImportError):
        from embstore.kernels import compiled as _extension

        globals().update({name: getattr(_extension, name) for name in __all__ if name != "compiled_name"})


def compiled_name() -> str | None:
    """Return what the loops are compiled for, such as "C with AVX2"; None where numpy runs them."""
    return None if _extension is None else VERSIONS[_extension.limit_target(len(VERSIONS) - 1)]

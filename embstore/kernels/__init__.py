"""Loops over arrays: those of the C extension where it is installed, else the same in numpy, which is slower.

`EMBSTORE_PURE=1` in the environment leaves the extension out, as on a machine without a compiler.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Any

from embstore.kernels.plain import Candidates as Candidates
from embstore.kernels.plain import add_cosines as add_cosines
from embstore.kernels.plain import all_finite as all_finite
from embstore.kernels.plain import gather_rows as gather_rows
from embstore.kernels.plain import is_resident as is_resident
from embstore.kernels.plain import pack_queries as pack_queries
from embstore.kernels.plain import padded_queries as padded_queries
from embstore.kernels.plain import rank_rows as rank_rows
from embstore.kernels.plain import score_pairs as score_pairs
from embstore.kernels.plain import take_rows as take_rows
from embstore.kernels.plain import will_need as will_need

VERSIONS = ("C", "C with AVX2", "C with AVX-512")  # by the numbers of `limit_target`

_extension: Any = None
if os.environ.get("EMBSTORE_PURE", "0") in ("", "0"):
    with suppress(ImportError):
        from embstore.kernels import compiled as _extension

        globals().update({key: made for key, made in vars(_extension).items() if key in globals() and key[0] != "_"})


def compiled_name() -> str | None:
    """Return what the loops are compiled for, such as "C with AVX2"; None where numpy runs them."""
    return None if _extension is None else VERSIONS[_extension.limit_target(len(VERSIONS) - 1)]

"""Time importing, opening and a first gather in a fresh process: `open_child.py STORE` prints milliseconds as JSON."""

from __future__ import annotations

import json
import sys
from time import perf_counter


def main() -> None:
    begun = perf_counter()
    import numpy as np

    numpy_imported = perf_counter()
    import embstore as es

    imported = perf_counter()
    store = es.open(sys.argv[1])
    opened = perf_counter()
    store.gather(np.array([0, store.n_rows // 2, store.n_rows - 1]), store.layers[-1])
    read = perf_counter()
    steps = {
        "numpy_import_ms": numpy_imported - begun,
        "import_ms": imported - numpy_imported,
        "open_ms": opened - imported,
        "first_gather_ms": read - opened,
    }
    print(json.dumps({name: 1000 * seconds for name, seconds in steps.items()}))


if __name__ == "__main__":
    main()

"""Files with one crafted number, size or nesting: refused in one line, in little memory, in a process of their own."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.resilience.conftest import campaign
from tests.resilience.scene import Reference, write_tree
from tests.resilience.scenes import _probes, _vectors
from tests.store.test_hostile import change_metadata

SEED = 13
NBYTES = 200 * 2**20
SECONDS = 300  # for all files of a kind; a reader that hangs ends here
HOSTILE: list[Any] = [0, -1, 2**31, 2**62, 2**63, 10**30, 1.5, "x", "", None, [], {}, [[[]]], [10**9] * 3, "../../etc"]

# Reads every path of the list on standard input; prints for each the error, if any, and the seconds of the processor.
CHILD = """
import json, resource, sys, time, warnings
import embstore as es
from embstore.errors import EmbstoreError
from embstore.probes.saved import read_tensors
from embstore.vectors import read_vectors
from pathlib import Path
warnings.simplefilter("ignore")

def store(path):
    report = es.verify(path)
    found = es.open(path)
    found.gather([0, found.n_rows - 1], -1, missing="nan")
    list(found.index.words)
    assert report.ok, report.faults[0]

def probes(path):
    read_tensors(Path(path))

def corpus(path):
    for sentence in es.open_corpus(path):
        pass

read = {"zarr": store, "h5": store, "probes": probes, "vectors": read_vectors, "corpus": corpus}[sys.argv[1]]
allowed = (EmbstoreError, AssertionError, *([OSError, ValueError] if sys.argv[1] == "probes" else []))
for path in json.load(sys.stdin):
    began, error = time.process_time(), ""
    try:
        read(path)
    except allowed as caught:
        error = str(caught)
    except BaseException as caught:
        error = "RAW " + repr(caught)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(json.dumps([error, time.process_time() - began, peak]), flush=True)
"""


def mutated(value: Any, rng: np.random.Generator) -> Any:
    """Replace one random leaf, or branch, of a JSON document by something hostile."""
    if isinstance(value, dict | list) and value and rng.random() < 0.85:
        keys = list(value) if isinstance(value, dict) else range(len(value))
        key = keys[int(rng.integers(len(keys)))]
        changed = dict(value) if isinstance(value, dict) else list(value)
        changed[key] = mutated(value[key], rng)
        return changed
    return HOSTILE[int(rng.integers(len(HOSTILE)))]


def _zarr(path: Path, whole: Reference, rng: np.random.Generator) -> None:
    write_tree(whole.tree, path)
    nodes = sorted(path.rglob("zarr.json"))
    node = nodes[int(rng.integers(len(nodes)))]
    if rng.random() < 0.5:

        def change(attribute: dict[str, Any]) -> None:
            key = sorted(attribute)[int(rng.integers(len(attribute)))]
            attribute[key] = mutated(attribute[key], rng)

        change_metadata(path, change)
    else:
        node.write_text(json.dumps(mutated(json.loads(node.read_text()), rng)))


def _bytes(path: Path, data: bytes, rng: np.random.Generator) -> None:
    """Overwrite, cut or repeat bytes near the beginning, where files say how large they are."""
    changed = bytearray(data)
    start = int(rng.integers(min(len(data), 200)))
    match int(rng.integers(4)):
        case 0:
            changed[start : start + 8] = rng.integers(0, 256, 8, np.uint8).tobytes()
        case 1:
            changed[start : start + 8] = b"\xff" * 8
        case 2:
            changed = changed[:start]
        case _:
            changed[start:start] = b"9" * 30
    path.write_bytes(changed)


def hostile(kind: str, folder: Path, count: int, get: Callable[..., Reference]) -> list[Path]:
    rng = np.random.default_rng(SEED)
    base = folder / "base"
    names = {"zarr": "{}.zarr", "h5": "{}.h5", "probes": "{}", "vectors": "{}.bin", "corpus": "{}.conllu"}
    paths = [folder / names[kind].format(number) for number in range(count)]
    if kind == "probes":
        _probes(base, 1)
    elif kind == "vectors":
        _vectors(base.with_suffix(".bin"), 1)
        base = base.with_suffix(".bin")
    elif kind == "corpus":
        rows = ("1 the the DET DT _ 2 det _ _", "2 bank bank NOUN NN _ 0 root _ _")
        base.write_text("# sent_id = 1\n" + "\n".join(row.replace(" ", "\t") for row in rows) + "\n\n")
    for path in paths:
        if kind == "zarr":
            _zarr(path, get(".zarr"), rng)
        else:
            _bytes(path, (get(".h5").path if kind == "h5" else base).read_bytes(), rng)
    return paths


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["zarr", "h5", "probes", "vectors", "corpus"])
def test_crafted_files(
    tmp_path: Path, reference: Callable[..., Reference], kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = hostile(kind, tmp_path, campaign(50, 8), reference)
    done = subprocess.run(
        [sys.executable, "-c", CHILD, kind],
        input=json.dumps(list(map(str, paths))),
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )
    results = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(results) == len(paths), done.stderr[-2000:]
    named = zip(paths, (error for error, _, _ in results), strict=True)
    wrong = [f"{path.name}: {error}" for path, error in named if error[:4] == "RAW " or "\n" in error]
    assert wrong == []
    assert results[-1][2] - results[0][2] < NBYTES
    refused, slowest = sum(bool(error) for error, _, _ in results), max(seconds for _, seconds, _ in results[1:])
    with capsys.disabled():
        print(f"\n{kind}: {refused} of {len(paths)} crafted files refused, seed {SEED}; slowest {slowest:.2f} s of CPU")

"""The bookkeeping of a job of 10^9 occurrences, with no vectors: plan, layout, commits, a kill, a resume, a loss.

python benchmarks/scale.py --occurrences 1e7 1e8 1e9 --columns-to 1e8 --out benchmarks/results/scale.json
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from measure import Target, anonymous_nbytes, parser_of, peak_nbytes, table, targets_table, write_json
from numpy.typing import NDArray

LAYERS = tuple(range(13))
MEAN_WORDS = 20
TEXT_NBYTES = 6  # of a word and its space, where no text is made
LOST = 0.3
PASSAGE_PARTITIONS = 20
OWN_ALLOWED, GROWTH_ALLOWED = 1e9, 100e6


class Made:
    """A corpus of sentences of 20 words on average; word number n of the list comes 1/n as often as the first.

    It notes how long it took to make them, which is not part of planning.
    """

    def __init__(self, occurrences: int, words: list[str], *, seed: int) -> None:
        self._occurrences = occurrences
        self._words = np.array(words, dtype=object)
        self._seed = seed
        self.seconds = 0.0

    def __iter__(self) -> Iterator[list[str]]:
        rng = np.random.default_rng(self._seed)
        left = self._occurrences
        while left:
            began = time.perf_counter()
            lengths = 1 + rng.poisson(MEAN_WORDS - 1, 4096)
            ends = np.minimum(np.cumsum(lengths), left)
            ends = ends[: int(np.searchsorted(ends, left)) + 1]
            drawn = np.exp(rng.random(int(ends[-1])) * np.log(len(self._words))).astype(np.int64) - 1
            words = self._words[drawn].tolist()
            left -= len(words)
            begins = [0, *ends[:-1].tolist()]
            sentences = [words[begin:end] for begin, end in zip(begins, ends.tolist(), strict=True)]
            self.seconds += time.perf_counter() - began
            yield from sentences


class Watch:
    """The seconds and the largest own memory of the phases of this process, one after the other."""

    def __init__(self) -> None:
        self.phases: dict[str, dict[str, float]] = {}
        self._processor = time.process_time()
        self._seen = [anonymous_nbytes()]
        threading.Thread(target=self._look, daemon=True).start()

    def _look(self) -> None:
        while True:
            time.sleep(0.02)
            self._seen.append(anonymous_nbytes())

    def phase(self, name: str, began: float, **more: float) -> float:
        """End a phase that began then; returns the present time."""
        now = time.perf_counter()
        self._seen.append(anonymous_nbytes())
        processor = time.process_time() - self._processor
        self.phases[name] = {"seconds": now - began, "processor_s": processor, "own_nbytes": max(self._seen), **more}
        self._seen = [anonymous_nbytes()]
        self._processor = time.process_time()
        return time.perf_counter()


def model_folder(folder: Path, words: list[str], *, width: int) -> Path:
    """A BERT with the width and depth of BERT-base, but thin inside, since it is asked to check itself alone."""
    from made_models import save_model

    shape = {"hidden_size": width, "num_hidden_layers": len(LAYERS) - 1, "num_attention_heads": width // 64}
    return save_model(folder / "model", words, **shape, intermediate_size=64)


def lay_out_whole(arguments: argparse.Namespace, store: Path, *, plan_alone: bool = False) -> dict[str, Any]:
    """Plan a stream of sentences and lay its store out, all columns written; then read some partitions' text."""
    from made_models import made_words

    import embstore as es
    from embstore.extraction.partition import Part
    from embstore.store import create_store

    words = made_words(arguments.types)
    corpus = Made(arguments.rows, words, seed=arguments.seed)
    encoder = es.load_encoder(model_folder(store.parent, words, width=arguments.width), device="cpu")
    del words
    watch = Watch()
    began = time.perf_counter()
    made = es.plan(corpus, model=encoder, calibrate=False)
    began = watch.phase("plan", began, making_the_text=corpus.seconds)
    if not plan_alone:
        create_store(store, metadata=made.metadata, index=made.index)
        began = watch.phase("lay out", began)
    chosen = np.linspace(0, len(made.groups) - 1, PASSAGE_PARTITIONS).astype(int).tolist()
    subwords = 0
    for group in chosen:
        for passage in Part.of(made.index, *made.groups.span(group)).passages(encoder, made.text):
            subwords += len(passage.tokenized.ids)
    watch.phase("text of 20 partitions", began, subwords=subwords)
    assert made.layout.n_rows == arguments.rows
    return {"phases": watch.phases, "types": len(made.index.words), "sentences": len(made.index.texts)}


def lay_out_bare(arguments: argparse.Namespace, store: Path) -> dict[str, Any]:
    """Create a store whose columns have their true sizes but are sparse files: they would not fit on the disk."""
    from embstore.bench.made import metadata_of
    from embstore.store import Layout
    from embstore.store.arrays import frozen_spec, no_records
    from embstore.store.metadata import StoredArray
    from embstore.store.zarr.format import COMMITS_CHUNK, all_nodes, column_end, column_key

    watch, began = Watch(), time.perf_counter()
    layout = Layout.of(n_rows=arguments.rows, layers=LAYERS, hidden_size=arguments.width, dtype="float16")
    metadata = metadata_of(layout)
    rows, sentences, types = layout.n_rows, -(-layout.n_rows // MEAN_WORDS), arguments.types
    sizes = {
        **dict.fromkeys(
            [f"occurrences/{name}" for name in ("type", "sentence", "position", "subwords")] + ["types/occurrences"],
            rows,
        ),
        **dict.fromkeys(["types/form_offsets", "types/indptr"], types + 1),
        "types/form_bytes": types * TEXT_NBYTES,
        **dict.fromkeys(["sentences/text_offsets", "sentences/indptr"], sentences + 1),
        "sentences/text_bytes": rows * TEXT_NBYTES,
        "sentences/source": sentences,
        "layer": len(LAYERS),
    }
    arrays = {name: StoredArray((size,), 0) for name, size in sizes.items()}
    objects = {**all_nodes(metadata, arrays), COMMITS_CHUNK: no_records(layout.n_partitions).tobytes()}
    for name, node in objects.items():
        (store / name).parent.mkdir(parents=True, exist_ok=True)
        (store / name).write_bytes(node)
    for name, array in arrays.items():
        spec = frozen_spec(name, arrays)
        file, end = store / column_key(spec), column_end(spec)
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("wb") as open_file:
            open_file.seek(array.shape[0] * spec.dtype.itemsize)
            open_file.write(end)
            open_file.truncate(max(open_file.tell(), array.shape[0] * spec.dtype.itemsize))
    watch.phase("lay out", began)
    return {"phases": watch.phases, "types": types, "sentences": sentences}


def without_vectors() -> None:
    """From now on partitions are committed like any other, but their shards are not written."""
    from embstore.store.zarr.writer import ZarrWriter

    def write(writer: ZarrWriter, partition: int, arrays: Any) -> int:
        return partition

    ZarrWriter.write = write  # type: ignore[method-assign]


def commit(writer: Any, partitions: list[int]) -> None:
    """Commit partitions by the writer that an extraction uses; the arrays given to it take no memory."""
    layout = writer.metadata.layout
    for partition in partitions:
        start, stop = layout.span(partition)
        shape = (len(layout.layers), stop - start, layout.hidden_size)
        writer.write(partition, {"hidden_states": np.broadcast_to(np.float16(0), shape)})


def shuffled(partitions: list[int], *, seed: int) -> list[int]:
    """In the order of machines that work side by side: none in particular."""
    order: NDArray[np.int64] = np.random.default_rng(seed).permutation(np.array(partitions, np.int64))
    return order.tolist()


def fill_and_die(arguments: argparse.Namespace, store: Path) -> dict[str, Any]:
    """Commit seven partitions of ten and be killed."""
    from embstore.store import StoreWriter

    without_vectors()
    watch, began = Watch(), time.perf_counter()
    writer = StoreWriter(store)
    missing = writer.missing()
    began = watch.phase("open and list", began)
    commit(writer, shuffled(missing, seed=arguments.seed)[: round((1 - LOST) * len(missing))])
    watch.phase("commit 70 %", began)
    return {"phases": watch.phases, "peak_nbytes": peak_nbytes(), "killed": True}


def resume(arguments: argparse.Namespace, store: Path) -> dict[str, Any]:
    """Go on where the killed process ended, finish; then lose three partitions of ten of the finished store, again."""
    from embstore.store import StoreWriter

    without_vectors()
    watch, began = Watch(), time.perf_counter()
    partitions = opened(store)
    began = watch.phase("open, unfinished", began)
    with StoreWriter(store) as writer:
        missing = writer.missing()
        began = watch.phase("list what is missing", began)
        assert len(missing) == partitions - round((1 - LOST) * partitions)
        commit(writer, missing)
        began = watch.phase("commit 30 %", began)
        writer.finish()
    began = watch.phase("finish", began)
    assert opened(store) == partitions
    began = watch.phase("open, finished", began)
    lost = shuffled(list(range(partitions)), seed=arguments.seed + 1)[: round(LOST * partitions)]
    with StoreWriter(store) as writer:
        writer.discard(lost)
        began = watch.phase("discard 30 % of it", began)
        assert writer.missing() == sorted(lost)
        commit(writer, sorted(lost))
        began = watch.phase("commit these again", began)
        writer.finish()
    watch.phase("finish again", began)
    return {"phases": watch.phases, "partitions": partitions}


def opened(store: Path) -> int:
    """Open a store, as a user does; returns its partitions. Sparse columns are not read: their content is damaged."""
    import embstore as es
    from embstore.errors import UnfinishedStoreWarning

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UnfinishedStoreWarning)
        found = es.open(store)
    return int(found.layout.n_partitions)


STEPS = {
    "plan": partial(lay_out_whole, plan_alone=True),
    "whole": lay_out_whole,
    "bare": lay_out_bare,
    "fill": fill_and_die,
    "resume": resume,
}


def child(arguments: argparse.Namespace) -> None:
    result = STEPS[arguments.child](arguments, Path(arguments.store))
    print(json.dumps({"peak_nbytes": peak_nbytes(), **result}), flush=True)
    if result.get("killed"):
        os.kill(os.getpid(), signal.SIGKILL)


def stepped(step: str, rows: int, arguments: argparse.Namespace, store: Path) -> dict[str, Any]:
    """Do a step in a process of its own."""
    options = {"rows": rows, "types": arguments.types, "width": arguments.width, "seed": arguments.seed, "store": store}
    own = [str(part) for name, value in options.items() for part in (f"--{name}", value)]
    command = [sys.executable, __file__, "--child", step, *own]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode not in (0, -signal.SIGKILL) or not done.stdout.strip():
        raise SystemExit(f"{step} of {rows:,} ended with status {done.returncode}:\n{done.stderr[-2000:]}")
    result: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    for name, phase in result["phases"].items():
        print(f"{rows:.0e}: {name} {phase['seconds']:.1f} s", file=sys.stderr, flush=True)
    return result


def nbytes_of(store: Path) -> tuple[int, int]:
    """The sizes of a store's files, and the bytes that they take on disk."""
    files = [Path(folder, name).lstat() for folder, _, names in os.walk(store) for name in names]
    return sum(file.st_size for file in files), sum(file.st_blocks * 512 for file in files)


def measured(rows: int, arguments: argparse.Namespace, folder: Path) -> dict[str, Any]:
    store = folder / f"{rows}.zarr"
    whole = rows <= arguments.columns_to
    planned = {} if whole or rows > arguments.plan_to else stepped("plan", rows, arguments, store)["phases"]
    laid_out = stepped("whole" if whole else "bare", rows, arguments, store)
    nbytes, on_disk = nbytes_of(store)
    filled, resumed = (stepped(step, rows, arguments, store) for step in ("fill", "resume"))
    shutil.rmtree(store)
    phases = {**laid_out["phases"], **planned, **filled["phases"], **resumed["phases"]}
    return {
        "occurrences": rows,
        "columns_written": whole,
        "partitions": resumed["partitions"],
        "types": laid_out["types"],
        "sentences": laid_out["sentences"],
        "index_nbytes": nbytes,
        "index_on_disk_nbytes": on_disk,
        "vectors_nbytes": rows * len(LAYERS) * arguments.width * 2,
        "own_nbytes": max(phase["own_nbytes"] for phase in phases.values()),
        "peak_nbytes": {"lay out": laid_out["peak_nbytes"], "fill": filled["peak_nbytes"],
                        "resume": resumed["peak_nbytes"]},
        "phases": phases,
    }  # fmt: skip


def show(runs: list[dict[str, Any]], targets: list[Target]) -> None:
    names = list(dict.fromkeys(name for run in runs for name in run["phases"]))
    head = ["seconds (of the processor; MB of own memory)", *(f"{run['occurrences']:.0e}" for run in runs)]
    rows: list[tuple[object, ...]] = [
        ("partitions", *(run["partitions"] for run in runs)),
        ("index, GB", *(run["index_nbytes"] / 1e9 for run in runs)),
    ]
    rows += [(name, *(partial(_figure, name)(run) for run in runs)) for name in names]
    print(table(head, rows) + "\n")
    print(targets_table(targets))


def _figure(name: str, run: dict[str, Any]) -> str:
    phase = run["phases"].get(name)
    if phase is None:
        return "-"
    return f"{phase['seconds']:.1f} ({phase['processor_s']:.1f}; {phase['own_nbytes'] / 1e6:.0f})"


def targets_of(runs: list[dict[str, Any]]) -> list[Target]:
    largest = runs[-1]
    what = f"GB of own memory at {largest['occurrences']:.0e} occurrences"
    targets = [Target(what, largest["own_nbytes"] / 1e9, OWN_ALLOWED / 1e9, False)]
    planned = [run for run in runs if "plan" in run["phases"]]
    if len(planned) > 1:
        first, last = (run["phases"]["plan"]["own_nbytes"] for run in (planned[0], planned[-1]))
        times = planned[-1]["occurrences"] / planned[0]["occurrences"]
        what = f"MB of own memory that {times:g} times the occurrences add to a plan"
        targets.append(Target(what, (last - first) / 1e6, GROWTH_ALLOWED / 1e6, False))
    return targets


def parse() -> argparse.Namespace:
    parser = parser_of(__doc__)
    parser.add_argument("--occurrences", type=_number, nargs="+", default=[10**7, 10**8, 10**9])
    parser.add_argument("--columns-to", type=_number, default=10**8, help="rows above which columns are sparse")
    parser.add_argument("--plan-to", type=_number, default=0, help="rows up to which such a store is planned")
    parser.add_argument("--types", type=_number, default=10**6, help="distinct words that are drawn from")
    parser.add_argument("--width", type=int, default=768, help="features of a vector; there are 13 layers")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--tmp", help="folder for the files written (default: the system's); 70 bytes an occurrence")
    parser.add_argument("--child", choices=STEPS, help=argparse.SUPPRESS)
    parser.add_argument("--rows", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--store", help=argparse.SUPPRESS)
    return parser.parse_args()


def _number(text: str) -> int:
    return int(float(text))


def main() -> None:
    arguments = parse()
    if arguments.child:
        child(arguments)
        return
    with tempfile.TemporaryDirectory(prefix="embstore-bench-", dir=arguments.tmp) as folder:
        os.environ["TMPDIR"] = folder
        runs = [measured(rows, arguments, Path(folder)) for rows in sorted(arguments.occurrences)]
    targets = targets_of(runs)
    show(runs, targets)
    settings = {
        name: getattr(arguments, name) for name in ("occurrences", "columns_to", "plan_to", "types", "width", "seed")
    }
    write_json(
        arguments.out,
        {"benchmark": "scale", "settings": settings, "runs": runs,
         "targets": targets},
    )  # fmt: skip


if __name__ == "__main__":
    main()

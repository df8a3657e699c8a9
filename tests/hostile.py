"""Hostile input for every command and public function, each run in a process of its own that is forked and limited.

`python -m tests.hostile FOLDER SEED COUNT` runs COUNT cases on copies of a prepared folder and prints an `Outcome` a
line, as JSON. A case replaces one argument of a call that works by a value that is likely to be refused.
"""

from __future__ import annotations

import contextlib
import inspect
import io
import json
import os
import random
import re
import shutil
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

SECONDS = 600  # limit of one case
MANY_DIGITS = "9" * 5000
HUGE = 10**20

# ---------------------------------------------------------------------------------------------------- commands

BASES = {
    "plan": "corpus.txt -m random:8",
    "extract": "corpus.txt new.zarr -m random:8",
    "explore": "gone.zarr --no-browser",
    "report": "store.zarr --sections contents",
    "info": "store.zarr",
    "verify": "store.zarr",
    "lookup": "store.zarr bank",
    "export": "store.zarr copy.zarr",
    "thin": "store.zarr",
    "label": "store.zarr tags.csv --on word",
    "geometry": "store.zarr --min-contexts 1 --set resamples=10",
    "neighbors": "store.zarr bank",
    "senses": "store.zarr bank --clusters 2",
    "knn": "store.zarr --label upos",
    "sql": "store.zarr select(1)",
    "hubness": "store.zarr -k 3",
    "cka": "store.zarr",
    "index": "store.zarr --kind flat",
    "static": "store.zarr new.txt",
    "generate": "corpus.txt made.jsonl -m gone",
    "attention": "corpus.txt -m model",
    "probe classes": "classes.zarr --train train.tsv --test test.tsv --set epochs=1",
    "probe apply": "bank classes.zarr",
    "probe edges": "edges.zarr tasks/colours --set epochs=1 --set hidden_size=4 --set projection=4",
    "probe ontonotes": "ontonotes new",
    "probe mdl": "edges.zarr tasks/colours --set epochs=1 --set hidden_size=4 --set projection=4",
    "probe trace": "edges.zarr edge-probes --targets tasks",
    "probe structure": "trees.zarr --train train.conllu --dev dev.conllu --test test.conllu --set epochs=1",
    "reproduce": "tenney2019 tasks -m tiny=random:8 --out study --set epochs=1 --set hidden_size=4 --set n_sentences=4",
    "bench all": "gone.zarr --quick",
    "bench extract": "corpus.txt -m random:8 --sentences 2",
    "bench breakeven": "corpus.txt -m random:8 --sentences 2",
    "demo": "",
}
TEXTS = [
    "",
    " ",
    "\x00",
    "\udcff",
    "\ud800",
    "é" * 3000,
    "x" * 5000,
    "../..",
    "a\nb",
    "🦆",
    "%s{}",
    "nan",
    "=",
    ",",
    "?",
]
NUMBERS = ["-1", "0", str(HUGE), f"-{HUGE}", "nan", "inf", "1e400", "", "x", "1.5", "0x1", MANY_DIGITS, "\x00", "１"]
PATHS = [
    "gone/none",
    "folder",
    "corpus.txt",
    "fifo.zarr",
    "",
    "\x00",
    "x" * 5000,
    "\udcff",
    "loop",
    "empty",
    "binary.npy",
]
LAYERS = ["99", "-99", "first", "", "0-999999999999", "3-1", MANY_DIGITS, ",", "\x00", str(HUGE), "0,,1", "--1", "nan"]
DEVICES = ["tpu", "cuda:99", "", "mps", "cuda:-1", "cuda:x", "\x00", "cpu:1", MANY_DIGITS, "meta", "xpu"]
KEYS = [*NUMBERS, "true", "[1]", "{a=1}", "none", "\udcff", "much", "a,b"]


def values_of(name: str, kind: Any) -> list[str]:
    """Return hostile values of an option or argument of this name and type."""
    if name in ("layer", "layers"):
        return LAYERS
    if name in ("device", "devices"):
        return DEVICES
    if kind is int:
        return NUMBERS
    if kind is Path or name in ("corpus", "store", "stores", "source", "data", "model", "out", "vectors"):
        return PATHS
    return TEXTS


def command_cases() -> Iterator[tuple[str, str, list[str], str]]:
    """Yield (command, argument, words of the command line, bad value) for every argument and setting of a command."""
    from tests.test_public_names import commands

    for name, base in BASES.items():
        words, place = base.split(), 0
        command = commands()[f"embstore {name}"]
        for each in command.params:
            kind = each.type_descriptor.annotation
            kind = next((inner for inner in getattr(kind, "__args__", ()) if inner in (int, Path, str)), kind)
            if each.param_type_name == "argument":
                for value in values_of(each.name, kind):
                    changed = [*words[:place], value, *words[place + 1 :]]
                    yield name, each.name, [*name.split(), *changed], value
                place += 1
            elif each.name == "settings":
                for key in re.findall(r"\w+", each.help.partition(": ")[2]):
                    for value in KEYS:
                        yield name, f"--set {key}", [*name.split(), *words, "--set", f"{key}={value}"], value
            elif not each.is_flag:
                for value in values_of(each.name, kind):
                    option = max(each.opts, key=len)
                    yield name, option, [*name.split(), *words, f"{option}={value}"], value


def run_command(words: list[str]) -> tuple[int, str, str]:
    """Run `embstore` in this process; returns its exit status, standard output and standard error."""
    from embstore_cli.main import run

    sys.argv = ["embstore", *words]
    out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", errors="backslashreplace") for _ in range(2))
    status: Any = 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            run()
        except SystemExit as ended:
            status = ended.code or 0
        except BaseException:
            status = 99
            traceback.print_exc()
    texts = []
    for stream in (out, err):
        stream.flush()
        texts.append(stream.buffer.getvalue().decode("utf-8", "replace"))  # type: ignore[attr-defined]
    return int(status), texts[0], texts[1]


# ------------------------------------------------------------------------------------------------ Python functions


class Strange:
    """An object of no use."""


def python_values() -> dict[str, Any]:
    """Return values of wrong types and sizes, by name."""
    import numpy as np

    return {
        "3": 3, "-1": -1, "0": 0, "10^20": HUGE, "-10^20": -HUGE, "nan": float("nan"), "inf": float("inf"), "1.5": 1.5,
        "empty text": "", "NUL": "a\0b", "surrogate": "\ud800", "text": "word == 'the'", "bytes": b"x", "True": True,
        "list": [], "list of None": [None], "dict": {}, "object": Strange(), "5,000 digits": int(MANY_DIGITS[:4000]),
        "array": np.zeros((2, 2)), "class": Strange, "function": len, "set": {1, "a"}, "gone": Path("gone/none"),
        "folder": Path("folder"), "fifo": Path("fifo.zarr"), "None": None, "nan list": [float("nan")],
        "huge list": [HUGE],
    }  # fmt: skip


def calls() -> dict[str, Callable[[], tuple[Callable[..., Any], dict[str, Any]]]]:
    """Return calls that work, by name: each gives the function and its arguments."""
    import numpy as np

    import embstore as es

    def opened() -> Any:
        return es.open("store.zarr")

    def words() -> Any:
        return es.vectors.read_vectors("vectors.txt")

    def plan() -> Any:
        return es.plan("corpus.txt", model=es.models.random_encoder(8), calibrate=False)

    def frame() -> Any:
        return es.geometry(opened(), min_contexts=1)

    return {
        "open": lambda: (es.open, {"path": "store.zarr"}),
        "verify": lambda: (es.verify, {"path": "store.zarr"}),
        "export": lambda: (es.export, {"data": "store.zarr", "out": "copy.zarr"}),
        "open_corpus": lambda: (es.open_corpus, {"source": "corpus.txt"}),
        "plan": lambda: (es.plan, {"corpus": "corpus.txt", "model": es.models.random_encoder(8), "calibrate": False}),
        "extract": lambda: (es.extract, {"plan": plan(), "path": "new.zarr"}),
        "plan_windows": lambda: (
            es.extraction.plan_windows,
            {"corpus": "corpus.txt", "model": "model", "context_windows": [0, None], "calibrate": False},
        ),
        "load_encoder": lambda: (es.load_encoder, {"model": "model"}),
        "select": lambda: (opened().select, {"words": "bank"}),
        "gather": lambda: (opened().gather, {"rows": np.array([0, 1]), "layer": 0}),
        "scan": lambda: (lambda **options: list(opened().scan(**options)), {"layer": 0}),
        "vectors": lambda: (opened().select(words="bank").vectors, {}),
        "with_labels": lambda: (opened().with_labels, {"labels": "mine", "values": ["a"] * opened().n_rows}),
        "geometry": lambda: (es.geometry, {"data": opened(), "min_contexts": 1}),
        "summarize_geometry": lambda: (es.analysis.summarize_geometry, {"frame": frame(), "resamples": 10}),
        "extreme_words": lambda: (es.analysis.extreme_words, {"frame": frame()}),
        "neighbors": lambda: (es.neighbors, {"data": opened(), "word": "bank", "k": 2}),
        "neighbors of vectors": lambda: (es.neighbors, {"data": words(), "word": "w1", "k": 2}),
        "senses": lambda: (es.senses, {"data": opened(), "word": "bank", "n_clusters": 2}),
        "static_vectors": lambda: (es.static_vectors, {"data": opened()}),
        "reduce": lambda: (es.reduce, {"data": opened(), "reducers": {}}),
        "build_index": lambda: (es.build_index, {"data": opened(), "kind": "flat"}),
        "open_index": lambda: (es.open_index, {"data": opened()}),
        "hubness": lambda: (es.analysis.hubness, {"data": opened(), "k": 3}),
        "knn_labels": lambda: (es.analysis.knn_labels, {"data": opened(), "label": "upos"}),
        "linear_cka": lambda: (es.analysis.linear_cka, {"data": opened()}),
        "sentence_similarity": lambda: (es.analysis.sentence_similarity, {"data": opened(), "sentence": 0}),
        "labelled_occurrences": lambda: (
            es.analysis.labelled_occurrences,
            {"data": opened(), "word": "bank", "label": "upos"},
        ),
        "all_but_the_top": lambda: (es.analysis.all_but_the_top, {"vectors": np.eye(4, 3)}),
        "read_vectors": lambda: (es.vectors.read_vectors, {"path": "vectors.txt"}),
        "write_vectors": lambda: (es.vectors.write_vectors, {"vectors": words(), "path": "new.txt"}),
        "random_encoder": lambda: (es.models.random_encoder, {"n_dimensions": 4}),
        "vector_encoder": lambda: (es.models.vector_encoder, {"vectors": "vectors.txt"}),
        "model_kind": lambda: (es.models.model_kind, {"model": "model"}),
        "read_trees": lambda: (es.corpus.read_trees, {"path": "train.conllu"}),
        "read_edges": lambda: (lambda **options: list(es.corpus.read_edges(**options)), {"path": "edge.jsonl"}),
        "derived_edges": lambda: (es.corpus.derived_edges, {"path": "train.conllu", "task": "upos"}),
        "read_word_classes": lambda: (es.corpus.read_word_classes, {"path": "train.tsv"}),
        "read_word_list": lambda: (es.corpus.read_word_list, {"path": "words.txt"}),
        "split_words": lambda: (
            es.probes.split_words,
            {name: es.corpus.read_word_classes(f"{name}.tsv") for name in ("train", "test")},
        ),
        "load": lambda: (es.probes.load, {"path": "bank"}),
        "ClassProbe": lambda: (es.ClassProbe, {}),
        "EdgeProbe": lambda: (es.EdgeProbe, {}),
        "StructuralProbe": lambda: (es.StructuralProbe, {}),
        "Training": lambda: (es.Training, {}),
        "Keep": lambda: (es.Keep, {}),
        "ExtractionOptions": lambda: (es.ExtractionOptions, {}),
        "TorchDataset": lambda: (es.TorchDataset, {"selection": opened().select(layers=0)}),
        "WordVectors": lambda: (es.WordVectors, {"words": ("a", "b"), "vectors": np.eye(2, dtype=np.float32)}),
        "Processes": lambda: (_executor("Processes"), {}),
        "probe_scores": lambda: (es.plot.probe_scores, {"summary": frame()}),
        "geometry_figure": lambda: (es.plot.geometry_figure, {"frames": {"a": frame()}}),
        "save": lambda: (es.plot.save, {"figure": es.plot.subplots(figsize=(1, 1))[0], "path": "figure.png"}),
        "write_frame": lambda: (es.store.write_frame, {"frame": frame(), "path": Path("frame.csv")}),
    }


def _executor(name: str) -> Any:
    import embstore.executors

    return getattr(embstore.executors, name)


def arguments_of(name: str) -> list[str]:
    """Return the arguments of a call; those of methods of stores are found on the class."""
    import embstore as es

    methods = {"select": es.Store.select, "gather": es.Store.gather, "scan": es.Store.scan}
    methods |= {
        "vectors": es.Selection.vectors,
        "with_labels": es.Store.with_labels,
        "read_edges": es.corpus.read_edges,
    }
    function = methods.get(name) or calls_without_files(name)
    names = [
        each.name
        for each in inspect.signature(function).parameters.values()
        if each.kind not in (each.VAR_KEYWORD, each.VAR_POSITIONAL) and each.name not in ("self", "progress")
    ]
    return names


def calls_without_files(name: str) -> Any:
    """Return the public function of this name."""
    import embstore as es

    for holder in (es, *(getattr(es, each) for each in es.__all__)):
        if isinstance(holder, ModuleType) and name in getattr(holder, "__all__", ()):
            return getattr(holder, name)
    return {"neighbors of vectors": es.neighbors, "Processes": _executor("Processes")}[name]


def python_cases() -> Iterator[tuple[str, str, str]]:
    for name in calls():
        for argument in arguments_of(name):
            for label in python_values():
                if label != "fifo" or name in ("open", "verify", "export", "extract", "load"):  # others may read pipes
                    yield name, argument, label


def run_python(name: str, argument: str, label: str) -> tuple[int, str, str]:
    """Call a function with one bad argument; the status is 0, 2 for an EmbstoreError, and 99 for any other."""
    from embstore.errors import EmbstoreError

    function, given = calls()[name]()
    try:
        function(**{**given, argument: python_values()[label]})
    except EmbstoreError as error:
        return 2, "", str(error)
    except BaseException:
        return 99, "", traceback.format_exc()
    return 0, "", ""


# ----------------------------------------------------------------------------------------------------- running them


@dataclass(frozen=True)
class Outcome:
    """What a case left: `value` is the bad one; `status` is negative if a signal ended it (14: the limit of time)."""

    kind: str
    call: str
    argument: str
    value: str
    status: int
    out: str
    err: str


def prepare(folder: Path) -> None:
    """Write what the calls read."""
    import numpy as np

    import embstore as es
    from tests.documents import tree
    from tests.models import tiny
    from tests.probes import class_store, edge_store, tree_store

    tiny.save("bert", folder / "model")
    sentences = ["the old bank lends money", "a man sat on the bank", "the river runs to the sea"] * 3
    (folder / "corpus.txt").write_text("\n".join(sentences) + "\n")
    (folder / "words.txt").write_text("bank\nriver\n")
    (folder / "trees.conllu").write_text("\n".join(tree(number) for number in range(12)))
    text = (folder / "trees.conllu").read_text().replace("teacher", "bank")
    (folder / "labelled.conllu").write_text(text)
    es.extract(
        es.plan(folder / "labelled.conllu", model=es.models.random_encoder(8), calibrate=False), folder / "store.zarr"
    )
    vectors = np.random.default_rng(0).normal(size=(20, 4)).astype(np.float32)
    es.vectors.write_vectors(es.WordVectors(tuple(f"w{n}" for n in range(20)), vectors), folder / "vectors.txt")
    (folder / "benchmarks").mkdir()
    (folder / "benchmarks" / "EN-SIMLEX-999.txt").write_text("".join(f"w{n}\tw{n + 1}\t{n % 5}\n" for n in range(12)))
    made = class_store.make(folder / "classes.zarr", words=16)
    for name, part in zip(("train", "test"), made.lists, strict=True):
        lines = [f"@{word.replace(' ', '_')}@\t" + " ".join(f"-{each}=1" for each in part[word]) for word in part]
        (folder / f"{name}.tsv").write_text("\n".join(lines) + "\n")
    lists = {name: es.corpus.read_word_classes(folder / f"{name}.tsv") for name in ("train", "test")}
    once = es.Training(epochs=1)
    es.ClassProbe(training=once).fit(made.store, es.probes.split_words(**lists)).save(folder / "bank")
    edges = edge_store.make(folder / "edges.zarr", sentences=20, layers=(0, 1), planted=1)
    files = edges.write(folder / "tasks" / "colours")
    shutil.copy(files["dev"], folder / "edge.jsonl")
    probe = es.EdgeProbe(hidden_size=4, projection=4, training=once)
    probe.fit(edges.store, files["train"], files["dev"], name="colours").save(folder / "edge-probes")
    trees = tree_store.make(folder / "trees.zarr", sentences=12)
    for name, part in (("train", slice(0, 6)), ("dev", slice(6, 9)), ("test", slice(9, 12))):
        (folder / f"{name}.conllu").write_text(tree_store.conllu(trees.trees[part]))
    (folder / "folder").mkdir()
    (folder / "ontonotes").mkdir()
    (folder / "ontonotes" / "train.gold_conll").write_text("a 0 0 bank NN (TOP(NP*)) - - - - (ORG) (1)\n")
    (folder / "tags.csv").write_text("word,tone\nbank,dry\n")
    (folder / "empty").write_text("")
    (folder / "binary.npy").write_bytes(bytes(range(256)))


def forked(run: Callable[[], tuple[int, str, str]], template: Path) -> tuple[int, str, str]:
    """Run a case in a child process, in its own copy of the folder."""
    with tempfile.TemporaryDirectory() as top, tempfile.TemporaryFile() as answer:
        folder = Path(top) / "work"
        shutil.copytree(template, folder)
        os.mkfifo(folder / "fifo.zarr")
        (folder / "loop").symlink_to("loop")
        child = os.fork()
        if child == 0:
            signal.alarm(SECONDS)
            os.chdir(folder)
            os.dup2(os.open(os.devnull, os.O_RDWR), 0)
            written = answer.fileno()
            os.write(written, json.dumps(run()).encode("utf-8", "backslashreplace"))
            os._exit(0)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        answer.seek(0)
        if status != 0:
            return status, "", "the process ended"
        found = json.loads(answer.read())
        return found[0], found[1], found[2]


def outcomes(template: Path, seed: int, count: int) -> Iterator[Outcome]:
    """Run `count` cases, half commands and half functions, drawn so that every call and argument has its turn."""
    generator = random.Random(seed)
    drawn: list[tuple[str, str, str, Any]] = []
    groups: dict[tuple[str, str, str], list[Any]] = {}
    for name, argument, words, value in command_cases():
        groups.setdefault(("command", name, argument), []).append((words, value))
    for name, argument, label in python_cases():
        groups.setdefault(("function", name, argument), []).append(label)
    order = list(groups)
    for values in groups.values():
        generator.shuffle(values)
    while len(drawn) < count and any(groups.values()):
        generator.shuffle(order)
        drawn += [(*key, groups[key].pop()) for key in order if groups[key]]
    for kind, name, argument, given in drawn[:count]:
        if kind == "command":
            status, out, err = forked(lambda words=given[0]: run_command(words), template)
            shown = given[1]
        else:
            status, out, err = forked(lambda n=name, a=argument, v=given: run_python(n, a, v), template)
            shown = given
        yield Outcome(
            kind, name, argument, shown.encode("utf-8", "backslashreplace").decode(), status, out[:2000], err[:4000]
        )


def load_everything() -> None:
    """Import what any case may use, so that a forked process need not."""
    import importlib.readers  # noqa: F401  here, as a user without rights may not read it

    import faiss  # noqa: F401
    import h5py  # noqa: F401
    import matplotlib
    import transformers.models.bert.modeling_bert  # noqa: F401
    import zarr  # noqa: F401

    import embstore.analysis.neighbors.index
    import embstore.extraction.extract
    import embstore.models.transformer.encoder
    import embstore.probes.edges.probe  # noqa: F401
    import embstore_cli.main  # noqa: F401

    matplotlib.use("agg")


def main() -> None:
    load_everything()
    template, seed, count = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    for outcome in outcomes(template, seed, count):
        print(json.dumps(asdict(outcome)), flush=True)


if __name__ == "__main__":
    main()

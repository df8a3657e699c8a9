"""Extraction side by side, in one run: embstore, a good script, the plain one, NeuroX, and the machine's limit.

python benchmarks/extract.py --model MODEL_DIR --corpus en_ewt-ud-train.conllu --sentences 200 2000 --novel novel.txt
"""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any

import h5py
import numpy as np
import torch
import transformers
from measure import (
    Row,
    Target,
    Times,
    in_fresh_process,
    interleaved,
    paired_ratios,
    parser_of,
    table,
    targets_table,
    timed,
    write_json,
)
from numpy.typing import NDArray
from plain import extract_plainly

import embstore as es
from embstore.bench.extraction_cases import TOKEN_BUDGET, good_script

OURS, GOOD, PLAIN, NEUROX, SGEMM = "embstore", "good script", "plain script", "NeuroX", "matrix multiply"
BY_LAYER = "plain script, pooling layer by layer"
HEADER = ["", "seconds", "CPU s", "words/s", "subwords/s", "x good", "CPU", "x plain", "of matmul peak", "MB written"]
LARGE, ROUNDS_OF_LARGE = 5000, 2  # sentences from which on a text is extracted only so often
MATMUL_SECONDS = 1.0  # how long the machine's limit is measured in each round
RELATIVE = {"float32": 1e-5, "float16": 1.1 * 2**-10}  # float16: the last bit, where 1e-6 decides the rounding
ABSOLUTE = 2e-5


@dataclass(frozen=True)
class Extraction:
    """The seconds of one plan and extraction, and where they were spent."""

    plan_seconds: float
    seconds: float
    timings: Any


@dataclass
class Setting:
    """What every case works on; `folder` is thrown away at the end."""

    sentences: list[list[str]]
    model_folder: Path
    dtype: str
    suffix: str
    batch_subwords: int | None
    folder: Path
    encoder: Any
    tokenizer: Any
    model: Any
    neurox: Path | None
    rates: list[Extraction] = field(default_factory=list)
    plan: es.Plan | None = None
    matmul: list[float] = field(default_factory=list)
    processor: dict[str, list[float]] = field(
        default_factory=lambda: {name: [] for name in (OURS, GOOD, PLAIN, BY_LAYER, NEUROX)}
    )

    @property
    def store(self) -> Path:
        return self.folder / f"ours{self.suffix}"

    @property
    def good(self) -> Path:
        return self.folder / "good.npy"

    @property
    def plain(self) -> Path:
        return self.folder / "plain.h5"

    @property
    def neurox_output(self) -> Path:
        return self.folder / "neurox.hdf5"


def run_ours(setting: Setting, number: int) -> float:
    """Plan, with the default calibration, and extract."""
    remove(setting.store)
    timings = es.extraction.Timings()
    processor = time.process_time()
    start = time.perf_counter()
    made = es.plan(
        setting.sentences,
        model=setting.encoder,
        options=es.ExtractionOptions(dtype=setting.dtype, batch_subwords=setting.batch_subwords),
        store=setting.store,
        progress=False,
    )
    planned = time.perf_counter()
    es.extract(made, setting.store, timings=timings, progress=False)
    ended = time.perf_counter()
    setting.processor[OURS].append(time.process_time() - processor)
    if number >= 0:
        setting.rates.append(Extraction(planned - start, ended - planned, timings))
    setting.plan = made
    return ended - start


def run_good(setting: Setting, number: int) -> float:
    remove(setting.good)
    processor = time.process_time()
    seconds = timed(
        partial(
            good_script,
            setting.sentences,
            setting.tokenizer,
            setting.model,
            setting.good,
            dtype=setting.dtype,
            budget=setting.batch_subwords or TOKEN_BUDGET,
        )
    )
    setting.processor[GOOD].append(time.process_time() - processor)
    return seconds


def run_plain(setting: Setting, number: int, *, name: str = PLAIN) -> float:
    processor = time.process_time()
    seconds = timed(
        partial(
            extract_plainly,
            setting.sentences,
            setting.tokenizer,
            setting.model,
            setting.plain,
            dtype=setting.dtype,
            by_layer=name == BY_LAYER,
        )
    )
    setting.processor[name].append(time.process_time() - processor)
    return seconds


def run_neurox(setting: Setting, number: int) -> float:
    remove(setting.neurox_output)
    result = in_fresh_process(
        Path(__file__).with_name("neurox_child.py"),
        str(setting.model_folder),
        str(setting.folder / "sentences.txt"),
        str(setting.neurox_output),
        environment={"PYTHONPATH": os.pathsep.join(filter(None, [str(setting.neurox), os.environ.get("PYTHONPATH")]))},
    )
    setting.processor[NEUROX].append(float(result["processor_s"]))
    return float(result["seconds"])


def run_matmul(setting: Setting, number: int) -> float:
    """Multiply matrices of this model's shapes for a while; the rate goes to `setting.matmul`."""
    config = setting.model.config
    hidden, inner = config.hidden_size, config.intermediate_size
    rows = setting.batch_subwords or 2048
    operands = [
        (torch.randn(rows, k), torch.randn(k, n), torch.empty(rows, n), times)
        for k, n, times in ((hidden, hidden, 4), (hidden, inner, 1), (inner, hidden, 1))
    ]
    flops = sum(2 * rows * right.numel() * times for _, right, _, times in operands)
    layers, clock = 0, time.process_time if torch.get_num_threads() == 1 else time.perf_counter
    start = clock()
    while clock() - start < MATMUL_SECONDS:
        for left, right, out, times in operands:
            for _ in range(times):
                torch.matmul(left, right, out=out)
        layers += 1
    seconds = clock() - start
    if number >= 0:
        setting.matmul.append(layers * flops / seconds)
    return seconds


def remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def needed_flops(setting: Setting) -> tuple[float, int]:
    """Flops of the linear layers and of attention for the subwords there are, and how many these are.

    A sentence's special subwords count (the model needs them), padding and packing do not.
    """
    config = setting.model.config
    hidden, inner, layers = config.hidden_size, config.intermediate_size, config.num_hidden_layers
    encoded = setting.tokenizer(setting.sentences, is_split_into_words=True, truncation=True, max_length=512)
    lengths = np.array([len(ids) for ids in encoded["input_ids"]], np.float64)
    linear = lengths.sum() * 2 * (4 * hidden * hidden + 2 * hidden * inner)
    attention = (lengths**2).sum() * 4 * hidden
    return float(layers * (linear + attention)), int(lengths.sum())


@dataclass
class Agreement:
    """How the vectors of two extractions compare; `different_words`: sentences of another number of words."""

    sentences: int = 0
    agreeing: int = 0
    different_words: int = 0
    largest_difference: float = 0.0

    def as_json(self) -> dict[str, Any]:
        return dict(vars(self))


def our_sentences(setting: Setting) -> Iterator[tuple[int, NDArray[np.int32], NDArray[np.float32]]]:
    """Yield each sentence's number in the corpus, the positions of its rows, and its vectors."""
    assert setting.plan is not None
    index, layout = setting.plan.index, setting.plan.layout
    store = es.open(setting.store)
    step = 256
    for first in range(0, len(index.source), step):
        last = min(first + step, len(index.source))
        begin, end = int(index.indptr[first]), int(index.indptr[last])
        rows = np.arange(begin, end)
        vectors = np.stack([np.array(store.gather(rows, layer)) for layer in layout.layers])
        for sentence in range(first, last):
            own = slice(int(index.indptr[sentence]), int(index.indptr[sentence + 1]))
            inside = slice(own.start - begin, own.stop - begin)
            yield int(index.source[sentence]), index.position[own], vectors[:, inside].astype(np.float32)


def sentences_of_good(setting: Setting) -> Callable[[int], NDArray[Any]]:
    """Return a function that gives a sentence of the good script's file."""
    vectors = np.load(setting.good, mmap_mode="r")
    bounds = np.concatenate([[0], np.cumsum([len(words) for words in setting.sentences])])
    return lambda number: np.asarray(vectors[:, bounds[number] : bounds[number + 1]])


def compare(setting: Setting, path: Path) -> Agreement:
    """Hold our vectors against a file of one dataset a sentence, or that of the good script."""
    found = Agreement()
    relative = RELATIVE[setting.dtype]
    with nullcontext({}) if path == setting.good else h5py.File(path) as file:
        sentence_of = sentences_of_good(setting) if path == setting.good else lambda number: file[str(number)][:]
        for number, positions, ours in our_sentences(setting):
            theirs = sentence_of(number)
            found.sentences += 1
            if theirs.shape[1] != len(setting.sentences[number]):
                found.different_words += 1
                continue
            theirs = theirs[:, positions].astype(np.float32)
            difference = np.abs(ours - theirs)
            found.largest_difference = max(found.largest_difference, float(difference.max()))
            found.agreeing += bool((difference <= ABSOLUTE + relative * np.abs(theirs)).all())
    return found


def nbytes(path: Path) -> int:
    files = path.rglob("*") if path.is_dir() else [path]
    return sum(file.stat().st_size for file in files if file.is_file())


def report(setting: Setting, times: dict[str, Times], words: int, subwords: int, flops: float) -> dict[str, Any]:
    rate = sorted(setting.rates, key=lambda rate: rate.seconds)[len(setting.rates) // 2]
    peak = float(np.median(setting.matmul))
    cases: dict[str, Any] = {}
    for name, path in (
        (OURS, setting.store),
        (GOOD, setting.good),
        (PLAIN, setting.plain),
        (BY_LAYER, setting.plain),
        (NEUROX, setting.neurox_output),
    ):
        if name not in times:
            continue
        seconds = times[name].median
        cases[name] = {
            **times[name].as_json(),
            "processor_s": float(np.median(setting.processor[name])),
            "words_per_second": words / seconds,
            "subwords_per_second": subwords / seconds,
            **relative_to("good", times[GOOD], times[name]),
            "processor_relative_to_good": median(
                good / own for good, own in zip(setting.processor[GOOD], setting.processor[name], strict=True)
            ),
            **relative_to("plain", times.get(PLAIN), times[name]),
            "share_of_matmul_peak": flops / seconds / peak,
            "nbytes": nbytes(path),
        }
    forward = rate.timings.stages.forward
    ours = {
        "plan_s": rate.plan_seconds,
        "extract_s": rate.seconds,
        "stages": {**vars(rate.timings.stages), "cast": rate.timings.cast, "write": rate.timings.write},
        "forward_share_of_extract": forward / rate.seconds,
        "forward_share_of_plan_and_extract": forward / (rate.seconds + rate.plan_seconds),
        "forward_share_of_matmul_peak": flops / forward / peak,
        "extract_share_of_matmul_peak": flops / rate.seconds / peak,
        "extract_alone_relative_to_good": median(
            good / extract.seconds for good, extract in zip(times[GOOD].seconds, setting.rates, strict=True)
        ),
    }
    targets = [
        Target("times the good script's speed", median(paired_ratios(times[GOOD], times[OURS])), 1, True),
        Target("forward pass, share of extract's wall time", forward / rate.seconds, 0.92, True),
    ]
    if PLAIN in times:
        targets.append(Target("times the plain script's speed", cases[OURS]["speed_relative_to_plain"], 3, True))
    if NEUROX in times:
        targets.append(Target("times NeuroX's speed", median(paired_ratios(times[NEUROX], times[OURS])), 3, True))
    show(setting, cases, ours, peak, targets)
    return {
        "sentences": len(setting.sentences),
        "words": words,
        "subwords_with_specials": subwords,
        "cases": cases,
        "embstore": ours,
        "matmul_peak_gflops": peak / 1e9,
        "matmul_gflops_by_round": [rate / 1e9 for rate in setting.matmul],
        "needed_gflop": flops / 1e9,
        "targets": targets,
    }


def relative_to(name: str, other: Times | None, own: Times) -> dict[str, Any]:
    """Return how many times the speed of another case is reached, and that of each round."""
    if other is None:
        return {}
    ratios = paired_ratios(other, own)
    return {f"speed_relative_to_{name}": median(ratios), f"speed_relative_to_{name}_by_round": ratios}


def show(setting: Setting, cases: dict[str, Any], ours: dict[str, Any], peak: float, targets: list[Target]) -> None:
    rows = [
        (
            name,
            case["median_s"],
            case["processor_s"],
            case["words_per_second"],
            case["subwords_per_second"],
            case["speed_relative_to_good"],
            case["processor_relative_to_good"],
            case.get("speed_relative_to_plain"),
            f"{100 * case['share_of_matmul_peak']:.0f} %",
            f"{case['nbytes'] / 1e6:,.0f}",
        )
        for name, case in cases.items()
    ]
    print(table(HEADER, rows))
    print(f"\nmatrix multiply at this model's shapes: {peak / 1e9:,.0f} GFLOP/s (median of the rounds)")
    print(
        "in each round: " + ", ".join(f"{rate / 1e9:,.0f}" for rate in setting.matmul) + " (low: others were at work)"
    )
    print(
        f"embstore's forward pass alone: {100 * ours['forward_share_of_matmul_peak']:.0f} % of it; "
        f"plan {ours['plan_s']:.2f} s + extract {ours['extract_s']:.2f} s\n"
    )
    for name, case in cases.items():
        for other in ("good", "plain"):
            rounds = ", ".join(f"{ratio:.2f}" for ratio in case.get(f"speed_relative_to_{other}_by_round", ()))
            print(f"{name}, times the {other} script's speed in each round: {rounds}")
    print()
    whole = ours["extract_s"]
    stages = [(name, seconds, f"{100 * seconds / whole:.1f} %") for name, seconds in ours["stages"].items()]
    print(table(["stage of extract", "seconds", "of wall time"], stages))
    print("\n" + targets_table(targets))


def texts(arguments: argparse.Namespace) -> Iterator[tuple[str, list[list[str]]]]:
    """Yield the texts to extract, each with its name."""
    for count in arguments.sentences:
        some = [list(sentence.words) for sentence in islice(es.open_corpus(arguments.corpus), count)]
        yield f"{len(some):,} sentences", some
    if arguments.novel:
        some = [list(sentence.words) for sentence in es.open_corpus(arguments.novel)]
        yield f"a whole novel, {len(some):,} lines", some


def prepared(arguments: argparse.Namespace, folder: Path) -> Setting:
    """Load the models; the setting has no sentences yet."""
    model = Path(arguments.model)
    tokenizer = transformers.AutoTokenizer.from_pretrained(model)
    encoder = es.load_encoder(model, device="cpu", compute_dtype="float32")
    plain_model = transformers.AutoModel.from_pretrained(model, dtype=torch.float32).eval()
    return Setting(
        sentences=[],
        model_folder=model,
        dtype=arguments.dtype,
        suffix=arguments.suffix,
        batch_subwords=arguments.batch_subwords,
        folder=folder,
        encoder=encoder,
        tokenizer=tokenizer,
        model=plain_model,
        neurox=Path(arguments.neurox).absolute() if arguments.neurox else None,
    )


def has_neurox(setting: Setting) -> bool:
    if setting.neurox is None or not (setting.neurox / "neurox").is_dir():
        print("NeuroX is not measured: give --neurox DIR, where DIR holds it (see the README)\n")
        return False
    return True


def parse() -> argparse.Namespace:
    parser = parser_of(__doc__)
    parser.add_argument("--model", required=True, help="folder of a BERT-like Hugging Face model")
    parser.add_argument("--corpus", required=True, help="a corpus in any format that embstore reads")
    parser.add_argument(
        "--sentences", type=int, nargs="+", default=[2000], help="how many of the corpus, once for each"
    )
    parser.add_argument("--novel", help="a corpus that is extracted whole")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--dtype", choices=sorted(RELATIVE), default="float16", help="stored by embstore and plain")
    parser.add_argument("--suffix", choices=[".zarr", ".h5"], default=".zarr", help="embstore's format")
    parser.add_argument("--batch-subwords", type=int, help="embstore's batches; its default if not given")
    parser.add_argument("--good-only", action="store_true", help="leave out the plain script and NeuroX")
    parser.add_argument("--neurox", help="folder that holds the package neurox")
    parser.add_argument("--threads", type=int, help="CPU threads of torch; all if not given")
    parser.add_argument("--tmp", help="folder for the files written (default: the system's)")
    return parser.parse_args()


def main() -> None:
    arguments = parse()
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
        os.environ["OMP_NUM_THREADS"] = str(arguments.threads)
    with tempfile.TemporaryDirectory(prefix="embstore-bench-", dir=arguments.tmp) as folder:
        loaded = prepared(arguments, Path(folder))
        found = {name: measured(replace(loaded, **fresh(some)), arguments) for name, some in texts(arguments)}
    write_json(
        arguments.out,
        {
            "benchmark": "extract",
            "corpus": {"name": Path(arguments.corpus).name},
            "options": {
                key: getattr(arguments, key) for key in ("dtype", "suffix", "batch_subwords", "repeats", "threads")
            },
            "rows": [row_of(name, result).as_json() for name, result in found.items()],
            "texts": found,
        },
    )
    for each in found.values():
        for name, same in each["agreement"].items():
            if name != NEUROX and same["agreeing"] < same["sentences"]:
                raise SystemExit(f"embstore's vectors are not those of the {name}")


def fresh(sentences: list[list[str]]) -> dict[str, Any]:
    """Return the fields of a setting for other sentences."""
    return {
        "sentences": sentences,
        "rates": [],
        "matmul": [],
        "processor": {name: [] for name in (OURS, GOOD, PLAIN, BY_LAYER, NEUROX)},
    }


def measured(setting: Setting, arguments: argparse.Namespace) -> dict[str, Any]:
    """Return what all cases take for one text, and how their vectors compare."""
    lines = "".join(" ".join(words) + "\n" for words in setting.sentences)
    (setting.folder / "sentences.txt").write_text(lines, encoding="utf-8")
    flops, subwords = needed_flops(setting)
    words = sum(map(len, setting.sentences))
    print(
        f"{len(setting.sentences):,} sentences, {words:,} words, {subwords:,} subwords with specials, all layers, "
        f"mean pooling, stored as {arguments.dtype} (NeuroX: float32), {torch.get_num_threads()} threads\n"
    )
    runs: dict[str, Callable[[Setting, int], float]] = {SGEMM: run_matmul, OURS: run_ours, GOOD: run_good}
    if not arguments.good_only:
        runs |= {PLAIN: run_plain, BY_LAYER: partial(run_plain, name=BY_LAYER)}
        if has_neurox(setting):
            runs[NEUROX] = run_neurox
    cases = {name: partial(run, setting) for name, run in runs.items()}
    repeats = min(arguments.repeats, ROUNDS_OF_LARGE) if len(setting.sentences) >= LARGE else arguments.repeats
    times = interleaved(cases, repeats=repeats, tell=True)
    result = report(setting, times, words, subwords, flops)
    return {**result, "agreement": agreements(setting, times)}


def row_of(text: str, result: dict[str, Any]) -> Row:
    """Return the line of the benchmark page for one text; one thread is measured by the time of the processor."""
    alone = torch.get_num_threads() == 1
    seconds = {name: case["processor_s" if alone else "median_s"] for name, case in result["cases"].items()}
    return Row(
        f"plan and extract {text}",
        seconds.pop(OURS),
        seconds,
        result["needed_gflop"] / result["matmul_peak_gflops"],
        "sgemm",
        torch.get_num_threads(),
        "processor" if alone else "wall",
        {"to_rival": 1.0, "to_limit": 1 / 0.85},
    )


def agreements(setting: Setting, times: dict[str, Times]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    print()
    for name, path in ((GOOD, setting.good), (PLAIN, setting.plain), (NEUROX, setting.neurox_output)):
        if name not in times:
            continue
        same = compare(setting, path)
        found[name] = same.as_json()
        print(
            f"embstore's vectors equal those of {name} in {same.agreeing:,} of {same.sentences:,} sentences "
            f"(largest difference {same.largest_difference:.2g}; {same.different_words:,} of other words)"
        )
    return found


if __name__ == "__main__":
    main()

"""A sweep over context windows, in one run: shared by embstore, embstore once a window, a plain script once a window.

python benchmarks/windows.py corpus.pse --model MODEL_DIR --sentences 1500 --repeats 1
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
import transformers
from measure import Target, Times, interleaved, machine, paired_ratios, table, targets_table, write_json

import embstore as es
from embstore.extraction import extract_windows, plan_windows
from embstore.extraction.options import sorted_windows, window_name
from embstore.extraction.worker import Timings
from embstore.spacing import split_marked
from embstore.store import Store

SHARED, ALONE, PLAIN = "embstore, one sweep", "embstore, once a window", "plain script, once a window"
BATCH = 32
RELATIVE, ABSOLUTE = 1.1 * 2**-10, 2e-5  # float16: the last bit, where 1e-6 decides the rounding
Width = int | None


@dataclass
class Setting:
    """What every case works on; `folder` is thrown away at the end."""

    sentences: list[Any]
    encoder: Any
    tokenizer: Any
    model: Any
    windows: tuple[Width, ...]
    folder: Path
    targets: list[tuple[list[str], int, int]] = field(default_factory=list)
    subwords: dict[str, int] = field(default_factory=dict)
    seconds: dict[str, dict[str, list[float]]] = field(default_factory=lambda: defaultdict(lambda: defaultdict(list)))


def targets_of(store: Store) -> list[tuple[list[str], int, int]]:
    """Of each row the words of its sentence and the words `[start, stop)` that it is of."""
    index = store.index
    widths = np.array([form.count(" ") + 1 for form in index.words])[index.type]
    texts = [split_marked(text) for text in index.texts]
    return [
        (texts[sentence], first, first + width)
        for sentence, first, width in zip(
            index.sentence.tolist(), index.position.tolist(), widths.tolist(), strict=True
        )
    ]


def run_shared(setting: Setting, number: int) -> float:
    start = time.perf_counter()
    plan = plan_windows(
        setting.sentences,
        model=setting.encoder,
        context_windows=setting.windows,
        options=es.ExtractionOptions(keep=es.Keep(labelled=True)),
        calibrate=False,
    )
    timings = Timings()
    place = setting.folder / "shared"
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir()
    extract_windows(plan, place / "x.zarr", timings=timings)
    setting.subwords[SHARED] = timings.n_subwords
    return time.perf_counter() - start


def run_alone(setting: Setting, number: int) -> float:
    place = setting.folder / "alone"
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir()
    began, subwords = time.perf_counter(), 0
    for window in setting.windows:
        start = time.perf_counter()
        plan = es.plan(
            setting.sentences,
            model=setting.encoder,
            options=es.ExtractionOptions(context_window=window, keep=es.Keep(labelled=True)),
            calibrate=False,
        )
        timings = Timings()
        es.extract(plan, place / f"{window_name(window)}.zarr", timings=timings)
        subwords += timings.n_subwords
        setting.seconds[ALONE][window_name(window)].append(time.perf_counter() - start)
    setting.subwords[ALONE] = subwords
    return time.perf_counter() - began


def run_plain(setting: Setting, number: int) -> float:
    """One pass a window: each target's window by itself; the whole sentence, too, once a target."""
    began = time.perf_counter()
    setting.subwords[PLAIN] = 0
    for window in setting.windows:
        start = time.perf_counter()
        cut = [truncated(target, window) for target in setting.targets]
        vectors = plain_pass(setting, cut, [[(start, stop)] for _, start, stop in cut])
        np.save(setting.folder / f"{window_name(window)}.npy", vectors)
        setting.seconds[PLAIN][window_name(window)].append(time.perf_counter() - start)
    return time.perf_counter() - began


def run_plain_sentences(setting: Setting, number: int) -> float:
    """The whole sentences alone, each once for all of its targets, as a more careful script has it."""
    if None not in setting.windows:
        return 0.0
    counted = setting.subwords[PLAIN]
    start = time.perf_counter()
    spans: dict[int, list[tuple[int, int]]] = defaultdict(list)
    texts: dict[int, list[str]] = {}
    for words, first, last in setting.targets:
        spans[id(words)].append((first, last))
        texts[id(words)] = words
    sentences = [(words, 0, 0) for words in texts.values()]
    plain_pass(setting, sentences, list(spans.values()))
    setting.subwords[PLAIN] = counted
    return time.perf_counter() - start


def truncated(target: tuple[list[str], int, int], window: Width) -> tuple[list[str], int, int]:
    words, start, stop = target
    if window is None:
        return target
    first = max(0, start - window)
    return words[first : stop + window], start - first, stop - first


@torch.no_grad()
def plain_pass(
    setting: Setting, texts: Sequence[tuple[list[str], int, int]], spans: Sequence[Sequence[tuple[int, int]]]
) -> Any:
    """Texts in corpus order, 32 at a time, padded to the longest; float16 [layer, span, feature]."""
    found = []
    for start in range(0, len(texts), BATCH):
        words = [text for text, _, _ in texts[start : start + BATCH]]
        encoded = setting.tokenizer(
            words, is_split_into_words=True, padding=True, truncation=True, max_length=512, return_tensors="pt"
        )
        setting.subwords[PLAIN] += int(encoded["attention_mask"].sum()) - 2 * len(words)
        states = torch.stack(setting.model(**encoded, output_hidden_states=True).hidden_states)
        for number in range(len(words)):
            owners = encoded.word_ids(number)
            for first, last in spans[start + number]:
                places = [place for place, word in enumerate(owners) if word is not None and first <= word < last]
                found.append(states[:, number, places].mean(dim=1).numpy().astype(np.float16))
    return np.stack(found, axis=1)


def agreement(setting: Setting) -> dict[str, Any]:
    """How many rows of the sweep's stores hold what the plain script found."""
    found = {}
    for window in setting.windows:
        name = window_name(window)
        file = "x-full.zarr" if window is None else f"x-k{window}.zarr"
        store = es.open(setting.folder / "shared" / file)
        ours = store.gather_layers(np.arange(store.n_rows)).astype(np.float32)
        theirs = np.load(setting.folder / f"{name}.npy").astype(np.float32)
        alike = (np.abs(ours - theirs) <= ABSOLUTE + RELATIVE * np.abs(theirs)).all(axis=(0, 2))
        found[name] = {"rows": len(alike), "agreeing": int(alike.sum()), "largest": float(np.abs(ours - theirs).max())}
    return found


def report(setting: Setting, times: dict[str, Times]) -> dict[str, Any]:
    shared = times[SHARED]
    saved = [
        whole - by_target + by_sentence
        for whole, by_target, by_sentence in zip(
            times[PLAIN].seconds,
            setting.seconds[PLAIN].get("full", [0.0] * len(shared.seconds)),
            times["sentences"].seconds,
            strict=True,
        )
    ]
    careful = Times(saved)
    cost = {
        PLAIN: median(paired_ratios(shared, times[PLAIN])),
        "plain script, whole sentences once": median(paired_ratios(shared, careful)),
        ALONE: median(paired_ratios(shared, times[ALONE])),
    }
    rows = [
        (name, one.median, setting.subwords.get(name), shared.median / one.median)
        for name, one in (
            (SHARED, shared),
            (ALONE, times[ALONE]),
            (PLAIN, times[PLAIN]),
            ("plain script, whole sentences once", careful),
        )
    ]
    print(table(["", "seconds", "subwords run", "the sweep costs"], rows))
    windows = [window_name(window) for window in setting.windows]
    each = [(name, *(median(setting.seconds[name][window]) for window in windows)) for name in (ALONE, PLAIN)]
    print("\n" + table(["seconds a window", *windows], each))
    targets = [
        Target("the sweep's cost, of a plain pass a window", cost[PLAIN], 0.6, False),
        Target(
            "the same, whole sentences run once by the plain script",
            cost["plain script, whole sentences once"],
            0.6,
            False,
        ),
    ]
    print("\n" + targets_table(targets))
    return {
        "cases": {name: one.as_json() for name, one in times.items()},
        "careful_plain_s": careful.median,
        "subwords_run": setting.subwords,
        "seconds_a_window": {name: dict(setting.seconds[name]) for name in (ALONE, PLAIN)},
        "cost_relative_to": cost,
        "targets": [target.as_json() for target in targets],
    }


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", help="a corpus in any format that embstore reads; its labelled words are targets")
    parser.add_argument("--model", required=True, help="folder of a BERT-like Hugging Face model")
    parser.add_argument("--format", help="the corpus's format, where its suffix does not tell")
    parser.add_argument("--windows", default="0,2,4,8,16,full")
    parser.add_argument("--sentences", type=int, help="only the first N sentences")
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--threads", type=int, help="CPU threads of torch; all if not given")
    parser.add_argument("--tmp", help="folder for the files written (default: the system's)")
    parser.add_argument("--out", help="JSON file to write")
    return parser.parse_args()


def prepared(arguments: argparse.Namespace, folder: Path) -> Setting:
    tokenizer = transformers.AutoTokenizer.from_pretrained(arguments.model)
    setting = Setting(
        sentences=list(islice(es.open_corpus(arguments.corpus, format=arguments.format), arguments.sentences)),
        encoder=es.load_encoder(arguments.model, device="cpu", compute_dtype="float32"),
        tokenizer=tokenizer,
        model=transformers.AutoModel.from_pretrained(arguments.model, dtype=torch.float32).eval(),
        windows=sorted_windows(None if width == "full" else int(width) for width in arguments.windows.split(",")),
        folder=folder,
    )
    rows = es.plan(
        setting.sentences,
        model=setting.encoder,
        options=es.ExtractionOptions(keep=es.Keep(labelled=True), layers=[0]),
        calibrate=False,
    )
    setting.targets = targets_of(es.extract(rows, folder / "targets.zarr"))
    return setting


def main() -> None:
    arguments = parse()
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    described = machine()
    with tempfile.TemporaryDirectory(prefix="embstore-bench-", dir=arguments.tmp) as folder:
        setting = prepared(arguments, Path(folder))
        print(
            f"{len(setting.sentences):,} sentences, {len(setting.targets):,} targets, windows {arguments.windows}, "
            f"all layers, stored as float16, {torch.get_num_threads()} threads\n"
        )
        cases = {SHARED: run_shared, ALONE: run_alone, PLAIN: run_plain, "sentences": run_plain_sentences}
        times = interleaved(
            {name: lambda number, run=run: run(setting, number) for name, run in cases.items()},
            repeats=arguments.repeats,
            tell=True,
        )
        result = report(setting, times)
        same = agreement(setting)
    print(f"\nrows that agree with the plain script: {same}")
    write_json(
        arguments.out,
        {
            "benchmark": "windows",
            "machine": described,
            "corpus": {
                "name": Path(arguments.corpus).name,
                "sentences": len(setting.sentences),
                "targets": len(setting.targets),
            },
            "options": {"windows": arguments.windows, "repeats": arguments.repeats, "threads": arguments.threads},
            **result,
            "agreement": same,
        },
    )
    if any(one["largest"] > 0.01 for one in same.values()):
        raise SystemExit("embstore's vectors are not those of the plain script")


if __name__ == "__main__":
    main()

"""A sweep over context windows, in one run: shared by embstore, embstore once a window, a plain script once a window.

python benchmarks/windows.py corpus.pse --model MODEL_DIR --sentences 1500 --repeats 1
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from measure import Times, interleaved, parser_of, show_rows, write_json

import embstore as es
from embstore.bench.measure import row_of
from embstore.extraction import extract_windows, plan_windows
from embstore.extraction.options import sorted_windows, window_name
from embstore.spacing import split_marked
from embstore.store import Store

BATCH = 32
ALONE = "embstore, once a window"
LARGEST = 0.01  # of the differences from the plain script, float16
Width = int | None
Target = tuple[list[str], int, int]  # the words of a sentence, and the words `[start, stop)` that a row is of


@dataclass
class Setting:
    """What every case works on; `folder` is thrown away at the end."""

    sentences: list[Any]
    encoder: Any
    tokenizer: Any
    model: Any
    windows: tuple[Width, ...]
    folder: Path
    targets: list[Target] = field(default_factory=list)

    def emptied(self, name: str) -> Path:
        """Return an empty folder."""
        shutil.rmtree(self.folder / name, ignore_errors=True)
        (self.folder / name).mkdir()
        return self.folder / name


def targets_of(store: Store) -> list[Target]:
    index = store.index
    widths = np.array([form.count(" ") + 1 for form in index.words])[index.type]
    texts = [split_marked(text) for text in index.texts]
    return [
        (texts[sentence], first, first + width)
        for sentence, first, width in zip(
            index.sentence.tolist(), index.position.tolist(), widths.tolist(), strict=True
        )
    ]


def run_shared(setting: Setting, number: int) -> None:
    plan = plan_windows(
        setting.sentences,
        model=setting.encoder,
        context_windows=setting.windows,
        options=es.ExtractionOptions(keep=es.Keep(labelled=True)),
        calibrate=False,
    )
    extract_windows(plan, setting.emptied("shared") / "x.zarr")


def run_alone(setting: Setting, number: int) -> None:
    folder = setting.emptied("alone")
    for window in setting.windows:
        plan = es.plan(
            setting.sentences,
            model=setting.encoder,
            options=es.ExtractionOptions(context_window=window, keep=es.Keep(labelled=True)),
            calibrate=False,
        )
        es.extract(plan, folder / f"{window_name(window)}.zarr")


def run_plain(setting: Setting, windows: Sequence[Width], number: int) -> None:
    """One pass a window: each target's window by itself; the whole sentence, too, once a target."""
    for window in windows:
        cut = [truncated(target, window) for target in setting.targets]
        vectors = plain_pass(setting, [words for words, _, _ in cut], [[(start, stop)] for _, start, stop in cut])
        np.save(setting.folder / f"{window_name(window)}.npy", vectors)


def run_plain_sentences(setting: Setting, number: int) -> None:
    """The whole sentences alone, each once for all of its targets, as a more careful script has it."""
    spans: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for words, first, last in setting.targets:
        spans[id(words)].append((first, last))
    texts = {id(words): words for words, _, _ in setting.targets}
    plain_pass(setting, list(texts.values()), list(spans.values()))


def truncated(target: Target, window: Width) -> Target:
    words, start, stop = target
    if window is None:
        return target
    first = max(0, start - window)
    return words[first : stop + window], start - first, stop - first


@torch.no_grad()
def plain_pass(setting: Setting, texts: Sequence[list[str]], spans: Sequence[Sequence[tuple[int, int]]]) -> Any:
    """Texts in corpus order, 32 at a time, padded to the longest; float16 [layer, span, feature]."""
    found = []
    for start in range(0, len(texts), BATCH):
        words = list(texts[start : start + BATCH])
        encoded = setting.tokenizer(
            words, is_split_into_words=True, padding=True, truncation=True, max_length=512, return_tensors="pt"
        )
        states = torch.stack(setting.model(**encoded, output_hidden_states=True).hidden_states)
        for number in range(len(words)):
            owners = encoded.word_ids(number)
            for first, last in spans[start + number]:
                places = [place for place, word in enumerate(owners) if word is not None and first <= word < last]
                found.append(states[:, number, places].mean(dim=1).numpy().astype(np.float16))
    return np.stack(found, axis=1)


def require_agreement(setting: Setting) -> None:
    """Raise RuntimeError unless the sweep's stores hold what the plain script found."""
    for window in setting.windows:
        file = "x-full.zarr" if window is None else f"x-k{window}.zarr"
        store = es.open(setting.folder / "shared" / file)
        theirs = np.load(setting.folder / f"{window_name(window)}.npy").astype(np.float32)
        apart = np.abs(store.gather_layers(np.arange(store.n_rows)) - theirs).max()
        if not apart <= LARGEST:
            raise RuntimeError(f"{file} differs from the vectors of the plain script by {apart:.2g}")


def parse() -> argparse.Namespace:
    parser = parser_of(__doc__)
    parser.add_argument("corpus", help="a corpus in any format that embstore reads; its labelled words are targets")
    parser.add_argument("--model", required=True, help="folder of a BERT-like Hugging Face model")
    parser.add_argument("--format", help="the corpus's format, where its suffix does not tell")
    parser.add_argument("--windows", default="0,2,4,8,16,full")
    parser.add_argument("--sentences", type=int, help="only the first N sentences")
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--threads", type=int, help="CPU threads of torch; all if not given")
    parser.add_argument("--tmp", help="folder for the files written (default: the system's)")
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


def together(*parts: Times) -> Times:
    """Return the seconds of several cases as of one, round by round."""
    return Times([sum(each) for each in zip(*(part.seconds for part in parts), strict=True)])


def main() -> None:
    arguments = parse()
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    with tempfile.TemporaryDirectory(prefix="embstore-bench-", dir=arguments.tmp) as folder:
        setting = prepared(arguments, Path(folder))
        print(f"{len(setting.sentences):,} sentences, {len(setting.targets):,} targets, all layers, float16\n")
        cases = {
            "ours": partial(run_shared, setting),
            ALONE: partial(run_alone, setting),
            "cut": partial(run_plain, setting, [width for width in setting.windows if width is not None]),
            "whole": partial(run_plain, setting, [width for width in setting.windows if width is None]),
            "sentences": partial(run_plain_sentences, setting),
        }
        times = interleaved(cases, repeats=arguments.repeats, tell=True)
        require_agreement(setting)
    cut, whole, sentences = (times.pop(name) for name in ("cut", "whole", "sentences"))
    times["plain script, once a window"] = together(cut, whole)
    if None in setting.windows:
        times["the same, whole sentences once"] = together(cut, sentences)
    what = f"{len(setting.targets):,} targets, windows {arguments.windows}"
    more: dict[str, Any] = {"threads": torch.get_num_threads()}
    alone = {name: times[name] for name in ("ours", ALONE)}
    del times[ALONE]
    rows = [
        row_of(what, times, targets={"to_rival": 0.6}, **more),
        row_of(what, alone, targets={"to_rival": 1}, **more),
    ]
    corpus = {"name": Path(arguments.corpus).name, "sentences": len(setting.sentences), "targets": len(setting.targets)}
    result = {"benchmark": "windows", "corpus": corpus, "rows": show_rows(rows)}
    write_json(arguments.out, result)


if __name__ == "__main__":
    main()

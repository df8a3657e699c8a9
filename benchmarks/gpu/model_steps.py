"""Steps of run.py about the model: a trace, sentence lengths, a decoder, out of memory, races, several GPUs, probes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import warnings
from collections import Counter
from functools import partial
from itertools import islice
from typing import Any

import numpy as np
import torch
from measure import Target
from setting import BATCHINGS, Setting, SkipError, closest, layers_of, row_nbytes, run_through, vectors_of

import embstore as es
from embstore.errors import SmallerBatchesWarning
from embstore.extraction.bench import busy_seconds, covered

KERNELS = 12  # of the longest ones, named in the results
ZHAO_CONTEXTS, ZHAO_WORDS = 5_400_000, 25  # contexts of Zhao et al. 2020, and the words of one, about
SANITIZED = """
import sys, embstore as es
sentences = [f"{word} sat on the mat and slept".split() for word in open(sys.argv[2]).read().split()]
encoder = es.load_encoder(sys.argv[1], device=sys.argv[3])
options = es.ExtractionOptions(batch_subwords=256)
print(es.extract(es.plan(sentences, model=encoder, options=options, calibrate=False), sys.argv[4]).n_rows)
"""


def trace(setting: Setting) -> dict[str, Any]:
    """A batch of every batching under torch's profiler: its longest kernels, its attention, how long the GPU idles."""
    from torch.profiler import ProfilerActivity, profile

    encoder, found = setting.encoder(setting.base), setting.found
    size = setting.size.batches[-1]
    tokenized = encoder.tokenize(setting.some(size // 2))
    on_gpu = setting.device.type == "cuda"
    for batching in BATCHINGS:
        encoder.use_batching(batching)
        once = partial(run_through, encoder, tokenized, layers_of(setting.base), size)
        if on_gpu and batching not in encoder.candidate_batchings():
            setting.left_out.append(f"{batching}: this torch has no kernel")
            continue
        setting.best(once)
        with profile(activities=[ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_gpu else [])]) as seen:
            seconds = setting.timed(once)
        events = list(seen.events() or ())
        kind = torch.autograd.DeviceType.CUDA if on_gpu else torch.autograd.DeviceType.CPU
        ran = [event for event in events if event.device_type == kind]
        if not ran:
            raise RuntimeError("the profiler saw no kernel")
        microseconds = Counter[str]()
        for event in ran:
            microseconds[event.name] += event.time_range.elapsed_us() if on_gpu else event.self_cpu_time_total
        busy = covered([(event.time_range.start, event.time_range.end) for event in ran]) / 1e6
        found[batching] = {
            "wall_s": seconds,
            "busy_s": busy,
            "idle_share": max(0.0, 1 - busy / seconds),
            "kernels": len(ran),
            "attention": ", ".join(sorted({event.name for event in events if "attention" in event.name
                                           or event.name.startswith("torch_attn::")})) or "embstore's own",
            "longest": [{"name": name[:80], "us": us} for name, us in microseconds.most_common(KERNELS)],
        }  # fmt: skip
        setting.save()
        if setting.trace is not None:
            seen.export_chrome_trace(str(setting.trace.with_suffix(f".{batching}.json.gz")))
    return found


def lengths(setting: Setting) -> dict[str, Any]:
    """Positions per second of each batching, for sentences that all have one length."""
    encoder, size = setting.encoder(setting.base), setting.size.batches[-1]
    cases = setting.found.setdefault("cases", [])
    for words in setting.size.lengths:
        sentences = [setting.made[:words]] * max(3, 3 * size // words)
        tokenized = encoder.tokenize(sentences)
        case: dict[str, Any] = {"words": words}
        for batching in BATCHINGS:
            if batching not in encoder.candidate_batchings():
                setting.left_out.append(f"{batching}, {words} words: this torch has no kernel")
                continue
            encoder.use_batching(batching)
            seconds = setting.best(partial(run_through, encoder, tokenized, layers_of(setting.base)[-1:], size))
            case[batching] = len(tokenized.ids) / seconds
        case["fastest"] = max((name for name in BATCHINGS if name in case), key=case.__getitem__)
        cases.append(case)
        setting.save()
    encoder.self_check(encoder.tokenize(setting.sentences[:32]), layers=layers_of(setting.base), pooling="mean")
    return {"the self-check takes": encoder.batching}


def decoder(setting: Setting) -> dict[str, Any]:
    """A decoder with grouped keys: subwords per second of each batching, equal to its plain pass."""
    shape = setting.size.shapes[3]
    encoder = setting.encoder(shape, dtype="bfloat16" if setting.device.type == "cuda" else "auto")
    tokenized = encoder.tokenize(setting.some(setting.size.forward_words // 8))
    size, cases = setting.size.batches[0], setting.found.setdefault("cases", [])
    sample = encoder.tokenize(setting.sentences[:16])
    setting.found["difference_from_plain"] = encoder.self_check(sample, layers=layers_of(shape), pooling="mean")
    for batching in encoder.candidate_batchings():
        for layers in (layers_of(shape)[-1:], layers_of(shape)):
            encoder.use_batching(batching)
            seconds = setting.best(partial(run_through, encoder, tokenized, layers, size))
            cases.append(
                {"batching": batching, "layers": len(layers), "subwords_per_second": len(tokenized.ids) / seconds}
            )
            setting.save()
    return {"shape": shape, "causal": encoder.causal}


def halving(setting: Setting) -> dict[str, Any]:
    """A batch that does not fit is run in parts with the same vectors: the memory ends at a share of it.

    Without a GPU the model refuses batches of more than a quarter of the size.
    """
    encoder, size = setting.encoder(setting.base), setting.size.batches[-1]
    tokenized = encoder.tokenize(setting.some(size))
    whole = vectors_of(encoder, tokenized, setting.base, size)
    if setting.device.type == "cuda":
        used = torch.cuda.max_memory_allocated(setting.device) - torch.cuda.memory_allocated(setting.device)
        total = torch.cuda.get_device_properties(setting.device).total_memory
        torch.cuda.empty_cache()
        share = (torch.cuda.memory_allocated(setting.device) + used / 3) / total
        torch.cuda.set_per_process_memory_fraction(share, setting.device)
        restore = partial(torch.cuda.set_per_process_memory_fraction, 1.0, setting.device)
    else:

        def refuse(module: Any, args: Any, kwargs: dict[str, Any]) -> None:
            if kwargs["input_ids"].numel() > size // 4:
                raise torch.OutOfMemoryError("CUDA out of memory")

        restore = encoder.network.fast_tap.model.register_forward_pre_hook(refuse, with_kwargs=True).remove
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            parts = vectors_of(encoder, tokenized, setting.base, size)
    finally:
        restore()
    halved = [str(one.message) for one in caught if issubclass(one.category, SmallerBatchesWarning)]
    if not halved:
        raise RuntimeError("no batch was halved, although the memory was too small")
    different = closest(parts, whole)["relative"]
    setting.targets.append(Target("halved batches: largest relative difference of a vector", different, 5e-3, False))
    return {"batch_subwords": size, "parts_of_at_most": encoder.runner.max_positions, "relative": different}


def sanitizer(setting: Setting) -> dict[str, Any]:
    """A small extraction with torch's CUDA Sanitizer (without a GPU just the extraction), which ends at a race."""
    words = setting.folder / "words.txt"
    words.write_text(" ".join(setting.made[:200]))
    command = [sys.executable, "-c", SANITIZED, str(setting.model(setting.size.shapes[0])), str(words)]
    command += [str(setting.device), str(setting.folder / "sanitized.zarr")]
    on_gpu = setting.device.type == "cuda"
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=max(30.0, setting.left),
                          env=os.environ | ({"TORCH_CUDA_SANITIZER": "1"} if on_gpu else {}))  # fmt: skip
    if done.returncode != 0 or "CSAN" in done.stderr:
        raise RuntimeError(done.stderr[-4000:])
    return {"rows": int(done.stdout.split()[-1]), "races": 0, "watched": on_gpu}


def devices(setting: Setting) -> dict[str, Any]:
    """Two workers on two GPUs (without a GPU on the CPU), and cuda:1 alone: the same vectors, and words per second."""
    count = torch.cuda.device_count() if setting.device.type == "cuda" else 0
    if count == 1:
        raise SkipError("this machine has one GPU: cuda:1 and two workers were not run")
    names = ["cuda:0", "cuda:1"] if count else ["cpu", "cpu"]
    sentences = setting.some(setting.size.stored_words // 4)
    words, found, stores = sum(map(len, sentences)), {}, []
    for name, executor in ((names[1], None), ("two workers", es.executors.Processes(2, devices=names))):
        encoder = setting.encoder(setting.base, device=names[1])
        made = es.plan(sentences, model=encoder, calibrate=False)
        stores.append(setting.folder / f"{name}.zarr")
        seconds = setting.timed(partial(es.extract, made, stores[-1], executor=executor))
        found[name] = {"seconds": seconds, "words_per_second": words / seconds}
    one, two = (es.open(store).select(layers=[1]).vectors().astype(np.float32) for store in stores)
    found["relative difference"] = closest(two, one)["relative"]
    return found


def probes(setting: Setting) -> dict[str, Any]:
    """Structural and edge probes of the stored vectors, on the GPU and on the CPU: seconds, and scores compared."""
    store = es.open(setting.need("store"))
    folder = setting.folder / "probes"
    folder.mkdir(exist_ok=True)
    texts = list(dict.fromkeys(text for text in islice(iter(store.index.texts), 4000) if len(text.split()) > 2))
    texts = texts[: setting.size.probe_sentences]
    for name, some in (("train", texts[: -len(texts) // 4]), ("dev", texts[-len(texts) // 4 :])):
        (folder / f"{name}.conllu").write_text("\n".join(_chain(text.split()) for text in some))
        (folder / f"{name}.jsonl").write_text("\n".join(map(_target, some)))
    train, dev = (es.corpus.read_trees(folder / f"{name}.conllu") for name in ("train", "dev"))
    files = folder / "train.jsonl", folder / "dev.jsonl"
    options: dict[str, Any] = {"training": es.Training(epochs=2)}
    found = setting.found
    found |= {"structure": {}, "edges": {}}
    for device in dict.fromkeys((str(setting.device), "cpu")):
        tree = partial(es.StructuralProbe, rank=16, device=device, **options)
        edge = partial(es.EdgeProbe, projection=16, hidden_size=16, device=device, **options)
        for name, made, data in (("structure", tree, (train, dev)), ("edges", edge, files)):
            found[name] |= _probed(setting, made, store, data, device)
    return found


def _probed(setting: Setting, made: Any, store: Any, data: tuple[Any, Any], device: str) -> dict[str, float]:
    scores: list[Any] = []

    def call() -> None:
        scores.append(made().fit(store, *data).score(data[1]))

    call()
    seconds = setting.timed(call)
    return {f"{device}_s": seconds, f"{device} mean score": float(np.nanmean(scores[-1].frame["value"].to_numpy()))}


def _chain(words: list[str]) -> str:
    """A tree in which each word's head is the one before it."""
    rows = [f"{number}\t{word}\t_\tX\t_\t_\t{number - 1}\t{'dep' if number > 1 else 'root'}\t_\t_"
            for number, word in enumerate(words, 1)]  # fmt: skip
    return "\n".join(rows) + "\n"


def _target(text: str) -> str:
    """A label for the first word of a sentence: how long it is."""
    label = "long" if len(text.split()[0]) > 4 else "short"
    return json.dumps({"text": text, "targets": [{"span1": [0, 1], "label": label}]})


def zhao(setting: Setting) -> dict[str, Any]:
    """The hours of 5.4 million contexts with all layers of BERT-base, a word of each stored, by the rates measured."""
    nbytes = ZHAO_CONTEXTS * row_nbytes(setting.base)
    seconds = {
        "forward pass": ZHAO_CONTEXTS * ZHAO_WORDS / setting.need(f"forward {setting.base}"),
        "pinned copy": nbytes / setting.need("copy"),
        "disk": nbytes / setting.need("disk"),
    }
    stored = setting.need(f"stored {setting.base}")
    return {
        "contexts": ZHAO_CONTEXTS,
        "words_of_a_context": ZHAO_WORDS,
        "stored_nbytes": nbytes,
        "hours_by_stage": {name: value / 3600 for name, value in seconds.items()},
        "binds": max(seconds, key=seconds.__getitem__),
        "hours_if_stages_overlap": max(seconds.values()) / 3600,
        "hours_if_every_word_is_stored_at_the_measured_rate": ZHAO_CONTEXTS * ZHAO_WORDS / stored / 3600,
    }


def busy(setting: Setting) -> dict[str, Any]:
    """How much of the time of a pass the GPU computes, by batch size: below some size Python binds."""
    encoder, cases = setting.encoder(setting.base), setting.found.setdefault("cases", [])
    tokenized = encoder.tokenize(setting.some(3 * setting.size.batches[-1]))
    best = setting.figures.get("best", (BATCHINGS[-1], 0))[0]
    encoder.use_batching(best)
    for size in setting.size.batches:
        once = partial(run_through, encoder, tokenized, layers_of(setting.base), size)
        seconds = setting.best(once)
        computed = busy_seconds(once, setting.device)
        cases.append({"batching": best, "batch_subwords": size, "seconds": seconds, "busy_share": computed / seconds})
        setting.save()
    return {}

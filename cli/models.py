"""Commands on models and speed: generation, and measurements."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import embstore as es
import embstore_cli.options as opt
from embstore_cli.output import print_json

GENERATING = {"temperature": float, "top_p": float, "seed": int, "batch_size": int, "compute_dtype": str}
Folder = Annotated[Path | None, opt.option("FOLDER", "Where temporary stores are written.")]
Place = Annotated[str | None, opt.option("PLACE", "Where stores would be: a folder, or s3://BUCKET/PREFIX.")]
Corpus = Annotated[str, opt.argument("CORPUS", "A corpus, as extract takes it.")]


def generate(
    prompts: Annotated[
        Path, opt.argument("PROMPTS", "A prompt a line, or JSON lines with text, prompt or messages (a chat).")
    ],
    out: Annotated[Path, opt.argument("OUT", "The corpus to write: NAME.jsonl.")],
    model: opt.Model,
    max_new_tokens: Annotated[int, opt.option("N", "Generate at most N subwords for each prompt.")] = 64,
    device: opt.Device = "auto",
    *,
    settings: Annotated[dict[str, Any], opt.Config(lambda: GENERATING)],
    as_json: opt.AsJson = False,
) -> None:
    """Continue prompts, and write that as a corpus.

    It has exactly the subwords that were generated: `embstore extract OUT STORE --model MODEL` gives the states while
    generating. The label column part is prompt or generated. Without --set temperature=T the likeliest subword is
    taken; with it, subwords are drawn.
    """
    chosen = settings
    made = es.models.generate(prompts, out, model=model, max_new_tokens=max_new_tokens, device=device, **chosen)
    if as_json:
        print_json({**asdict(made), "path": str(made.path)})
    else:
        print(f"{made.path} holds {made.subwords:,} generated subwords after {made.prompt_subwords:,} of prompts")

"""The command that writes a report of a store."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import embstore as es
import embstore_cli.options as opt
from embstore_cli.output import require_file


def report(
    store: opt.StorePath,
    *,
    out: Annotated[Path, opt.option("FILE.html", "The page to write.", "--out", "-o")] = Path("report.html"),
    sections: Annotated[
        str, opt.option("LIST", "all, or some of contents, geometry, words, senses, similarity, probes.")
    ] = "all",
    seed: Annotated[int, opt.option("N", "Seed of samples, intervals, clusters and probes.", min=0)] = 0,
) -> None:
    """Describe a store and its vectors on one HTML page.

    What it holds, geometry by layer, the most and least contextual words, senses of ambiguous words with sentences,
    similarity of layers, and probes of its labels; each with its method, numbers, limits and the Python that
    computes the same. Stores of more than 250,000 rows are sampled.
    """
    require_file(out, "--out", (".html", ".htm"))
    chosen = None if sections.strip() == "all" else [each.strip() for each in sections.split(",")]
    from embstore_explorer import report as write

    made = write(es.open(store), sections=chosen, seed=seed)
    made.save(out)
    print(f"{made}\n\n{out}")

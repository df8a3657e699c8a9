"""Commands on models and speed: generation, and measurements."""

from __future__ import annotations

import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

import embstore as es
import embstore_cli.options as opt
from embstore.errors import InvalidValueError
from embstore_cli.output import print_json, print_notes, print_table, require_file

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


@dataclass(frozen=True)
class Trial:
    """The options of measurements on some sentences of a corpus."""

    device: opt.Device = "auto"
    layers: opt.Layers = "all"
    sentences: Annotated[int, opt.option("N", "Number of sentences of the corpus to run.")] = 2000

    def arguments(self, model: str) -> dict[str, Any]:
        """Return the arguments of a measurement."""
        options = es.ExtractionOptions(layers=opt.layers_of(self.layers) or "all")
        encoder = opt.encoder_of(model, self.device)
        return {"model": encoder, "options": options, "device": self.device, "n_sentences": self.sentences}


def bench_extract(
    corpus: Corpus,
    model: opt.Model,
    trial: Trial,
    folder: Folder = None,
    as_json: opt.AsJson = False,
) -> None:
    """Time an extraction and find its slowest stage.

    Each stage is compared with its own limit on this machine, measured in the same run. The store is written to a
    temporary folder and removed.
    """
    result = es.extraction.bench_extract(corpus, folder=folder, **trial.arguments(model))
    if as_json:
        print_json(result.as_json())
        return
    print_table(result.rates(), title=f"{result.n_words:,} words in {result.seconds:.2f} s")
    print_table(result.table(), title="time of each stage, and how close it is to its limit")
    print(result.verdict)


PRICES = {"hour": float, "gb_month": float, "months": float}


def bench_breakeven(
    corpus: Corpus,
    model: opt.Model,
    trial: Trial,
    folder: Place = None,
    *,
    settings: Annotated[dict[str, Any], opt.Config(lambda: PRICES)],
    as_json: opt.AsJson = False,
) -> None:
    """Measure when storing is cheaper than computing again.

    Some sentences are stored, read and computed again, as a virtual store does; all is removed. Prices: hour (of this
    machine), gb_month (of storing 10^9 bytes for a month) and months (1).
    """
    prices = settings
    if (prices and not {"hour", "gb_month"} <= prices.keys()) or not all(price >= 0 for price in prices.values()):
        raise InvalidValueError(f"--set {' '.join(settings or [])}: give hour and gb_month both, each 0 or more")
    result = es.extraction.bench_breakeven(corpus, folder=folder, **trial.arguments(model))
    document, lines = result.as_json(), [result.verdict]
    if "hour" in prices:
        passes = result.passes_at(**{"months": 1.0, **prices})
        document["passes_at_prices"] = passes
        lines.append(es.extraction.when_cheaper(passes, "money"))
    if as_json:
        print_json(document)
    else:
        print(*lines, sep="\n")


def bench_all(
    store: Annotated[str | None, opt.argument("STORE", "A store of yours; random vectors by default.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="A smaller store, fewer rounds: about a minute.")] = False,
    model: Annotated[
        str | None, opt.option("MODEL", "Measure extraction too, with this model.", "--model", "-m")
    ] = None,
    folder: Folder = None,
    out: Annotated[Path | None, opt.option("FILE", "Also write the report to FILE.json.", "--out")] = None,
    as_json: opt.AsJson = False,
) -> None:
    """Compare embstore with rivals and with the machine's limits.

    Each row is the same work by embstore, by the fastest rival that is installed, and by the bare machine, in turn
    in one run: medians. Below 1, ours/rival says that embstore is faster. Rivals that are not installed are named.
    """
    require_file(out, "--out", (".json",))
    report = es.bench.bench_all(
        store,
        quick=quick,
        model=model,
        folder=folder,
        each_row=lambda row: print(f"measured: {row.what}", file=sys.stderr),
    )
    if out is not None:
        report.save(out)
    if as_json:
        print_json(report.as_json())
        return
    print_table(report.table(), title=f"load average {report.load['start']:.1f} before, {report.load['end']:.1f} after")
    print_notes([f"not installed: {', '.join(report.missing)}"] if report.missing else [])
    print_notes([report.warning] if report.warning else [])

"""Time commands from the shell, imports included: help, a count in SQL, a short extraction, the explorer's first word.

    python benchmarks/commands.py novel.txt --model "$MODEL" --out benchmarks/results/commands.json

The limit of SQL is the import of the packages that it cannot do without. The rival of an extraction is the good script
as a process of its own, which reads the same sentences, one a line.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from functools import partial
from itertools import islice
from pathlib import Path
from urllib.request import HTTPCookieProcessor, build_opener

from measure import Row, measure, parser_of, timed, write_result

import embstore as es

EMBSTORE = (sys.executable, "-m", "embstore")
NEEDED = "import duckdb, numpy, polars, pyarrow.dataset, rich, typer"
SCRIPT = """
import sys, torch, transformers
from pathlib import Path
from rivals import good_script
lines, model, out = sys.argv[1:]
tokenizer = transformers.AutoTokenizer.from_pretrained(model)
plain = transformers.AutoModel.from_pretrained(model, dtype=torch.float32).eval()
good_script([line.split() for line in Path(lines).read_text().splitlines()], tokenizer, plain, Path(out))
"""


def run(*command: str) -> None:
    """Run a process; raises CalledProcessError where it fails."""
    paths = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    subprocess.run(command, check=True, capture_output=True, env={**os.environ, "PYTHONPATH": paths})


def first_word(store: Path, name: str, number: int) -> float:
    """Start the explorer and return the seconds until a browser has the first answer to a query about a word."""
    command = (*EMBSTORE, "explore", str(store), "--no-browser")
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as explorer:
        try:
            words = (word for line in explorer.stdout or () for word in line.split())
            url = next(word for word in words if word.startswith("http"))
            browser = build_opener(HTTPCookieProcessor())
            browser.open(url).read()
            return timed(lambda: browser.open(f"{url.partition('?')[0]}api/{name}?word=the").read())
        finally:
            explorer.kill()


def command_rows(lines: Path, model: str, folder: Path, *, n_lines: int, repeats: int) -> list[Row]:
    store, script, options = folder / "extracted.zarr", folder / "script.npy", folder / "words.toml"
    options.write_text('words = "spaces"\n')  # as the script divides them: no import of spaCy

    def extract(number: int) -> None:
        shutil.rmtree(store, ignore_errors=True)
        more = "--model", model, "--split", "lines", "--config", str(options)
        run(*EMBSTORE, "extract", str(lines), str(store), *more)

    def good(number: int) -> None:
        run(sys.executable, "-c", SCRIPT, str(lines), model, str(script))

    what = f"extract {n_lines:,} sentences, all layers"
    rows = [measure(what, {"ours": extract, "the good script": good}, repeats=repeats, target=1.0)]
    count = (*EMBSTORE, "sql", str(store), "select count(*) from occurrences")
    cases = {"ours": lambda number: run(*count), "limit": lambda number: run(sys.executable, "-c", NEEDED)}
    rows.append(measure("embstore sql, a count", cases, repeats=repeats, limit="its packages imported"))
    for what, name in (("lines of the first word", "occurrences"), ("its self-similarity", "word")):
        rows.append(measure(f"explorer, {what}", {"ours": partial(first_word, store, name)}, repeats=repeats))
    rows.append(measure("embstore --help", {"ours": lambda number: run(*EMBSTORE, "--help")}, repeats=repeats))
    return rows


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("text", help="running text")
    parser.add_argument("--model", required=True, help="folder of a Hugging Face model")
    parser.add_argument("--sentences", type=int, default=100)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="embstore-bench-", dir=arguments.tmp) as name:
        folder, lines = Path(name), Path(name) / "lines.txt"
        some = islice(es.open_corpus(arguments.text), arguments.sentences)
        lines.write_text("".join(f"{' '.join(sentence.words)}\n" for sentence in some), encoding="utf-8")
        make = partial(command_rows, lines, arguments.model, folder, n_lines=arguments.sentences)
        rows = make(repeats=arguments.repeats)
    write_result(arguments.out, rows)


if __name__ == "__main__":
    main()

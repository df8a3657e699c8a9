"""Read running text into words and sentences, and plan an extraction of it, next to spaCy and the tokenizer alone.

    python benchmarks/text.py novels/*.txt --model "$MODEL" --out benchmarks/results/text.json

Words a second are of one thread. The limit of a plan is reading and the tokenizer's `encode_batch` one after the other;
the tokenizer works in all cores.
"""

from __future__ import annotations

import tempfile
from collections import deque
from pathlib import Path

import spacy
import transformers
from measure import Case, Row, measure, parser_of, timed, write_result

import embstore as es

LETTERS = 1_000  # of a stretch that is tokenized at once


def text_rows(files: list[str], model: str, folder: Path, *, repeats: int) -> list[Row]:
    corpus = es.open_corpus(files, format="text")
    encoder = es.load_encoder(model)
    texts = [Path(file).read_text(encoding="utf-8") for file in files]
    stretches = [text[first : first + LETTERS] for text in texts for first in range(0, len(text), LETTERS)]
    backend = transformers.AutoTokenizer.from_pretrained(model).backend_tokenizer
    words = sum(len(sentence.words) for sentence in corpus)
    english = spacy.blank("en")

    def read(number: int) -> None:
        deque(corpus, 0)

    def spacy_words(number: int) -> None:
        deque(english.tokenizer.pipe(paragraph for text in texts for paragraph in text.split("\n\n")), 0)

    def plan(number: int) -> None:
        es.plan(corpus, model=encoder, store=folder / "never.zarr", calibrate=False)

    cases: dict[str, Case] = {"ours": read, "spaCy's tokenizer alone": spacy_words}
    rows = [measure(f"{words:,} words of running text", cases, repeats=repeats)]
    print(f"{words / rows[0].ours:,.0f} words a second")
    cases = {"ours": plan, "limit": lambda number: timed(lambda: (read(0), backend.encode_batch(stretches)))}
    rows.append(measure("plan", cases, repeats=repeats, limit="reading, then encode_batch"))
    print(f"a plan takes {rows[1].ours / rows[0].ours:.2f} of reading")
    return rows


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("files", nargs="+", help="novels and the like")
    parser.add_argument("--model", required=True, help="folder of a Hugging Face model")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="embstore-bench-", dir=arguments.tmp) as folder, es.config(progress=False):
        rows = text_rows(arguments.files, arguments.model, Path(folder), repeats=arguments.repeats)
    write_result(arguments.out, rows)


if __name__ == "__main__":
    main()

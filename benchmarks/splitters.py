"""Sentences and words of raw text: how well and how fast embstore and others find those of a treebank.

python benchmarks/splitters.py --treebank en_ewt-ud-test.conllu en_ewt-ud-dev.conllu --novels a.txt b.txt \
    --out benchmarks/results/splitters.json

The text of a treebank's paragraphs is put together from its words and SpaceAfter=No. A sentence or a word is right if
both ends are. Words are those of the treebank, "do" and "n't"; tokens are what it has without a space, "don't". A novel
is read as `open_corpus` reads it; a word of it carries punctuation if it has letters or digits, and a mark at its start
or end that is neither an abbreviation's full stop ("Mr.") nor an apostrophe ("'s", "goin'").
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from statistics import median
from typing import Any

from measure import Row, interleaved, parser_of, table, write_json

import embstore as es
from embstore.corpus.splitting import Splitter

Span = tuple[int, int]
Splits = Callable[[str], Iterable[Span]]
UNITS = ("sentence", "word", "token")
NOT_INSTALLED = {"PyICU": "no wheel for Linux: it is built against the ICU of the system"}


@dataclass
class Paragraph:
    """The text of a paragraph and its spans of each unit."""

    text: str = ""
    spans: dict[str, set[Span]] = field(default_factory=lambda: {unit: set() for unit in UNITS})

    def add(self, unit: str, form: str) -> None:
        self.spans[unit].add((len(self.text), len(self.text) + len(form)))


def paragraphs(path: Path) -> Iterator[Paragraph]:
    """Yield the paragraphs of a CoNLL-U file with spaces as in the text that was annotated."""
    made = Paragraph()
    for block in path.read_text("utf-8").split("\n\n"):
        if "# newpar" in block and made.text:
            yield made
            made = Paragraph()
        start, inside = len(made.text), 0
        for line in block.splitlines():
            if not line or line[0] == "#" or "." in (columns := line.split("\t"))[0]:
                continue
            number, form = columns[:2]
            if not number.isdecimal():  # 3-4: don't
                inside = int(number.partition("-")[2])
                made.add("token", form)
                at, whole = len(made.text), made.text + form
                made.text, space = whole, "SpaceAfter=No" not in columns[9]
            elif int(number) <= inside:
                if whole.startswith(form, at):  # the words of some tokens are not parts of them
                    made.spans["word"].add((at, at + len(form)))
                    at += len(form)
                made.text += " " * (space and int(number) == inside)
            else:
                made.add("word", form)
                made.add("token", form)
                made.text += form + " " * ("SpaceAfter=No" not in columns[9])
        if len(made.text) > start:
            made.spans["sentence"].add((start, len(made.text.rstrip())))
            made.text = made.text.rstrip() + " "
    yield made


def ours_sentences(text: str) -> Iterator[Span]:
    at = 0
    for sentence in Splitter().sentences(text):
        spans = list(located(text, sentence.words, at))
        at = spans[-1][1]
        yield spans[0][0], at


def located(text: str, parts: Iterable[str], at: int = 0) -> Iterator[Span]:
    """Yield where the parts of a text are, one after another."""
    for part in filter(None, (part.strip() for part in parts)):
        at = text.find(part, at)
        yield at, at + len(part)
        at += len(part)


def rivals() -> Iterator[tuple[str, str, Callable[[], Splits]]]:
    """Yield units, the names of splitters of them, and functions that import and make them."""

    def pysbd() -> Splits:
        segmenter = import_module("pysbd").Segmenter(language="en", clean=False)
        return lambda text: located(text, segmenter.segment(text))

    def syntok(unit: str) -> Splits:
        segmenter = import_module("syntok.segmenter")

        def split(text: str) -> Iterator[Span]:
            for sentence in (each for paragraph in segmenter.process(text) for each in paragraph):
                found = [(token.offset, token.offset + len(token.value)) for token in sentence]
                yield from found if unit == "word" else [(found[0][0], found[-1][1])]

        return split

    def blingfire(function: str) -> Splits:
        find = getattr(import_module("blingfire"), function)
        return lambda text: find(text)[1]

    def nltk() -> Splits:
        return import_module("nltk.tokenize").NLTKWordTokenizer().span_tokenize  # type: ignore[no-any-return]

    def sentencizer() -> Splits:
        nlp = import_module("spacy").blank("en")
        nlp.add_pipe("sentencizer")
        return lambda text: ((each.start_char, each.end_char) for each in nlp(text).sents)

    yield "sentence", "pysbd", pysbd
    yield "sentence", "spaCy's sentencizer", sentencizer
    yield "sentence", "syntok", lambda: syntok("sentence")
    yield "sentence", "blingfire", lambda: blingfire("text_to_sentences_and_offsets")
    yield "word", "syntok", lambda: syntok("word")
    yield "word", "blingfire", lambda: blingfire("text_to_words_with_offsets")
    yield "word", "nltk", nltk


def f1(gold: list[Paragraph], unit: str, found: list[set[Span]]) -> float:
    """The harmonic mean of precision and recall of spans."""
    right = sum(len(each.spans[unit] & own) for each, own in zip(gold, found, strict=True))
    return 2 * right / (sum(len(each.spans[unit]) for each in gold) + sum(map(len, found)))


def carries_punctuation(word: str) -> bool:
    bare = word.removesuffix(".").strip("'’")
    return any(map(str.isalnum, word)) and not (bare[:1].isalnum() and bare[-1:].isalnum())


def novel(path: Path) -> dict[str, Any]:
    """How many words of a novel carry punctuation, as it is read by default and as it was with lines and spaces."""
    result: dict[str, Any] = {"name": path.name}
    for name, options in {"default": {}, "lines and spaces": {"split": "lines", "words": "spaces"}}.items():
        found = list(es.open_corpus(path, **options))  # type: ignore[arg-type]
        words = [word for sentence in found for word in sentence.words]
        marked = sum(map(carries_punctuation, words))
        result[name] = {"sentences": len(found), "words": len(words), "share": marked / len(words)}
    return result


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--treebank", type=Path, nargs="+", required=True)
    parser.add_argument("--novels", type=Path, nargs="*", default=[])
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    gold = [each for path in arguments.treebank for each in paragraphs(path)]
    ours: dict[tuple[str, str], Splits] = {
        ("sentence", "embstore (sentencex)"): ours_sentences,
        ("word", "embstore (spaCy)"): lambda text: located(
            text, (word for sentence in Splitter().sentences(text) for word in sentence.words)
        ),
    }
    missing, splitters = dict(NOT_INSTALLED), dict(ours)
    for unit, name, make in rivals():
        try:
            splitters[unit, name] = make()
        except ImportError as error:
            missing[name] = str(error)
    scores, runs = [], {}
    for (unit, name), split in splitters.items():
        found = [{(start, stop) for start, stop in split(each.text) if start < stop} for each in gold]
        found = [{stripped(each.text, span) for span in own} for each, own in zip(gold, found, strict=True)]
        units = ("word", "token") if unit == "word" else (unit,)
        scores.append({"unit": unit, "name": name, **{f"{each} F1": f1(gold, each, found) for each in units}})
        runs[f"{unit}: {name}"] = lambda _, split=split: [list(split(each.text)) for each in gold]
    times = interleaved(runs, repeats=arguments.rounds)
    taken = {key: median(times[": ".join(key)].processor) for key in splitters}
    n_words = sum(len(each.spans["word"]) for each in gold)
    for score in scores:
        score["words_per_second"] = n_words / taken[score["unit"], score["name"]]
    print(table(["unit", "name", "F1", "words/s"], ([row["unit"], row["name"], row[f"{row['unit']} F1"],
          row["words_per_second"]] for row in scores)))  # fmt: skip
    novels = [novel(path) for path in arguments.novels]
    for each in novels:
        print(each)
    rows = []
    for unit, own in ours:
        others = {name: seconds for (of, name), seconds in taken.items() if of == unit and name != own}
        rows.append(Row(f"{unit}s of {n_words:,} words", taken[unit, own], others, clock="processor"))
    counts = {"paragraphs": len(gold), **{f"{unit}s": sum(len(each.spans[unit]) for each in gold) for unit in UNITS}}
    write_json(
        arguments.out,
        {"benchmark": "splitters", "rows": [row.as_json() for row in rows], "gold": counts,
         "scores": scores, "novels": novels, "not_installed": missing},
    )  # fmt: skip


def stripped(text: str, span: Span) -> Span:
    """Return a span without the white space at its ends."""
    start, stop = span
    part = text[start:stop]
    return start + len(part) - len(part.lstrip()), stop - len(part) + len(part.rstrip())


if __name__ == "__main__":
    main()

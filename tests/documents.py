"""The code of README and docs: its blocks, and the folder in which they run."""

from __future__ import annotations

import importlib
import json
import re
import shlex
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import click
import polars as pl
import typer

import embstore as es
from embstore.corpus import Sentence
from tests.models import tiny, tiny_elmo

ROOT = Path(__file__).parents[1]
GENERATED = {"api", "cli", "changelog.md", "studies.md", "schemas.md"}  # folders and pages that docs/build.py writes
PAGES = [
    ROOT / "README.md",
    *(page for page in sorted((ROOT / "docs").rglob("*.md")) if not {page.name, page.parent.name} & GENERATED),
]
FENCE = re.compile(r"(?:<!-- not run: (?P<reason>[^>]+) -->\n+)?^```(?P<language>\w+)\n(?P<code>.*?)^```$", re.M | re.S)
LANGUAGES = ("python", "bash", "toml")


@dataclass(frozen=True)
class Block:
    """A fenced block of a page: its language, its code, its first line, and why it is not run (None: it is)."""

    page: Path
    line: int
    language: str
    code: str
    reason: str | None


def blocks(page: Path) -> Iterator[Block]:
    """Yield the blocks of Python and of shell commands of a page, and its files of settings, in order."""
    text = page.read_text()
    for match in FENCE.finditer(text):
        if match["language"] in LANGUAGES:
            line = text.count("\n", 0, match.start("code")) + 1
            yield Block(page, line, match["language"], match["code"], match["reason"])


def commands_of(block: Block) -> Iterator[tuple[dict[str, str], list[str]]]:
    """Yield the variables and the words of each command of a block."""
    for line in block.code.replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        variables = [word.partition("=") for word in words[: next((i for i, w in enumerate(words) if "=" not in w), 0)]]
        if words:
            yield {name: value for name, _, value in variables}, words[len(variables) :]


@cache
def commands() -> dict[str, Any]:
    """Return every command and group by its words, such as "embstore probe edges"."""
    main = importlib.import_module("embstore_cli.main")
    found: dict[str, Any] = {}

    def add(command: Any, name: str) -> None:
        found[name] = command
        for inner, each in getattr(command, "commands", {}).items():
            add(each, f"{name} {inner}")

    add(typer.main.get_command(main.app), "embstore")
    return found


def check_command(words: list[str]) -> None:
    """Parse a command of embstore as the command line does, without running it."""
    command, name, rest = commands()[words[0]], words[0], words[1:]
    given, rest, _ = command.make_parser(click.Context(command)).parse_args(args=rest)
    while rest and hasattr(command, "commands"):
        name, rest = f"{name} {rest[0]}", [word for word in rest[1:] if word != "--write-config"]
        command = commands()[name]
        given, rest, _ = command.make_parser(click.Context(command)).parse_args(args=rest)
    missing = [each.name for each in command.params if each.required and not given.get(each.name)]
    assert not missing or "--write-config" in words, f"{shlex.join(words)}: {missing} is missing"
    assert not rest, f"{shlex.join(words)}: {rest} is too much"


def write_folder(folder: Path, minilm: Path) -> None:
    """Write what the examples read: a model, corpora, word lists, vectors, and the stores `demo.zarr` and `trees.zarr`.
    `demo-out` holds what `embstore demo` leaves there, and `novel.txt` is the reader's own text.

    `demo.zarr` is the store that `embstore demo` makes: sentences with the label column `class`. `trees.zarr` holds the
    sentences of `trees.conllu`, with the columns of CoNLL-U as labels.
    """
    (folder / "minilm").symlink_to(minilm)
    marked = (files("embstore_cli") / "demo_sentences.txt").read_text()
    (folder / "senses.pse").write_text(marked)
    plain = re.sub(r"@(\w+)@-\w+", lambda match: match[1].replace("_", " "), marked)
    for name in ("sentences.txt", "novel.txt"):
        (folder / name).write_text(plain)
    parts = {"trees": range(60), "train": range(40), "dev": range(40, 50), "test": range(50, 60)}
    for name, sentences in parts.items():
        (folder / f"{name}.conllu").write_text("\n".join(map(tree, sentences)))
    write_classes(folder, marked)
    write_edges(folder / "nouns", 60)
    for name, corpus in (("demo", "senses.pse"), ("trees", "trees.conllu")):
        es.extract(es.plan(folder / corpus, model=folder / "minilm", calibrate=False), folder / f"{name}.zarr")
    shutil.copytree(folder / "demo.zarr", folder / "ewt.zarr")
    write_models(folder)
    write_corpora(folder)
    write_senses(folder)
    write_studies(folder, plain)
    (folder / "demo-out").mkdir()
    for name in ("demo.zarr", "minilm"):
        (folder / "demo-out" / name).symlink_to(folder / name)


def write_models(folder: Path) -> None:
    """Write tiny models of random weights, under the names of well-known ones and as `gpt` and `elmo-original`."""
    tiny.save("bert", folder / "bert-base-uncased")
    tiny.save("gpt2", folder / "gpt")
    config = folder / "gpt" / "tokenizer_config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"eos_token": "Ā"}))  # a byte that no text has
    tiny.save("llama", folder / "Qwen" / "Qwen2.5-0.5B")
    tiny.save("llama41", folder / "meta-llama" / "Llama-3.1-70B")
    (folder / "gpt2").symlink_to(folder / "gpt")
    tiny_elmo.save_elmo(folder / "elmo-original")


def write_corpora(folder: Path) -> None:
    """Write small corpora of the names that the pages use: a treebank, entities, tables, letters of a century."""
    (folder / "corpus.txt").write_text("\n".join(" ".join(form for form, *_ in words_of(n)) for n in range(60)))
    (folder / "news.txt").symlink_to("corpus.txt")
    (folder / "ud-ewt").mkdir()
    (folder / "wnut17").mkdir()
    for part in ("train", "dev", "test"):
        (folder / "ud-ewt" / f"{part}.conllu").symlink_to(folder / f"{part}.conllu")
        lines = [
            f"{form}\t{'B-thing' if tag == 'NOUN' else 'O'}"
            for n in range(20)
            for form, tag, *_ in [*words_of(n), ("", "")]
        ]
        (folder / "wnut17" / f"{part}.conll").write_text(
            "\n".join(line if line[0] != "\t" else "" for line in lines) + "\n"
        )
    (folder / "TASKS").mkdir()
    write_edges(folder / "TASKS" / "pos", 60)
    (folder / "concreteness.csv").write_text("word,concreteness\nbank,high\npalm,low\n")
    years = range(1900, 2000)
    text = [
        f"The light of the {ADJECTIVES[year % 4]} lamp fell on a mouse. A {NOUNS[year % 6]} saw the mouse."
        for year in years
    ]
    letters = pl.DataFrame({"body": text, "author": "A", "year": list(years)})
    letters.write_ndjson(folder / "books.jsonl")
    spans = [[{"start": 4, "stop": 9, "label": "thing"}]] * len(text)
    letters.select(text="body", mentions=pl.Series(spans)).write_parquet(folder / "notes.parquet")
    corpus = es.open_corpus(folder / "books.jsonl", text="body", columns="year")
    es.extract(es.plan(corpus, model=folder / "bert-base-uncased", calibrate=False), folder / "letters.zarr")


def write_senses(folder: Path) -> None:
    """Write stores with the columns of benchmarks of word senses, `coarsewsd.zarr` and `wsd.zarr`."""
    sentences = []
    for number in range(40):
        words = [form for form, *_ in words_of(number)]
        labels = {"lemma_pos": words, "sense": [f"{word}{number % 2}" for word in words]}
        labels["first_sense"] = [f"{word}0" for word in words]
        for name, values in {"split": ("train", "test"), "set": ("semcor", "all")}.items():
            labels[name] = [values[number // 2 % 2]] * len(words)
        sentences.append(Sentence(words, labels))
    for name in ("coarsewsd", "wsd"):
        plan = es.plan(sentences, model=folder / "bert-base-uncased", calibrate=False)
        es.extract(plan, folder / f"{name}.zarr")


def write_studies(folder: Path, plain: str) -> None:
    """Write what the studies of papers read, each in small: edge probing tasks, pairs, senses, word vectors."""
    for name, model in {
        "bert-base-cased": "bert-base-uncased",
        "minilm-folder": "minilm",
        "elmo-folder": "elmo-original",
    }.items():
        (folder / name).symlink_to(folder / model)
    (folder / "edge-probing").mkdir()
    write_edges(folder / "edge-probing" / "pos", 60)
    write_spans(folder / "edge-probing")
    (folder / "coreference").symlink_to(folder / "edge-probing" / "coreference")
    for name in ("sts", "mrpc", "semcor"):
        (folder / name).mkdir()
    lines = plain.splitlines()
    pairs = [(number % 2, one, lines[number - 1]) for number, one in enumerate(lines[:60])]
    (folder / "sts" / "sts.tsv").write_text("".join(f"STS\t{5 * like}\t{one}\t{two}\n" for like, one, two in pairs))
    for name, part in (("train", pairs[:40]), ("dev", pairs[40:])):
        (folder / "mrpc" / f"{name}.tsv").write_text("".join(f"{like}\t{one}\t{two}\n" for like, one, two in part))
    (folder / "semcor" / "corpus.txt").symlink_to(folder / "senses.pse")
    vectors = [
        f"{word} {number % 7} {number % 5} {number % 3}\n" for number, word in enumerate(sorted(set(plain.split())))
    ]
    (folder / "glove.txt").write_text(f"{len(vectors)} 3\n{''.join(vectors)}")
    (folder / "word-benchmarks").mkdir()
    (folder / "word-benchmarks" / "pairs.txt").write_text("river water 8\nbank money 7\nriver court 1\n")


def write_spans(folder: Path) -> None:
    """Write the edge probing tasks `coreference` and `constituents`: two mentions and a pronoun that is one of them."""
    tasks: dict[str, list[str]] = {"coreference": [], "constituents": []}
    for number in range(30):
        one, other, verb = NOUNS[number % 6], NOUNS[(number + 1 + number // 6) % 6], VERBS[number % 5]
        words = ["the", one, "sees", "the", other, "because", "it", verb, ADJECTIVES[number % 4], "."]
        pairs = [([0, 2], number % 3 != 0), ([3, 5], number % 3 == 0)]
        targets = {
            "coreference": [{"span1": span, "span2": [6, 7], "label": str(int(same))} for span, same in pairs],
            "constituents": [
                {"span1": span, "label": label}
                for span, label in (([0, 2], "NP"), ([3, 5], "NP"), ([5, 9], "SBAR"), ([2, 9], "VP"))
            ],
        }
        for task, each in targets.items():
            tasks[task].append(
                json.dumps({"text": " ".join(words), "targets": each, "info": {"document": f"{number % 5}"}})
            )
    for task, lines in tasks.items():
        (folder / task).mkdir()
        for name, cut in (("train", slice(0, 20)), ("dev", slice(20, 25)), ("test", slice(25, None))):
            (folder / task / f"{name}.jsonl").write_text("\n".join(lines[cut]) + "\n")


NOUNS = ["cat", "dog", "bank", "river", "teacher", "letter"]
VERBS = ["sees", "likes", "finds", "leaves", "paints"]
ADJECTIVES = ["old", "small", "green", "quiet"]


def words_of(number: int) -> list[tuple[str, str, int, str]]:
    """Return the words of one made sentence as (form, part of speech, head, relation); heads count from 1."""
    subject, thing = NOUNS[number % 6], NOUNS[(number // 2 + 3) % 6]
    verb, adjective = VERBS[number % 5], ADJECTIVES[number % 4]
    if number % 3 == 0:
        text = f"the/DET/2/det {subject}/NOUN/3/nsubj {verb}/VERB/0/root a/DET/6/det {adjective}/ADJ/6/amod "
        text += f"{thing}/NOUN/3/obj ./PUNCT/3/punct"
    else:
        text = f"a/DET/3/det {adjective}/ADJ/3/amod {subject}/NOUN/4/nsubj {verb}/VERB/0/root the/DET/6/det "
        text += f"{thing}/NOUN/4/obj ./PUNCT/4/punct"
    words = [word.split("/") for word in text.split()]
    return [(form, tag, int(head), relation) for form, tag, head, relation in words]


def tree(number: int) -> str:
    """Return one made sentence in CoNLL-U."""
    lines = [
        f"{place}\t{form}\t{form}\t{tag}\t_\t_\t{head}\t{relation}\t_\t_"
        for place, (form, tag, head, relation) in enumerate(words_of(number), 1)
    ]
    return "\n".join(lines) + "\n"


def write_classes(folder: Path, marked: str) -> None:
    """Write `train.tsv` and `test.tsv`: the words of the demo's sentences with their classes and counts."""
    counts: dict[str, dict[str, int]] = {}
    for word, label in re.findall(r"@(\w+)@-(\w+)", marked):
        counts.setdefault(word, {}).setdefault(label, 0)
        counts[word][label] += 1
    words = sorted(counts)
    for name, part in (("train", words[::2]), ("test", words[1::2])):
        lines = [
            f"@{word}@\t" + " ".join(f"-{label}={count}" for label, count in counts[word].items()) for word in part
        ]
        (folder / f"{name}.tsv").write_text("\n".join(lines) + "\n")


def write_edges(folder: Path, count: int) -> None:
    """Write an edge-probing task over the made sentences: the part of speech of each noun and verb."""
    folder.mkdir()
    lines = []
    for number in range(count):
        words = words_of(number)
        targets = [
            {"span1": [place, place + 1], "label": tag}
            for place, (_, tag, _, _) in enumerate(words)
            if tag in ("NOUN", "VERB", "ADJ")
        ]
        lines.append(json.dumps({"text": " ".join(form for form, *_ in words), "targets": targets, "info": {}}))
    cuts = {"train": slice(0, 40), "dev": slice(40, 50), "test": slice(50, None)}
    for name, cut in cuts.items():
        (folder / f"{name}.jsonl").write_text("\n".join(lines[cut]) + "\n")

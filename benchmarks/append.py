"""What an append costs next to the extraction, and how long it takes to open many stores as one.

python benchmarks/append.py NOVEL.txt --model sentence-transformers/all-MiniLM-L6-v2

Each round loads the model, extracts the sentences of the novel at once, and appends as many as are 1 % of their words
to that store; then it opens a file of 1,000 members and a glob of them, hard links of one small store. Times are of the
processor, but for the opening, whose are by the clock too.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from measure import Row, Times, interleaved, parser_of, table, write_json

import embstore as es
from embstore.corpus import Sentence
from embstore.models import encoder_from_shorthand
from embstore.store import collect

SHARE = 0.01


def split(sentences: Sequence[Sentence], n_words: int) -> tuple[list[Sentence], list[Sentence]]:
    """Return the first sentences, of at least `n_words` words, and after them those of at least 1 % as many words."""
    found: list[list[Sentence]] = [[], []]
    for part, limit in zip(found, (n_words, n_words * SHARE), strict=True):
        rest, done = sentences[sum(map(len, found)) :], 0
        for sentence in rest:
            if done >= limit:
                break
            part.append(sentence)
            done += len(sentence.words)
    return found[0], found[1]


def times_of_append(model: str, parts: tuple[list[Sentence], ...], folder: Path, repeats: int) -> dict[str, Times]:
    """Time the loading of the model, the extraction, the append, and of this the plan and what is around it."""
    encoder, few = encoder_from_shorthand(model), parts[1][:1]

    def plan(sentences: list[Sentence]) -> es.Plan:
        return es.plan(sentences, model=encoder, calibrate=False, progress=False)

    def extract(number: int) -> None:
        es.extract(plan(parts[0]), folder / f"{number}.zarr", progress=False)

    def append(number: int, sentences: list[Sentence]) -> None:
        es.extract(plan(sentences), folder / f"{number}.zarr", append=True, progress=False)

    cases = {
        "load the model": lambda number: encoder_from_shorthand(model),
        "extract": extract,
        "append 1 % more": lambda number: append(number, parts[1]),
        "append one sentence": lambda number: append(number, few),
    }
    return interleaved(cases, repeats=repeats)


def times_of_opening(folder: Path, n_members: int, repeats: int) -> dict[str, Times]:
    """Time the opening of hard links of a store of one sentence."""
    first = folder / "0000.zarr"
    es.extract(es.plan([["a", "small", "store"]], model=encoder_from_shorthand("random:8")), first, progress=False)
    for number in range(1, n_members):
        shutil.copytree(first, folder / f"{number:04}.zarr", copy_function=link)
    collect([str(folder / "*.zarr")], folder / "all.json")
    cases = {
        f"open a file of {n_members:,}": lambda number: es.open(folder / "all.json"),
        f"open a glob of {n_members:,}": lambda number: es.open(str(folder / "*.zarr")),
    }
    return interleaved(cases, repeats=repeats, warm=1)


def link(source: str, target: str) -> None:
    Path(target).hardlink_to(source)


def shown(times: dict[str, Times], whole: str) -> str:
    """Lay out the medians, and the processor time as a share of that of the case `whole`."""
    taken = {name: median(each.processor) for name, each in times.items()}
    rows = [
        (name, f"{each.median:.3f}", f"{taken[name]:.3f}", f"{taken[name] / taken[whole]:.2%}")
        for name, each in times.items()
    ]
    return table(("", "seconds", "processor", f"of {whole}"), rows)


def rows_of(times: dict[str, Times], n_words: list[int], n_members: int) -> list[Row]:
    """Compare an append with its share of the extraction by words, and what opens a collection with a second."""
    taken = {name: median(each.processor) for name, each in times.items()}
    whole, share = taken["extract"], n_words[1] / n_words[0]
    rows = [Row(f"extract {n_words[0]:,} words", whole, clock="processor")]
    for name, words in (("append 1 % more", n_words[1]), ("append one sentence", 0)):
        what = f"append {words:,} words" if words else name
        limit = {"limit": whole * share, "limit_name": f"{share:.2%} of the extraction"} if words else {}
        rows.append(Row(what, taken[name], clock="processor", **limit))
    for kind in ("file", "glob"):
        name = f"open a {kind} of {n_members:,}"
        rows.append(Row(name, taken[name], clock="processor", targets={"seconds": 1}))
    return rows


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("novel", type=Path, nargs="+")
    parser.add_argument("--model", required=True)
    parser.add_argument("--words", type=int, default=20_000)
    parser.add_argument("--members", type=int, default=1000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--tmp", help="a folder for the stores")
    given = parser.parse_args()
    parts = split(list(es.open_corpus(given.novel)), given.words)
    assert parts[1], "the corpus has too few words"
    n_words = [sum(len(sentence.words) for sentence in part) for part in parts]
    with tempfile.TemporaryDirectory(dir=given.tmp) as folder:
        grown = times_of_append(given.model, parts, Path(folder), given.repeats)
    with tempfile.TemporaryDirectory(dir=given.tmp) as folder:
        opened = times_of_opening(Path(folder), given.members, given.repeats)
    print(f"{n_words[0]:,} words, {n_words[1]:,} appended; medians of {given.repeats} rounds\n")
    print(shown(grown, "extract"), shown(opened, next(iter(opened))), sep="\n\n")
    rows = rows_of({**grown, **opened}, n_words, given.members)
    times = {name: vars(each) for name, each in {**grown, **opened}.items()}
    settings = {"model": Path(given.model).name, "members": given.members}
    found = {"benchmark": "append", "settings": settings, "words": n_words, "times": times}
    write_json(given.out, {**found, "rows": [row.as_json() for row in rows]})


if __name__ == "__main__":
    main()

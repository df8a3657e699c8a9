"""The text of a store against loops over plain Python objects, whatever is chosen of it."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path

import h5py
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import embstore as es
from embstore.store import Index, Labels, Strings, Text, create_store
from embstore.store.check.consistency import index_faults
from embstore.store.index import SPECIAL, Contexts, IndexBuilder
from embstore.store.where import rows_where
from tests.documents import blocks
from tests.store.example import SUFFIXES, example

Span = tuple[int, int]
WORDS = ["a", "字é", "co-op", "x\u0301", "don't", "𝔘", "."]
GAPS = ["", " ", " ", "\u00a0", "\r\n", "  "]


@dataclass
class Piece:
    """A sentence: `words` and `subwords` are characters of `text`, `subwords_of` the subwords of each word."""

    number: int
    text: str
    own: Span
    words: list[Span]
    subwords: list[Span]
    ids: list[int]
    subwords_of: list[Span] = field(default_factory=list)


def pieces_of(draw: random.Random) -> list[Piece]:
    """Sentences whose subwords are cut anywhere; some first words share the last subword of the sentence before."""
    made: list[Piece] = []
    for number in range(draw.randint(1, 7)):
        text, words = draw.choice(["", " ", "\n\n"]) if not number else "", list[Span]()
        lead = len(text)
        for word in draw.choices(WORDS, k=draw.randint(1, 5)):
            text += draw.choice(GAPS) if words else ""
            words.append((len(text), len(text) + len(word)))
            text += word
        stop = len(text)
        text += draw.choice(["", " ", "\r\n\u3000"])
        cuts = sorted({0, len(text), *draw.choices(range(len(text) + 1), k=draw.randint(0, 9))})
        subwords = [(b - len(text[a:b].lstrip()), b) for a, b in pairwise(cuts)]
        piece = Piece(number, text, (lead, stop), words, subwords, [100 * number + i for i in range(len(subwords))])
        for a, b in words:
            over = [i for i, (start, end) in enumerate(subwords) if start < b and end > a]
            piece.subwords_of.append((over[0], over[-1] + 1))
        if number and draw.random() < 0.5:
            piece.subwords_of[0] = (-1, piece.subwords_of[0][1])
        made.append(piece)
    return made


def text_of(pieces: list[Piece]) -> Text:
    """The columns of sentences, by loops; a word has no subword of a sentence that is not there."""
    words, subwords = [0], [0]
    first, count = list[int](), list[int]()
    for place, piece in enumerate(pieces):
        words.append(words[-1] + len(piece.words))
        subwords.append(subwords[-1] + len(piece.subwords))
        has_before = place > 0 and pieces[place - 1].number == piece.number - 1
        kept = [(start if has_before else max(start, 0), stop) for start, stop in piece.subwords_of]
        first += [start for start, _ in kept]
        count += [stop - start for start, stop in kept]
    starts, stops = zip(*(span for piece in pieces for span in piece.words), strict=True)
    subword_starts, subword_stops = zip(*(span for piece in pieces for span in piece.subwords), strict=True)
    return Text(
        pieces=Strings.of(piece.text for piece in pieces),
        start=np.array([piece.own[0] for piece in pieces], np.int32),
        stop=np.array([piece.own[1] for piece in pieces], np.int32),
        word_indptr=np.array(words),
        subword_indptr=np.array(subwords),
        word_start=np.array(starts, np.int32),
        word_stop=np.array(stops, np.int32),
        word_subword=np.array(first, np.int32),
        word_subwords=np.array(count, np.int16),
        ids=np.array([number for piece in pieces for number in piece.ids], np.int32),
        subword_start=np.array(subword_starts, np.int32),
        subword_stop=np.array(subword_stops, np.int32),
    )


@dataclass
class Row:
    """A row: its `sentence`, `position` and `form`, its characters in the shown text, and its subwords, of all."""

    sentence: int
    position: int
    form: str
    span: Span
    subwords: Span
    own: int = -1
    special: str | None = None


def rows_of(draw: random.Random, pieces: list[Piece], unit: str) -> list[Row]:
    rows, base = list[Row](), 0
    for number, piece in enumerate(pieces):
        lead, end = piece.own
        some: list[Row] = []
        if unit == "subword":
            for own, (a, b) in enumerate(piece.subwords):
                begun = [i for i, (start, _) in enumerate(piece.subwords_of) if start <= own]
                span = (min(max(a, lead), end) - lead, min(max(b, lead), end) - lead)
                some.append(Row(number, max(begun, default=0), f"<{own}>", span, (base + own, base + own + 1), own))
        else:
            at = 0
            while at < len(piece.words):
                size = 2 if unit == "phrase" and at + 1 < len(piece.words) and draw.random() < 0.3 else 1
                spans, parts = piece.words[at : at + size], piece.subwords_of[at : at + size]
                form = " ".join(piece.text[a:b] for a, b in spans)
                own = (base + parts[0][0], base + parts[-1][1])
                some.append(Row(number, at, form, (spans[0][0] - lead, spans[-1][1] - lead), own))
                at += size
            some = [row for row in some if draw.random() < 0.7]
            n, last = len(piece.words), base + len(piece.subwords)
            if unit == "special":
                some = [
                    Row(number, -1, "<s>", (0, 0), (base - 1, base), special="<s>"),
                    *some,
                    Row(number, n, "</s>", (end - lead, end - lead), (last, last + 1), special="</s>"),
                ]
        rows += some
        base += len(piece.subwords)
    return rows


def index_of(pieces: list[Piece], rows: list[Row], unit: str, draw: random.Random, in_contexts: bool) -> Index:
    text, forms = text_of(pieces), list(dict.fromkeys(row.form for row in rows))
    if unit != "subword":
        text = replace(text, subword_start=None, subword_stop=None)
    contexts = None
    if in_contexts:
        cuts = sorted({0, *draw.choices(range(len(rows)), k=3)})
        spans = [[row.subwords for row in rows[a:b]] for a, b in pairwise([*cuts, len(rows)])]
        start = np.minimum.accumulate(np.array([min(max(0, min(each)[0]), len(text.ids) - 1) for each in spans])[::-1])[
            ::-1
        ]
        stop = np.maximum.accumulate([min(len(text.ids), max(b for _, b in each)) for each in spans])
        contexts = Contexts(start, np.maximum(stop, start + 1), np.array([*cuts, len(rows)]))
    specials = list(dict.fromkeys(row.special for row in rows if row.special))
    codes = np.array([specials.index(row.special) if row.special else -1 for row in rows], np.int32)
    sentence = np.array([row.sentence for row in rows])
    return Index.of(
        type=np.array([forms.index(row.form) for row in rows], np.int32),
        sentence=sentence,
        position=np.array([row.position for row in rows], np.int32),
        subwords=np.ones(len(rows), np.int16),
        subword=np.array([row.own for row in rows], np.int32) if unit == "subword" else None,
        words=Strings.of(forms),
        text=text,
        indptr=np.searchsorted(sentence, np.arange(len(pieces) + 1)).astype(np.int64),
        source=np.array([piece.number for piece in pieces]),
        labels={SPECIAL: Labels(codes, Strings.of(specials))} if specials else None,
        document=np.zeros(len(pieces), np.int64),
        contexts=contexts,
    )


PAGE = Path(__file__).parents[2] / "docs" / "reference" / "format.md"
UNITS = pytest.mark.parametrize("unit", ["word", "phrase", "special", "subword"])
DRAWS = given(draw=st.randoms(use_true_random=False), in_contexts=st.booleans())


def same_text(found: Text, expected: Text, unit: str = "subword") -> None:
    for name, column in expected.columns().items():
        if unit == "subword" or name not in ("subwords/start", "subwords/stop"):
            np.testing.assert_array_equal(found.columns()[name], column, err_msg=name)


@UNITS
@DRAWS
@settings(max_examples=20)
@pytest.mark.quick(2)
def test_rows_are_spans_of_the_text(unit: str, draw: random.Random, in_contexts: bool) -> None:
    pieces = pieces_of(draw)
    rows = rows_of(draw, pieces, unit)
    if not rows:
        return
    index, shown = index_of(pieces, rows, unit, draw, in_contexts), [each.text[slice(*each.own)] for each in pieces]
    assert list(index_faults(index, len(rows))) == []
    assert list(index.text) == index.text.slice(0, len(pieces)) == shown
    assert index.text.words_of(0, len(pieces)) == [[each.text[a:b] for a, b in each.words] for each in pieces]
    assert index.text.document(0, len(pieces)) == "".join(each.text for each in pieces)
    some = np.array(draw.choices(range(len(rows)), k=6))
    for name, chosen in (("all", np.arange(len(rows))), ("some", some)):
        expected = [rows[number] for number in chosen.tolist()]
        assert list(zip(*index.spans(chosen), strict=True)) == [row.span for row in expected], name
        assert list(zip(*index.subword_spans(chosen), strict=True)) == [row.subwords for row in expected], name
        lines = []
        for row in expected:
            (start, stop), text = row.span, shown[row.sentence]
            parts = text[:start], text[start:stop], text[stop:]
            if row.special:
                parts = ("", row.special, f" {text}") if row.position < 0 else (f"{text} ", row.special, "")
            lines.append(parts)
        assert index.concordance(chosen) == lines
        assert [(row["start"], row["stop"], row["text"]) for row in index.to_dicts(chosen)] == [
            (*row.span, shown[row.sentence]) for row in expected
        ]
    bounds = index.text.subword_indptr[[[row.sentence, row.sentence + 1] for row in rows]]
    if index.contexts is not None:
        of_rows = index.contexts.of_rows(np.arange(len(rows)))
        bounds = np.stack([index.contexts.start[of_rows], index.contexts.stop[of_rows]], 1)
    for name, expected in (
        ("context_position", [row.subwords[0] - start for row, (start, _) in zip(rows, bounds.tolist(), strict=True)]),
        ("context_from_end", [stop - row.subwords[1] for row, (_, stop) in zip(rows, bounds.tolist(), strict=True)]),
        ("start", [row.span[0] for row in rows]),
    ):
        for value in set(expected):
            found = np.concatenate([*rows_where(index, f"{name} = {value}", block_rows=5)])
            assert found.tolist() == [row for row, own in enumerate(expected) if own == value]


@given(sentences=st.lists(st.lists(st.sampled_from(["a", "字é b", "", "x  y"]), min_size=1), max_size=9))
def test_built_sentences_are_words_and_phrases_joined_by_spaces(sentences: list[list[str]]) -> None:
    builder = IndexBuilder()
    for number, forms in enumerate(sentences):
        builder.add(number, forms)
    index, rows = builder.build(), [form for forms in sentences for form in forms]
    assert list(index.text) == [" ".join(forms) for forms in sentences]
    assert index.text.words_of(0, len(sentences)) == [" ".join(forms).split(" ") for forms in sentences]
    assert [text[a:b] for text, a, b in zip(map(index.text.__getitem__, index.sentence.tolist()),
            *index.spans(np.arange(len(rows))), strict=True)] == rows  # fmt: skip
    assert [index.words[number] for number in index.type.tolist()] == rows
    assert list(index_faults(index, len(rows))) == []


@UNITS
@DRAWS
@settings(max_examples=20)
def test_a_part_has_the_text_of_its_sentences(unit: str, draw: random.Random, in_contexts: bool) -> None:
    pieces = pieces_of(draw)
    first, last = sorted(draw.choices(range(len(pieces) + 1), k=2))
    whole = text_of(pieces)
    if first < last:
        same_text(whole.range(first, last), text_of(pieces[first:last]))
    numbers = sorted(draw.sample(range(len(pieces)), draw.randint(1, len(pieces))))
    same_text(whole.subset(np.array(numbers)), text_of([pieces[number] for number in numbers]))
    rows = rows_of(draw, pieces, unit)
    if not rows:
        return
    index = index_of(pieces, rows, unit, draw, in_contexts)
    chosen = np.array(sorted(draw.sample(range(len(rows)), draw.randint(1, len(rows)))))
    part, kept = index.subset(chosen), {rows[number].sentence for number in chosen.tolist()}
    if index.contexts is not None and part.contexts is not None:
        begins = whole.subword_indptr.tolist()
        some = np.unique(index.contexts.of_rows(chosen))
        runs = [(index.contexts.start[number], index.contexts.stop[number]) for number in some.tolist()]
        kept = {n for n, (a, b) in enumerate(pairwise(begins)) for start, stop in runs if max(a, start) < min(b, stop)}
        assert index.sentences_of(some).tolist() == sorted(kept)
        ids = [whole.ids[start:stop].tolist() for start, stop in runs]
        assert [
            part.text.ids[a:b].tolist() for a, b in zip(part.contexts.start, part.contexts.stop, strict=True)
        ] == ids
    same_text(part.text, text_of([pieces[number] for number in sorted(kept)]), unit)
    assert list(index_faults(part, len(chosen))) == []
    renumbered = ("occurrence", "sentence", "document")
    tables = (index.to_dicts(chosen), part.to_dicts(np.arange(len(chosen))))
    left, right = ([{k: v for k, v in row.items() if k not in renumbered} for row in table] for table in tables)
    assert left == right


@pytest.mark.parametrize("has_documents", [False, True])
@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.filterwarnings("ignore::embstore.errors.UnfinishedStoreWarning")
def test_the_page_reads_the_text_with_zarr_or_h5py_alone(suffix: str, has_documents: bool, tmp_path: Path) -> None:
    (code,) = [block.code for block in blocks(PAGE) if "sentences/word_indptr" in block.code]
    draw, path = random.Random(1), tmp_path / f"s{suffix}"
    pieces = pieces_of(draw)
    rows = rows_of(draw, pieces, "word")
    index = index_of(pieces, rows, "word", draw, in_contexts=False)
    index = index if has_documents else index.changed(document=None)
    create_store(path, metadata=replace(example(labels=False).metadata, n_rows=len(rows)), index=index)
    opened = f"zarr.open_group({str(path)!r})" if suffix == ".zarr" else f"h5py.File({str(path)!r})"
    for number, row in enumerate(rows):
        found: dict[str, object] = {"h5py": h5py}
        exec(code.replace('zarr.open_group("demo.zarr", mode="r"), 17', f"{opened}, {number}"), found)
        own = pieces[row.sentence]
        document = "".join(piece.text for piece in pieces) if has_documents else own.text
        assert (found["word"], found["sentence"]) == (row.form, own.text[slice(*own.own)])
        assert found["document"] == document


@UNITS
@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.filterwarnings("ignore::embstore.errors.UnfinishedStoreWarning")
@pytest.mark.quick(4)
def test_a_collection_has_the_text_of_its_members(unit: str, suffix: str, tmp_path: Path) -> None:
    draw, base, members = random.Random(7), example(labels=False).metadata, []
    for number in range(3):
        pieces = pieces_of(draw)
        rows = rows_of(draw, pieces, unit)
        index = index_of(pieces, rows, unit, draw, in_contexts=number != 1)
        metadata = replace(base, n_rows=len(rows), corpus={"name": f"{number}", "n_sentences": len(pieces)})
        path = tmp_path / f"{number}{suffix}"
        create_store(path, metadata=metadata, index=index)
        assert es.open(path).index.text.columns().keys() == index.text.columns().keys()
        same_text(es.open(path).index.text, index.text, unit)
        members.append(index)
    joined = es.open([tmp_path / f"{number}{suffix}" for number in range(3)]).index
    texts = [member.text for member in members]
    assert list(joined.text) == [sentence for text in texts for sentence in text]
    assert joined.text.words_of(0, len(joined.text)) == [
        words for text in texts for words in text.words_of(0, len(text))
    ]
    assert joined.text.ids.tolist() == [number for text in texts for number in text.ids.tolist()]
    lines = [line for member in members for line in member.concordance(np.arange(len(member.type)))]
    assert joined.concordance(np.arange(len(joined.type))) == lines
    found, expected = list[list[int]](), list[list[int]]()
    for index, ids in ((joined, found), *((member, expected) for member in members)):
        ends = index.subword_spans(np.arange(len(index.type))) if unit != "special" else ()
        sentences = [index.text.subword_indptr[:-1], index.text.subword_indptr[1:]]
        contexts = sentences if index.contexts is None else [index.contexts.start, index.contexts.stop]
        ids += [index.text.ids[a:b].tolist() for a, b in zip(*ends, strict=True)]
        ids += [] if index is joined else [index.text.ids[a:b].tolist() for a, b in zip(*contexts, strict=True)]
    assert joined.contexts is not None
    runs = zip(joined.contexts.start, joined.contexts.stop, strict=True)
    assert sorted(found + [joined.text.ids[a:b].tolist() for a, b in runs]) == sorted(expected)
    assert list(index_faults(joined, len(lines))) == []

"""The report of a store: its numbers are those of the public functions, and its text is only ever text."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import polars as pl
import pytest

import embstore as es
from embstore.store import Labels, Store, Strings, Text
from embstore_explorer import report as report_of
from embstore_explorer.reports.sections import AFTER, BEFORE, SECTIONS, _best_probe, _clusterings
from tests.probes.class_store import write_rows
from tests.probes.edge_store import write_store
from tests.store_making import make_store

pytest.importorskip("matplotlib", reason="figures need matplotlib")
HOSTILE = ("<img/src=x/onerror=alert(1)>", "</svg><script>alert(2)</script>", "שלום\u202eעולם", "\"'&amp;", "$x^2$")


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """300 sentences of hostile and other words; the first has two senses in its 30 sentences."""
    rng, size = np.random.default_rng(0), 8
    words = [*HOSTILE, *(f"word{number}" for number in range(55))]
    types = np.array([rng.permutation(len(words))[:6] for _ in range(300)], np.int32)
    types[types == 0] = 7
    types[:30, 0] = 0
    count, rows = types.size, types.ravel()
    centers = rng.normal(size=(3, len(words), size))
    vectors = centers[:, rows] + rng.normal(size=(3, count, size)) * 0.4
    turned = (rows > 0) & (rows < len(HOSTILE))
    vectors[:, turned] *= rng.normal(size=turned.sum())[:, None]
    second = np.flatnonzero(rows == 0)[::2]
    vectors[:, second] -= 2 * centers[:, [0]]
    text = Text.of_words([words[number] for number in sentence] for sentence in types)
    return write_rows(
        tmp_path_factory.mktemp("report") / "<hostile>.zarr", vectors, (0, 1, 2), partition_rows=2048, model="<model>",
        type=rows, sentence=np.repeat(np.arange(300), 6), position=np.tile(np.arange(6, dtype=np.int32), 300),
        words=Strings.of(words), text=text,
        labels={"<b>tag": Labels((rows % 3).astype(np.int32), Strings.of(["<i>A", "B", "C"]))},
    )  # fmt: skip


@pytest.fixture(scope="module")
def report(store: Store) -> Any:
    return report_of(store)


class Tags(HTMLParser):
    """The tags of a page with their attributes, and its text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.mark.slow
def test_words_are_text_and_nothing_outside_is_referenced(report: Any) -> None:
    page = Tags(report.html)
    assert not {tag for tag, _ in page.tags} & {"img", "script", "link", "iframe", "object", "i", "b"}
    pairs = [pair for _, attributes in page.tags for pair in attributes.items()]
    assert not [name for name, _ in pairs if name.startswith("on")]
    links = [each for name, each in pairs if name in ("href", "xlink:href", "src")]
    assert links
    assert all(each is not None and each.startswith(("#", "data:image/png;base64,")) for each in links)
    assert not re.search(r"url\((?!#)|@import", report.html)
    assert all(word in page.text for word in HOSTILE)
    media = re.findall(r"@media (\w+)", report.html)
    assert sorted(media) == ["print", "screen", "screen"], "no dark theme and no figure that scrolls on paper"
    ids = [str(attributes["id"]) for _, attributes in page.tags if "id" in attributes]
    anchors = {attributes["href"] for tag, attributes in page.tags if tag == "a"}
    assert anchors == {f"#{name}" for name in SECTIONS}
    assert all(ids.count(name) == 1 for name in SECTIONS)


@pytest.mark.slow
def test_every_section_is_computed_and_its_python_gives_its_numbers(report: Any, store: Store) -> None:
    assert [each.name for each in report.sections] == list(SECTIONS)
    assert not [each.problem for each in report.sections if each.problem]
    for section in report.sections[1:]:
        known: dict[str, Any] = {"es": es, "np": np, "store": store}
        exec(section.call, known)
        for name, frame in section.frames.items():
            if name == "tested":
                row = frame.row(by_predicate=pl.col("word") == known["found"].word, named=True)
                assert (known["found"].silhouette, known["found"].p) == (row["silhouette"], row["p"])
            else:
                again = known[name]
                assert frame.equals(getattr(again, "frame", again)), f"{section.name}: {name}"
    [tested] = [each.frames["tested"] for each in report.sections if each.name == "senses"]
    assert tested.row(by_predicate=pl.col("word") == HOSTILE[0], named=True)["supported"]


@pytest.mark.slow
def test_the_layer_of_probes_is_chosen_on_dev() -> None:
    """The highest of several test scores is too high; a control task may have no score."""
    rows = [("dev", "a", 0, 0.9), ("dev", "a", 1, 0.8), ("test", "a", 0, 0.6), ("test", "a", 1, 0.7)]
    rows += [("test", "control", 0, None), ("test", "control", 1, 0.1), ("dev", "control", 1, 0.99)]
    summary = pl.DataFrame(rows, ["split", "task", "layer", "value"], orient="row")
    summary = summary.with_columns(metric=pl.lit("f1"), item=pl.lit(""))
    assert _best_probe(summary) == (0, 0.6, 0.0)


@pytest.mark.slow
def test_the_same_seed_gives_the_same_bytes(report: Any, store: Store, tmp_path: Path) -> None:
    again = report_of(store)
    assert again.html == report.html
    again.save(tmp_path / "a.html")
    assert (tmp_path / "a.html").read_text("utf-8") == report.html
    assert report_of(store, sections="words", seed=1).html != report.html


def test_a_section_that_cannot_be_computed_says_why(tmp_path: Path) -> None:
    made = make_store(tmp_path / "small.zarr", sentences=4)
    report = report_of(made.store, sections=("words", "probes", "contents"))
    problems = {each.name: each.problem for each in report.sections}
    assert list(problems) == ["contents", "words", "probes"], "the order of the page"
    assert problems["contents"] is None
    assert "5 different sentences" in str(problems["words"])
    assert "fewer than 50 words have a label of upos" in str(problems["probes"])
    assert report.html.count("Not computed: ") == 2
    assert ".." not in report.html


def test_a_measure_that_does_not_apply_leaves_out_itself_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One selected word a sentence: no sentence has two, as intra-sentence similarity needs."""
    monkeypatch.setattr("embstore.analysis.neighbors.senses.DRAWS", 1)
    rng, words = np.random.default_rng(0), [f"word{number}" for number in range(25)]
    rows = np.repeat(np.arange(25), 24)
    vectors = rng.normal(size=(25, 6))[rows] + 0.4 * rng.normal(size=(2, len(rows), 6))
    vectors[:, 1:24:2] *= -1  # word0 has two senses
    sentences = [[words[number], f"c{row}"] for row, number in enumerate(rows.tolist())]
    without = [(number, 1) for number in range(len(rows))]
    store = write_store(tmp_path / "s.zarr", sentences, vectors.astype(np.float32), (0, 1), without=without)
    made = {each.name: each for each in report_of(store, sections=("geometry", "words", "senses")).sections}
    assert [each.problem for each in made.values()] == [None] * 3
    assert "intra-sentence similarity" not in made["geometry"].blocks[1].frame.columns
    assert any("which intra-sentence similarity needs" in caveat for caveat in made["geometry"].caveats)
    assert "metrics=('selfsim', 'anisotropy')" in made["geometry"].call


def test_too_few_occurrences_are_no_finding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("embstore.analysis.neighbors.senses.DRAWS", 1)
    rng = np.random.default_rng(0)
    cases = (20, "Not determined: no word has 30 different contexts or more"), (40, "None of the 12 words of")
    for count, said in cases:
        texts = [[f"a{number}", f"word{number % 12}", f"b{number}"] for number in range(12 * count)]
        vectors = rng.normal(size=(1, 36 * count, 5)).astype(np.float32)
        store = write_store(tmp_path / f"{count}.zarr", texts, vectors, (0,))
        (section,) = report_of(store, sections="senses").sections
        assert section.problem is None
        assert section.finding.startswith(said)
        assert len(section.frames["tested"]) > 5
    monkeypatch.setattr("embstore_explorer.reports.sections.TESTED", 0)
    assert not report_of(store, sections="senses").sections[0].blocks, "no table without a row"
    rare = write_store(tmp_path / "rare.zarr", texts[:9], vectors[:, :27], (0,))
    (section,) = report_of(rare, sections="senses").sections
    assert str(section.problem).startswith("no word occurs 15 times or more")


@pytest.mark.slow
def test_two_groups_are_supported_and_one_is_not(store: Store) -> None:
    assert es.senses(store, HOSTILE[0]).p == 1 / 20
    assert es.senses(store, "word9", n_clusters=2).p > 0.05
    assert es.senses(store, "word9", n_clusters=1).p is None


def test_a_long_sentence_is_cut_at_a_space_on_both_sides_of_its_word() -> None:
    assert BEFORE.sub(r"… \1", "one two " * 50) == "… " + "one two " * 20
    assert AFTER.sub(r"\1 …", " one two" * 50) == " one two" * 20 + " …"
    assert (BEFORE.sub("", "short "), AFTER.sub("", " short")) == ("short ", " short")


def test_repeated_contexts_count_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = make_store(tmp_path / "s.zarr").store
    source: Any = SimpleNamespace(data=store, seed=0)
    monkeypatch.setattr("embstore_explorer.reports.sections.SAMPLE", 1000)
    (found,) = _clusterings(source, ["bank"])
    assert found.occurrences.equals(es.senses(store, "bank", sample=1000, distinct=True).occurrences)
    assert len(found.occurrences) < len(store.select(words="bank"))
    monkeypatch.setattr("embstore_explorer.reports.sections.MIN_OCCURRENCES", len(found.occurrences) + 1)
    assert not list(_clusterings(source, ["bank"]))

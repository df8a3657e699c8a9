"""`lookup --plot`: the sentence of the first occurrence, or of one that is named."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

import embstore as es
from tests.cli.conftest import Work
from tests.drawn import svg_texts

pytest.importorskip("matplotlib", reason="figures need matplotlib")

KINDS = {"png": b"\x89PNG", "svg": b"<?xml", "pdf": b"%PDF"}


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Return the similarities and titles of the heat maps that are drawn."""
    seen: list[Any] = []
    made = es.plot.similarity_heatmap

    def seeing(similarity: Any, *, title: str) -> Any:
        seen.append((similarity, title))
        return made(similarity, title=title)

    monkeypatch.setattr(es.plot, "similarity_heatmap", seeing)
    return seen


@pytest.mark.parametrize("suffix", KINDS)
@pytest.mark.quick(1)
def test_the_first_sentence_is_drawn(suffix: str, work: Work, drawn: list[Any]) -> None:
    before = set(work.contents())
    plain = work.run("lookup", "store.zarr", "bank")
    ran = work.run("lookup", "store.zarr", "bank", "--plot", f"map.{suffix}")
    assert (ran.status, ran.err, ran.out) == (0, "", plain.out)
    assert (work / f"map.{suffix}").read_bytes().startswith(KINDS[suffix])
    assert set(work.contents()) - before == {f"map.{suffix}"}
    ((similarity, title),) = drawn
    assert title == "a man sat on the bank of the river ."
    assert " ".join(similarity.words) == title
    assert similarity.layers == es.open(work / "store.zarr").layers


@pytest.mark.slow
def test_the_sentence_of_a_row_is_drawn(work: Work, drawn: list[Any]) -> None:
    store = es.open(work / "store.zarr")
    rows = store.select(words="bank").rows.tolist()
    assert len(rows) == 2
    for row in rows:
        assert (
            work.run("lookup", "store.zarr", "bank", "--plot", "map.png", "--where", f"occurrence = {row}").status == 0
        )
    assert [title for _, title in drawn] == [
        "a man sat on the bank of the river .",
        "the old bank of the town lends money .",
    ]
    second = store.select(sentences=1)
    vectors = second.vectors(dtype="float64")
    unit = vectors / np.linalg.norm(vectors, axis=2, keepdims=True)
    np.testing.assert_allclose(drawn[1][0].values, unit @ unit.transpose(0, 2, 1), atol=1e-12)


def test_a_condition_chooses_occurrences(work: Work) -> None:
    rows = es.open(work / "store.zarr").select(words="bank", where="position > 2").rows.tolist()
    ran = work.run("lookup", "store.zarr", "bank", "--json", "--where", "position > 2")
    assert [row["occurrence"] for row in json.loads(ran.out)] == rows
    assert len(rows) == 1
    none = work.run("lookup", "store.zarr", "bank", "--where", "position > 99")
    assert (none.status, none.out.splitlines()[0]) == (0, "bank: 0 occurrences")


@pytest.mark.slow
def test_json_stays_json(work: Work) -> None:
    ran = work.run("lookup", "store.zarr", "river", "--json", "--plot", "map.svg")
    assert [row["word"] for row in json.loads(ran.out)] == ["river"]
    assert {"river", "cosine similarity", "layer 0 (no context)"} <= svg_texts(work / "map.svg")


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ("--plot map.gif", ("--plot map.gif", ".png, .svg, .pdf")),
        ("--plot gone/map.png", ("--plot gone/map.png", "the folder gone does not exist")),
        ("--plot model", ("--plot model", "is a folder")),
        ("--plot map.png --where occurrence=0", ("no occurrence of 'bank' is left by --where occurrence=0",)),
    ],
)
def test_bad_input_is_one_line(options: str, says: tuple[str, ...], work: Work) -> None:
    work.refuses(f"lookup store.zarr bank {options}", *says)

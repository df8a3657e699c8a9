"""The tour: it ends with tables that say something, and a picture; again, it finds its store."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import embstore as es
from tests.cli.conftest import environment, run_process

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def toured(minilm: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    pytest.importorskip("matplotlib", reason="figures need matplotlib")
    folder = tmp_path_factory.mktemp("tour")
    ran = run_process("demo", cwd=folder, env=environment(COLUMNS="80"))
    assert (ran.status, ran.err) == (0, "")
    return folder, ran.out


def test_it_leaves_a_store_and_figures(toured: tuple[Path, str]) -> None:
    folder, _ = toured
    left = {path.name for path in (folder / "demo-out").iterdir()}
    assert left == {"demo.zarr", "minilm", "senses.png", "geometry.png"}
    for name in ("senses.png", "geometry.png"):
        drawn = (folder / "demo-out" / name).read_bytes()
        assert drawn.startswith(b"\x89PNG")
        assert len(drawn) > 20_000
    store = es.open(folder / "demo-out" / "demo.zarr")
    assert store.finished
    assert store.layers == (0, 1, 2, 3, 4, 5, 6)


def test_what_it_prints_fits_eighty_columns_and_names_no_long_path(toured: tuple[Path, str], minilm: Path) -> None:
    _, out = toured
    assert str(minilm) not in out
    assert "layers 0 to 6 of all-MiniLM-L6-v2, 384 float16" in re.sub(" +", " ", out)
    lines = [line for line in out.splitlines() if not line.startswith("on disk")]  # names the folder
    assert max(map(len, lines)) <= 80


def test_later_layers_separate_the_senses_better_than_chance(toured: tuple[Path, str]) -> None:
    mean = next(line for line in toured[1].splitlines() if line.startswith("mean"))
    chance, first, *_, last = map(int, re.findall(r"\d+", mean))
    assert last > first
    assert last > chance + 20


def test_its_report_shows_its_ambiguous_words(toured: tuple[Path, str]) -> None:
    from embstore_explorer import report

    store = es.open(toured[0] / "demo-out" / "demo.zarr")
    (section,) = report(store, sections="senses").sections
    tested = section.frames["tested"]
    ambiguous = set(store.table(columns=["word", "class"]).drop_nulls()["word"].unique().cast(str))
    assert len(ambiguous & set(tested["word"])) >= 5
    assert tested.filter(tested["supported"])["word"].to_list() == ["apple"]
    assert section.finding.startswith("The occurrences of apple fall into clusters")


def test_its_advice_works_and_a_second_run_uses_the_store(toured: tuple[Path, str]) -> None:
    folder, out = toured
    advised = re.search(r"try: embstore (lookup \S+ \S+)", out)
    assert advised is not None
    ran = run_process(*advised[1].split(), cwd=folder)
    assert (ran.status, ran.err) == (0, "")
    again = run_process("demo", cwd=folder)
    assert again.status == 0
    assert "The store exists from an earlier run" in again.out


def test_a_folder_that_is_a_file_is_refused(minilm: Path, tmp_path: Path) -> None:
    (tmp_path / "demo-out").write_text("mine")
    ran = run_process("demo", cwd=tmp_path)
    assert (ran.status, ran.err) == (2, "embstore: --out demo-out is a file: give a folder\n")
    assert (tmp_path / "demo-out").read_text() == "mine"

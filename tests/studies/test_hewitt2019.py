"""The study of Hewitt & Manning 2019 in small: its tables are those of its probes, on the drawn sentences."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest

import embstore as es
import embstore_studies as studies
from embstore.corpus import derived_edges, read_trees
from embstore.probes import EdgeProbe, StructuralProbe, code_length
from embstore_studies import Hewitt2019, StudyResult
from embstore_studies.hewitt2019.study import Treebank
from embstore_studies.tasks import SPLITS, treebank_files
from tests.studies.sections import rows_of

WORDS = ("the", "cat", "sat", "mat", "because", "warm", "river", "hill", "money", "people", "need", "sea", "bank")
TAGS = ("NOUN", "VERB", "ADJ")
SETTINGS = Hewitt2019(n_sentences=20, rank=8, ranks=(2, 8), task_sentences=12, tasks=(), trees=2)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Random trees over a few words; a word has one tag."""
    folder = tmp_path_factory.mktemp("treebank")
    draws = np.random.default_rng(0)
    for split, count in (("train", 30), ("dev", 10), ("test", 10)):
        text = ""
        for number in range(count):
            words = [*draws.choice(WORDS, 9).tolist(), f"{split}{number}"]
            for place, word in enumerate(words):
                head = 0 if place == 0 else int(draws.integers(1, place + 1))
                tag = TAGS[len(word) % 3]
                text += f"{place + 1}\t{word}\t_\t{tag}\t_\t_\t{head}\t{'root' if head == 0 else 'dep'}\t_\t_\n"
            text += "\n"
        (folder / f"some-{split}.conllu").write_text(text)
    return folder


@pytest.fixture(scope="module")
def study(data: Path, model: Path, tmp_path_factory: pytest.TempPathFactory) -> StudyResult:
    return studies.reproduce(
        SETTINGS, data, model={"tiny": model}, out=tmp_path_factory.mktemp("study"), progress=False
    )


def store_of(study: StudyResult, name: str = "tiny") -> es.Store:
    return es.open(study.folder / "stores" / f"{name}-20-0.zarr")


@pytest.mark.slow
def test_trees_and_tasks_are_of_the_same_sentences(data: Path, study: StudyResult) -> None:
    bank = Treebank(treebank_files(data), 20, 0)
    assert {split: len(trees) for split, trees in bank.trees.items()} == {"train": 20, "dev": 10, "test": 10}
    for split in SPLITS:
        assert [list(tree.words) for tree in bank.trees[split]] == [
            list(edge.words) for edge in bank.edges("upos")[split]
        ]
        assert {tree.words for tree in bank.trees[split]} <= {tree.words for tree in read_trees(bank.files[split])}
    assert sorted(store_of(study).index.texts) == sorted(" ".join(each.words) for each in bank)
    other = Treebank(treebank_files(data), 20, 1)
    assert [tree.words for tree in other.trees["train"]] != [tree.words for tree in bank.trees["train"]]


@pytest.mark.slow
def test_scores_are_those_of_the_probes(study: StudyResult, data: Path) -> None:
    bank, store = Treebank(treebank_files(data), 20, 0), store_of(study)
    probe = StructuralProbe(rank=8, device="cpu").fit(store, bank.trees["train"], bank.trees["dev"])
    wanted = probe.score({split: bank.trees[split] for split in ("dev", "test")}).frame
    found = study.frames["structure"].filter(pl.col("encoder") == "trained", pl.col("rank") == 8)
    columns = ["layer", "split", "metric", "value", "count"]
    assert found.select(columns).equals(wanted.select(columns))
    best = probe.best_layer()
    narrow = StructuralProbe(rank=2, layers=[best], device="cpu").fit(store, bank.trees["train"], bank.trees["dev"])
    value = narrow.score(bank.trees["test"]).frame.filter(metric="uuas")["value"][0]
    assert rows_of(study, "By rank")[0]["rank"] == 2
    assert rows_of(study, "By rank")[0]["UUAS"] == f"{value:.3f}"
    table = {row["vectors"]: row for row in rows_of(study, "Table 1")}
    order = wanted.filter(pl.col("store").str.contains("linear order"), split="test", metric="uuas")["value"][0]
    assert table["tiny: linear order"]["UUAS"] == f"{order:.3f}"
    top = wanted.filter(layer=best, split="test", metric="nspr")["value"][0]
    assert table[f"tiny, layer {best} (best)"]["NSpr"] == f"{top:.3f}"
    published = {row["rank"]: (row["UUAS, paper"], row["DSpr, paper"]) for row in rows_of(study, "By rank")}
    assert published == {2: ("0.389", "0.630"), 8: ("0.659", "0.770")}


@pytest.mark.slow
def test_the_baseline_has_random_weights(study: StudyResult, data: Path) -> None:
    random = store_of(study, "tiny-untrained")
    assert random.metadata.model["weights_sha256"] != store_of(study).metadata.model["weights_sha256"]
    bank = Treebank(treebank_files(data), 20, 0)
    found = study.frames["structure"].filter(encoder="untrained", split="test", metric="uuas", baseline=False)
    (layer,) = found["layer"].to_list()
    probe = StructuralProbe(rank=8, layers=[layer], device="cpu").fit(random, bank.trees["train"], bank.trees["dev"])
    wanted = probe.score(bank.trees["test"]).frame.filter(metric="uuas")["value"][0]
    assert found["value"][0] == wanted


@pytest.mark.slow
def test_tasks_have_controls_and_code_lengths(study: StudyResult, data: Path, model: Path) -> None:
    settings = replace(SETTINGS, tasks=("upos",))
    study = studies.reproduce(settings, data, model={"tiny": model}, out=study.folder, progress=False)
    bank, store = Treebank(treebank_files(data), 20, 0), store_of(study)
    edges = bank.edges("upos")
    probe = EdgeProbe(kind="linear", control=True, n_sentences=12, device="cpu")
    scored = probe.fit(store, edges["train"], edges["dev"], name="upos").score({"test": edges["test"]}).summary()
    code = code_length(store, edges["train"], edges["dev"], probe=probe, name="upos").summary()
    for row in rows_of(study, "Selectivity and code length: upos"):
        values = {
            each["metric"]: each["value"] for each in pl.concat([scored, code]).filter(layer=row["layer"]).to_dicts()
        }
        assert row["F1"] == f"{values['layer_f1']:.3f}"
        assert row["selectivity"] == f"{values['layer_f1'] - values['layer_control_f1']:.3f}"
        assert row["compression"] == f"{values['compression']:.3f}"
    assert derived_edges(bank.files["test"], "upos")[0].targets


@pytest.mark.slow
def test_figures_are_drawn(study: StudyResult) -> None:
    assert list(study.figures) == ["layers.png", "ranks.png", "tiny-tree-1.png", "tiny-tree-2.png"]
    for name in study.figures:
        assert (study.folder / "figures" / name).read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_the_same_call_does_nothing_twice(
    study: StudyResult, data: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import embstore_studies.hewitt2019.study as running

    monkeypatch.setattr(running.StructuralProbe, "fit", None)
    monkeypatch.setattr(running.EdgeProbe, "fit", None)
    again = studies.reproduce(SETTINGS, data, model={"tiny": model}, out=study.folder, progress=False)
    assert all(again.frames[name].equals(frame) for name, frame in study.frames.items())


@pytest.mark.parametrize(
    ("case", "said"),
    [
        ("no folder", "is not a folder"),
        ("no dev", "has 0 files *dev*.conllu"),
        ("two", "has 2 files *test*.conllu"),
        ("broken", "test.conllu"),
        ("no tag", "no word has an xpos"),
        ("one tag", "upos: train has 1 labels"),
        ("no model", "none"),
    ],
)
def test_bad_input_is_refused_before_the_extraction(case: str, said: str, data: Path, tmp_path: Path) -> None:
    folder = tmp_path / "treebank"
    if case != "no folder":
        folder.mkdir()
        for path in data.iterdir():
            if not (case == "no dev" and "dev" in path.name):
                (folder / path.name).write_text(path.read_text())
    if case == "two":
        (folder / "a-test.conllu").write_text("")
    if case == "broken":
        (folder / "some-test.conllu").write_text("1\tword\n")
    if case == "one tag":
        path = folder / "some-train.conllu"
        path.write_text(path.read_text().replace("ADJ", "NOUN").replace("VERB", "NOUN"))
    settings = replace(SETTINGS, tasks=("pos",) if case == "no tag" else ("upos",))
    with pytest.raises(es.errors.InputError) as refused:
        studies.reproduce(settings, folder, model={"tiny": "./none"}, out=tmp_path / "out")
    assert said in str(refused.value)
    assert not (tmp_path / "out").exists()

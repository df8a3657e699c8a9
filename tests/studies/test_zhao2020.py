"""The study of Zhao et al. 2020 in small: its tables are those of its parts, and the same call does nothing twice."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import embstore as es
from embstore.corpus import read_word_classes
from embstore.errors import InvalidValueError
from embstore.probes import ClassProbe, ProbeResult, Training, load, split_words
from embstore.studies import StudyResult, Zhao2020, published
from embstore.studies.zhao2020 import report
from tests.models import tiny
from tests.models.finetuning import planted

WORDS = [
    *["cat", "mat", "bank", "river", "hill", "sea", "money", "dollars"],
    "hills and",
    "people",
    "people need",
    "need it",
]
FRAMES = {"animal": "the {} sat on a mat because it was warm .", "place": "a b {} flow to the old hill , ok !"}
SETTINGS = Zhao2020.small(
    max_contexts=3,
    hidden_size=8,
    epochs=3,
    batch_size=16,
    learning_rate=1e-3,
    context_windows=(0, 2, None),
    attention_windows=(0, None),
    tuning_epochs=1,
    tuning_sentences=None,
    tuning_batch_size=8,
    similarity_sentences=4,
    skipgram_size=12,
    skipgram_epochs=1,
)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Words of two classes that their sentences distinguish, and the lists of words."""
    folder = tmp_path_factory.mktemp("pse")
    lines, lists = [], {"train": [], "test": []}
    for number, word in enumerate(WORDS * 2):
        name = word.replace(" ", "_") + ("s" if number >= len(WORDS) else "")
        own = ("animal", "place") if number % 5 == 0 else (("animal", "place")[number % 2],)
        for each in own:
            lines += [FRAMES[each].format(f"@{name}@-{each}")] * (1 + number % 4)
        lists["test" if number % 3 == 0 else "train"].append(f"@{name}@\t" + " ".join(f"-{each}=2" for each in own))
    (folder / "corpus.txt").write_text("\n".join(lines) + "\n")
    for name, rows in lists.items():
        (folder / f"{name}.tsv").write_text("\n".join(rows) + "\n")
    single = [word + end for word in WORDS[:8] for end in ("", "s") if " " not in word]
    rows = [f"{word} {number % 3} {number % 2} {number % 5}" for number, word in enumerate(single)]
    (folder / "few.txt").write_text("\n".join(rows) + "\n")
    (folder / "none.txt").write_text("cat 1 0 0\n")
    return folder / "corpus.txt"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.save("bert", tmp_path_factory.mktemp("models") / "tiny-bert")


@pytest.fixture(scope="module")
def study(corpus: Path, model: Path, tmp_path_factory: pytest.TempPathFactory) -> StudyResult:
    return es.reproduce(with_vectors(corpus), corpus, model=model, out=tmp_path_factory.mktemp("study"), progress=False)


def with_vectors(corpus: Path, **changes: Any) -> Zhao2020:
    return replace(SETTINGS, vectors={name: corpus.parent / f"{name}.txt" for name in ("few", "none")}, **changes)


def _directly(
    study: StudyResult, corpus: Path, stores: dict[str, str], splits: tuple[str, ...] = ("dev", "test"), **options: Any
) -> pl.DataFrame:
    """The table of the parts: probes called by hand on the stores of the study."""
    train, test = (read_word_classes(corpus.parent / f"{name}.tsv") for name in ("train", "test"))
    opened = {name: es.open(study.folder / "stores" / f"{path}.zarr") for name, path in stores.items()}
    words = split_words(train, test, seed=0)
    settings = Training(epochs=3, batch_size=16, patience=2)
    probe = ClassProbe(kind="mlp", hidden_size=8, max_contexts=3, training=settings, **options)
    results = [probe.fit(store, words).score(splits=splits, name=name) for name, store in opened.items()]
    return ProbeResult.concat(results).summary()


@pytest.mark.slow
def test_every_table_is_that_of_its_parts(study: StudyResult, corpus: Path) -> None:
    types = _directly(study, corpus, {"BERTw": "bertw", "AVG": "bert-full"}, level="type")
    own = study.frames["types"].filter((pl.col("vocabulary") == "own") & pl.col("store").is_in(["BERTw", "AVG"]))
    assert own.drop("vocabulary").equals(types)
    contexts = _directly(study, corpus, {"BERT": "bert-full"}, control=True)
    assert study.frames["contexts"].filter(pl.col("store") == "BERT").drop("vocabulary").equals(contexts)
    window = _directly(study, corpus, {"BERT": "bert-k2", "P-BERT": "p-bert-k2"}, splits=("dev",))
    assert study.frames["windows"].filter(pl.col("window") == 2).drop("vocabulary", "window").equals(window)


@pytest.mark.slow
def test_a_table_of_vectors_is_compared_on_its_own_words_and_left_out_for_too_few(study: StudyResult) -> None:
    few = study.frames["types"].filter(pl.col("vocabulary") == "few")
    assert set(few["store"]) == {"Rand", "BERTw", "skip-gram", "AVG", "few"}
    counted = few.filter((pl.col("metric") == "f1") & (pl.col("split") == "test"))["count"]
    assert counted.n_unique() == 1
    assert counted[0] < study.frames["types"].filter(vocabulary="own", metric="f1")["count"].max()
    assert set(study.frames["types"]["vocabulary"]) == {"own", "few"}
    assert any("none has vectors for too few words" in note for note in study.notes)
    assert "too few words" in (study.folder / "report.md").read_text()


@pytest.mark.slow
def test_the_words_pairs_and_contexts_of_each_split(study: StudyResult, corpus: Path) -> None:
    pairs: dict[tuple[str, str], int] = {}
    for line in corpus.read_text().splitlines():
        target = next(word for word in line.split() if word.startswith("@"))
        word, label = target[1:].split("@-")
        pairs[word, label] = pairs.get((word, label), 0) + 1
    listed = {line.split("@")[1] for line in (corpus.parent / "test.tsv").read_text().splitlines()}
    held = {pair: min(count, 3) for pair, count in pairs.items() if pair[0] in listed}
    row = study.frames["counts"].filter((pl.col("split") == "test") & (pl.col("class") == "")).to_dicts()[0]
    assert (row["words"], row["pairs"], row["contexts"]) == (len(listed), len(held), sum(held.values()))
    animals = study.frames["counts"].filter((pl.col("split") == "test") & (pl.col("class") == "animal")).to_dicts()[0]
    assert animals["pairs"] == sum(label == "animal" for _, label in held)


@pytest.mark.slow
def test_the_same_call_finds_its_work_done(
    study: StudyResult, corpus: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("it was done already")

    monkeypatch.setattr("embstore.studies.zhao2020.study.ClassProbe.fit", refuse)
    monkeypatch.setattr("embstore.studies.zhao2020.study.train_vectors", refuse)
    again = es.reproduce(with_vectors(corpus), corpus, model=model, out=study.folder)
    for name in ("counts", "types", "contexts", "windows"):
        assert again.frames[name].equals(study.frames[name])
    with pytest.raises(AssertionError, match="done already"):  # other probes are other tables
        es.reproduce(with_vectors(corpus, epochs=4), corpus, model=model, out=study.folder)


@pytest.mark.slow
def test_the_report_holds_every_table_and_figure(study: StudyResult) -> None:
    text = (study.folder / "report.md").read_text()
    for table in study.sections:
        assert f"## {table.title}" in text
    for number in (3, 4, 5):
        assert (study.folder / "figures" / f"figure{number}.png").stat().st_size > 5000
        assert f"figures/figure{number}.png" in text
    assert "at most 3 contexts a word-class pair (100)" in text


@pytest.mark.slow
def test_published_layers_are_shown_only_for_a_model_with_as_many(study: StudyResult) -> None:
    def paper(n_layers: int) -> dict[str, str]:
        table = report.contexts(report.Scores(SETTINGS, n_layers, study.frames))
        return {str(row["representation"]): str(row["paper test"]) for row in table.rows}

    ours = paper(3)
    assert ours["P-BERT"] == "0.670"
    assert not any(value for name, value in ours.items() if name.startswith("BERT"))
    as_deep = paper(published.ZHAO_LAYERS)
    assert as_deep["BERT, layer 0"] == ""
    assert as_deep["BERT, layer 1"] == "0.645"
    assert as_deep["BERT, layer 2"] == "0.688"


@pytest.mark.slow
def test_fine_tuned_models_with_old_probes_and_new(corpus: Path, model: Path, tmp_path: Path) -> None:
    data = {task: planted.folder(tmp_path / task, task, train=24, dev=8) for task in ("pos", "ner")}
    study = es.reproduce(replace(SETTINGS, tuning=data), corpus, model=model, out=tmp_path / "study")
    store = es.open(study.folder / "stores" / "tuned-pos.zarr")
    probe = load(study.folder / "probes" / "pretrained")
    assert isinstance(probe, ClassProbe)
    applied = probe.score(data=store, name="pos").summary().rename({"store": "model"})
    ours = study.frames["finetuned"].filter((pl.col("model") == "pos") & (pl.col("setup") == "a"))
    assert ours.select(applied.columns).equals(applied)
    renewed = _directly(study, corpus, {"pos": "tuned-pos"}).rename({"store": "model"})
    ours = study.frames["finetuned"].filter((pl.col("model") == "pos") & (pl.col("setup") == "b"))
    assert ours.select(renewed.columns).equals(renewed)
    assert study.frames["pos_windows"]["window"].to_list() == [0, None]
    whole = study.frames["tuning"].filter(pl.col("task") == "pos")["value"].item()
    assert study.frames["pos_windows"].filter(pl.col("window").is_null())["value"].item() == whole
    assert sorted(study.frames["attention"]["task"].unique()) == ["ner", "pos"]
    text = (study.folder / "report.md").read_text()
    assert all(f"figure{number}.png" in text for number in (6, 7))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"tuning": {"parsing": "x"}}, "unknown task 'parsing': choose among pos, ner, classify, paraphrase"),
        ({"vectors": {"Rand": "few.txt"}}, "vectors 'Rand': the study uses this name itself"),
        ({"context_windows": (0, 2)}, "add full"),
    ],
)
def test_bad_settings_are_refused_in_one_line(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(es.errors.EmbstoreError, match=message) as refused:
        Zhao2020(**settings)
    assert "\n" not in str(refused.value)


def test_missing_word_lists_and_a_file_as_folder_are_refused(corpus: Path, model: Path, tmp_path: Path) -> None:
    alone = tmp_path / "corpus.txt"
    alone.write_text(corpus.read_text())
    with pytest.raises(InvalidValueError, match=r"there is no train\.tsv next to"):
        es.reproduce(SETTINGS, alone, model=model, out=tmp_path / "out")
    with pytest.raises(InvalidValueError, match="is a file: give a folder"):
        es.reproduce(SETTINGS, corpus, model=model, out=alone)
    with pytest.raises(es.errors.EmbstoreError, match=r"nowhere\.tsv"):
        es.reproduce(replace(SETTINGS, train="nowhere.tsv"), corpus, model=model, out=tmp_path / "out")


def test_the_figures_of_the_paper() -> None:
    assert len(published.CONTEXTUAL["test"]) == len(published.AVERAGED["test"]) == published.ZHAO_LAYERS
    best = max(range(12), key=published.AVERAGED["test"].__getitem__)
    assert best == 9  # "AVG-BERT-10 performs best" by dev and test within .001; on test layer 9
    gain = max(ours - published.BAGS["P-BERT"]["test"] for ours in published.CONTEXTUAL["test"])
    assert gain == pytest.approx(0.16, abs=0.005)  # "a maximum gain of 0.16 in F1 in layer 11"


@pytest.mark.slow
def test_the_command_prints_the_tables(study: StudyResult, corpus: Path, model: Path, capsys: Any) -> None:
    from typer.testing import CliRunner

    from embstore_cli.main import app

    given = ["reproduce", "zhao2020", str(corpus), "-m", str(model), "--out", str(study.folder / "cli"), "--small"]
    for pair in ("hidden_size=8", "epochs=1", "max_contexts=2", "context_windows=0,none", "skipgram_size=12"):
        given += ["--set", pair]
    ran = CliRunner().invoke(app, [*given, "--json"])
    assert ran.exit_code == 0, ran.output
    assert [name.split(".")[0] for name in json.loads(ran.stdout)] == [
        "Table 2",
        "Table 5",
        "Table 6",
        "Control task: random classes for each word (test)",
        "Figure 5",
    ]

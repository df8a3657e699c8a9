"""The study of Zhao et al. 2020 in small: its tables are those of its parts, and the same call does nothing twice."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
import transformers

import embstore as es
import embstore_studies as studies
from embstore.analysis import attention_similarity
from embstore.corpus import open_corpus, read_word_classes
from embstore.errors import InvalidValueError
from embstore.probes import ClassProbe, ProbeResult, Training, load, split_words
from embstore_studies import StudyResult, Zhao2020
from embstore_studies.study import StudyFolder
from embstore_studies.zhao2020 import figures, pairs, published, report, words
from embstore_studies.zhao2020.study import read_words
from tests.studies.finetuning import planted

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
    kind="mlp",
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
def study(corpus: Path, model: Path, tmp_path_factory: pytest.TempPathFactory) -> StudyResult:
    return studies.reproduce(
        with_vectors(corpus), corpus, model=model, out=tmp_path_factory.mktemp("study"), progress=False
    )


def with_vectors(corpus: Path, **changes: Any) -> Zhao2020:
    vectors = {name: corpus.parent / f"{name}.txt" for name in ("few", "none")}
    return replace(SETTINGS, vectors=vectors, neighbors_of=("cats", "hill"), passage_subwords=40, **changes)


def _directly(
    study: StudyResult, corpus: Path, stores: dict[str, str], splits: tuple[str, ...] = ("dev", "test"), **options: Any
) -> pl.DataFrame:
    """The table of the parts: probes called by hand on the stores of the study."""
    train, test = (read_word_classes(corpus.parent / f"{name}.tsv") for name in ("train", "test"))
    opened = {name: es.open(study.folder / "stores" / f"{path}.zarr") for name, path in stores.items()}
    words = split_words(train, test, seed=0)
    settings = Training(epochs=3, batch_size=16, learning_rate=1e-3, patience=5)
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
    unfinished = contexts.filter((pl.col("metric") == "converged") & (pl.col("value") < 1))
    noted = [note for note in study.notes if note.startswith("bert: early stopping ended")]
    assert len(noted) == (len(unfinished) > 0) == 1, "few epochs are noted"
    window = _directly(study, corpus, {"BERT": "bert-k2", "P-BERT": "p-bert-k2"}, splits=("dev",))
    assert study.frames["windows"].filter(context="2").drop("vocabulary", "context").equals(window)


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
def test_pairs_give_the_scores_and_change_in_both_directions(study: StudyResult) -> None:
    pairs_frame = study.frames["pairs"].with_columns(pl.col("word").str.replace_all(" ", "_"))
    scored = study.frames["windows"].with_columns(split=pl.lit("dev"))
    whole = study.frames["contexts"].filter(store="BERT", task="class").with_columns(context=pl.lit("all"))
    one_bin = pl.DataFrame(
        {"word": pairs_frame["word"].unique(), "subwords": 1}, schema_overrides={"subwords": pl.Int64}
    )
    for frame in (whole, scored.filter(store="BERT", task="class")):
        for row in frame.filter(metric="f1").iter_rows(named=True):
            own = pairs_frame.filter(context=row["context"], split=row["split"], layer=row["layer"])
            assert pairs.f1_by_subwords(own, one_bin)["value"].item() == pytest.approx(row["value"] or 0)
    flips = study.frames["flips"]
    assert set(flips.filter(by="context")["to"]) == {"2", "all", "passage"}
    n_dev = pairs_frame.filter(context="all", split="dev", layer=0).height
    assert set(flips.select(pl.sum_horizontal("^(wrong|right|stay)_.*$")).to_series()) == {n_dev}
    best = max(
        whole.filter(metric="f1", split="dev").iter_rows(named=True), key=lambda row: (row["value"], -row["layer"])
    )
    own = study.frames["pairs"].filter(split="dev", layer=best["layer"])
    for shown in study.frames["examples"].filter(pl.col("kind").str.ends_with("context")).iter_rows(named=True):
        right = dict(own.filter(word=shown["word"], **{"class": shown["class"]}).select("context", "right").iter_rows())
        assert shown["right"] == " ".join(str(right[context]) for context in ("0", "2", "all", "passage"))
    words = study.frames["subwords"].filter(layer=0)
    assert words["count"].sum() == study.frames["counts"].filter(split="test", **{"class": ""})["pairs"].item()


PAIRS = [  # word, class, contexts, right by layer, found by layer
    ("suit", "law", 4, (0, 1, 4), ("dress", "dress", "law dress")),
    ("suit", "dress", 1, (1, 0, 1), ("dress", "", "dress")),
    ("goodfellas", "art", 2, (2, 1, 0), ("art", "art", "")),
    ("zande", "tongue", 3, (0, 3, 3), ("", "tongue", "tongue")),
    ("glutamate", "law", 2, (0, 0, 0), ("", "art", "art dress")),
]


def test_the_pairs_that_change_most_clearly() -> None:
    rows = [
        {"word": word, "class": name, "contexts": count, "layer": layer, "right": right[layer], "found": found[layer]}
        for word, name, count, right, found in PAIRS
        for layer in (2, 0, 1)
    ]
    frame = pl.DataFrame(rows)
    paths = pairs.trajectories(frame, "layer", [0, 1, 2])
    assert paths.filter(word="zande")["right"].to_list() == [[0, 3, 3]]
    steps = [(row["wrong_to_right"], row["right_to_wrong"], row["stay_right"]) for row in pairs.flips(paths, [0, 1, 2])]
    assert steps == [(1, 1, 1), (2, 1, 1), (2, 1, 1)]
    gained = [(row["word"], row["class"], row["step"]) for row in pairs.clearest(paths, 9)]
    assert gained == [("suit", "law", 2), ("zande", "tongue", 1)]  # 7/8 of 4 contexts before 1 of 3; not the wavering
    assert [(row["word"], row["step"]) for row in pairs.clearest(paths, 9, gained=False)] == [("goodfellas", 2)]
    assert pairs.clearest(paths, 1)[0]["word"] == "suit"
    subwords = {"New York": 2, "suit": 1, "goodfellas": 2, "zande": 2, "glutamate": 7}
    assert [row["word"] for row in pairs.never_right(paths, subwords, 3)] == ["glutamate"]
    counts = pl.DataFrame({"word": list(subwords), "subwords": list(subwords.values())})
    phrase = pl.DataFrame([{**rows[0], "word": "New York"}])
    by_subwords = pairs.f1_by_subwords(pl.concat([frame, phrase]), counts)
    values = {row[:2]: row[2:] for row in by_subwords.iter_rows()}
    assert values[2, "phrase"][0] == 1
    assert values[0, "1"] == (2, pytest.approx(2 / 4))  # 1 of 2 pairs, 2 classes found
    assert values[2, "1"] == (2, pytest.approx(4 / 5))
    assert values[1, "2"] == (2, 1), "one of two contexts is half"
    assert values[2, "5 or more"] == (1, 0)
    assert (pairs.sign_test(2, 1), pairs.sign_test(0, 5), pairs.sign_test(0, 0)) == (1, 2 / 32, 1)


@pytest.mark.slow
def test_words_in_their_sentences_and_their_neighbors(study: StudyResult, corpus: Path) -> None:
    assert words.excerpt(["they", "speak", "Zande", ",", "which"], 2, 1, 1) == "... speak [Zande] , ..."
    assert words.excerpt(["Pa", "Zande"], 0, 2, 5) == "[Pa Zande]"
    rows = [line.split() for line in (corpus.parent / "few.txt").read_text().splitlines()]
    vectors = {row[0]: np.array(row[1:], float) for row in rows}
    units = {word: vector / max(np.linalg.norm(vector), 1e-12) for word, vector in vectors.items()}
    found = study.frames["neighbors"].filter(table="few", word="cats")
    cosines = sorted((float(units["cats"] @ unit) for word, unit in units.items() if word != "cats"), reverse=True)
    np.testing.assert_allclose(found["value"], cosines[:7], atol=1e-6)
    assert set(study.frames["neighbors"].filter(table="BERT")["word"]) == {"hill"}, "cats is two subwords"
    text = corpus.read_text()
    ambiguous = study.frames["ambiguous"]
    for row in ambiguous.iter_rows(named=True):
        shown = row["context"].removeprefix("... ").removesuffix(" ...")
        assert (
            shown.replace("[", "@").replace(f"{row['word']}]", f"{row['word'].replace(' ', '_')}@-{row['class']}")
            in text
        )
    assert ambiguous.group_by("word").agg(pl.col("class").n_unique())["class"].to_list() == [2, 2]


@pytest.mark.slow
def test_passages_have_the_rows_of_the_sentences_and_more_context(study: StudyResult, model: Path) -> None:
    whole, passage = (es.open(study.folder / "stores" / f"bert-{name}.zarr") for name in ("full", "passage"))
    tested = set(study.frames["pairs"].filter(split="test")["word"])
    ours, rows = passage.table(), [row for row in whole.table().to_dicts() if row["word"] not in tested]
    assert ours["word"].to_list() == [row["word"] for row in rows]
    assert ours["class"].to_list() == [row["class"] for row in rows]
    contexts, index = passage.index.contexts, passage.index
    assert contexts is not None
    assert contexts.start.tolist() == sorted(set(contexts.start.tolist()))
    words = " ".join(index.texts).split(" ")
    tokenizer = transformers.AutoTokenizer.from_pretrained(model)
    runs = [words[start:stop] for start, stop in zip(contexts.start.tolist(), contexts.stop.tolist(), strict=True)]
    sizes = [len(tokenizer(run, is_split_into_words=True, add_special_tokens=False).input_ids) for run in runs]
    assert 20 < max(sizes) <= 40
    place = int(index.word_indptr[index.sentence[0]] + index.position[0] - contexts.start[0])
    expected = hidden_states(model, runs[0], place, len(ours["word"][0].split(" ")))
    np.testing.assert_allclose(passage.vectors([0], layers=passage.layers[-1])[0][0], expected, atol=4e-3)


@pytest.mark.slow
def test_the_same_call_finds_its_work_done(
    study: StudyResult, corpus: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("it was done already")

    monkeypatch.setattr("embstore_studies.zhao2020.probing.ClassProbe.fit", refuse)
    monkeypatch.setattr("embstore_studies.zhao2020.stores.train_vectors", refuse)
    again = studies.reproduce(with_vectors(corpus), corpus, model=model, out=study.folder)
    for name in ("counts", "types", "contexts", "windows"):
        assert again.frames[name].equals(study.frames[name])
    with pytest.raises(AssertionError, match="done already"):  # other probes are other tables
        studies.reproduce(with_vectors(corpus, epochs=4), corpus, model=model, out=study.folder)
    studies.reproduce(with_vectors(corpus), corpus, model=model, out=study.folder)


@pytest.mark.parametrize("damage", ["flipped", "cut", "empty", "no origin"])
def test_a_damaged_table_is_made_again(damage: str, tmp_path: Path) -> None:
    folder = StudyFolder(tmp_path)
    made: list[int] = []

    def make() -> pl.DataFrame:
        made.append(1)
        return pl.DataFrame({"value": [0.5, 0.25]})

    whole = folder.table("scores", {"seed": 0}, make)
    table, origin = (tmp_path / "tables" / f"scores.{suffix}" for suffix in ("parquet", "json"))
    data = table.read_bytes()
    place = data.index(b"\x00\x00\x00\x00\x00\x00\xe0\x3f")  # 0.5
    flipped = data[: place + 6] + bytes([data[place + 6] ^ 1]) + data[place + 7 :]
    table.write_bytes({"flipped": flipped, "cut": data[:-9], "empty": b"", "no origin": data}[damage])
    if damage == "no origin":
        origin.write_text("{")
    assert folder.table("scores", {"seed": 0}, make).equals(whole)
    assert (len(made), table.read_bytes()) == (2, data)
    assert folder.table("scores", {"seed": 0}, make).equals(whole)
    assert len(made) == 2
    assert folder.table("scores", {"seed": 1}, make).equals(whole)
    assert len(made) == 3


@pytest.mark.slow
def test_scores_are_those_of_numpy(study: StudyResult, corpus: Path) -> None:
    """Micro F1 by the rule of half: logits of the saved probes, decided and counted without embstore."""
    probe = load(study.folder / "probes" / "pretrained")
    assert isinstance(probe, ClassProbe)
    store = es.open(study.folder / "stores" / "bert-full.zarr")
    weights = {name: tensor.numpy() for name, tensor in probe.fitted_.bank.weights.items()}
    test = read_word_classes(corpus.parent / "test.tsv")
    rows: dict[tuple[str, str], list[int]] = {}
    for row in store.table().to_dicts():
        if row["word"] in test:
            rows.setdefault((row["word"], row["class"]), []).append(row["occurrence"])
    for layer in store.layers:
        vectors = store.select(layers=layer).vectors(dtype="float64")[0]
        inputs = np.concatenate([vectors, np.ones((len(vectors), 1))], 1)
        hidden = np.maximum(np.einsum("nd,pud->pnu", inputs, weights["hidden"][layer]), 0)
        logits = np.einsum("pnu,pu->pn", hidden, weights["output"][layer]) + weights["bias"][layer][:, None]
        pairs = [
            (bool((logits[number, own] > 0).mean() >= 0.5), label == name)
            for number, name in enumerate(probe.fitted_.classes)
            for (_, label), own in rows.items()
        ]
        both, either = pairs.count((True, True)), sum(yes + is_right for yes, is_right in pairs)
        found = report.f1(study.frames["contexts"], split="test", task="class", store="BERT", layer=layer)
        assert found["value"].item() == pytest.approx(2 * both / either, abs=1e-9)


def hidden_states(model: Path, words: list[str], first: int, count: int) -> np.ndarray:
    """The last layer at `count` words of a context, mean over subwords, by transformers alone."""
    network = transformers.AutoModel.from_pretrained(model).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(model)
    encoded = tokenizer(words, is_split_into_words=True, return_tensors="pt")
    with torch.no_grad():
        states = network(**encoded).last_hidden_state[0].numpy()
    chosen = range(first, first + count)
    return states[[place for place, word in enumerate(encoded.word_ids()) if word in chosen]].mean(0)


@pytest.mark.slow
def test_the_report_holds_every_table_and_figure(study: StudyResult) -> None:
    text = (study.folder / "report.md").read_text()
    for table in study.sections:
        assert f"## {table.title}" in text
    for number in (3, 4, 5):
        assert (study.folder / "figures" / f"figure{number}.png").read_bytes().startswith(b"\x89PNG")
        assert f"figures/figure{number}.png" in text
    few = next(section for section in study.sections if section.title == "Table 5 on the words of few")
    assert set(few.rows[0]) == {"representation", "dev", "test"}, "the paper has no scores of these words"
    assert "at most 3 contexts a word-class pair (100)" in text


@pytest.mark.slow
def test_fine_tuned_models_with_old_probes_and_new(corpus: Path, model: Path, tmp_path: Path) -> None:
    data = {task: planted.folder(tmp_path / task, task, train=24, dev=8) for task in ("pos", "ner")}
    study = studies.reproduce(replace(SETTINGS, tuning=data), corpus, model=model, out=tmp_path / "study")
    for task in data:
        store = es.open(study.folder / "stores" / f"tuned-{task}.zarr")
        first = store.table().row(0, named=True)
        target = first["text"].split(" "), first["position"], len(first["word"].split(" "))
        own, pretrained = (hidden_states(each, *target) for each in (study.folder / "models" / task, model))
        stored = store.vectors([0], layers=store.layers[-1])[0].astype(np.float64)[0]
        np.testing.assert_allclose(stored, own, atol=4e-3)
        assert np.abs(own - pretrained).max() > 4e-2, "the store holds the tuned weights, not those it began with"
    store = es.open(study.folder / "stores" / "tuned-pos.zarr")
    probe = load(study.folder / "probes" / "pretrained")
    assert isinstance(probe, ClassProbe)
    applied = probe.score(data=store, splits=("dev",), name="pos").summary().rename({"store": "model"})
    ours = study.frames["finetuned"].filter((pl.col("model") == "pos") & (pl.col("setup") == "a"))
    assert ours.select(applied.columns).equals(applied)
    renewed = _directly(study, corpus, {"pos": "tuned-pos"}, splits=("dev",)).rename({"store": "model"})
    ours = study.frames["finetuned"].filter((pl.col("model") == "pos") & (pl.col("setup") == "b"))
    assert ours.select(renewed.columns).equals(renewed)
    assert study.frames["pos_windows"]["window"].to_list() == [0, None]
    whole = study.frames["tuning"].filter(pl.col("task") == "pos")["value"].item()
    assert study.frames["pos_windows"].filter(pl.col("window").is_null())["value"].item() == whole
    attention = study.frames["attention"]
    assert sorted(attention["task"].unique()) == ["ner", "pos"]
    dev = [sentence.words for sentence in open_corpus(data["pos"] / "dev.conll", columns="word,label")]
    tuned_model = study.folder / "models" / "pos"
    directly = attention_similarity(dev, model_a=model, model_b=tuned_model, n_sentences=4)
    assert attention.filter(task="pos").drop("task").equals(directly), "on the dev set of the task"
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
    with pytest.raises(es.errors.EmbstoreError, match=message):
        Zhao2020(**settings)


def test_a_study_of_fewer_words_draws_from_both_lists(corpus: Path) -> None:
    every, few = (read_words(replace(SETTINGS, n_words=count), corpus) for count in (None, 6))
    assert (len(few.train) + len(few.dev), len(few.test)) == (6, 6)
    assert few.test.items() < every.test.items()
    assert few == read_words(replace(SETTINGS, n_words=6), corpus)


def test_missing_word_lists_and_a_file_as_folder_are_refused(corpus: Path, model: Path, tmp_path: Path) -> None:
    alone = tmp_path / "corpus.txt"
    alone.write_text(corpus.read_text())
    with pytest.raises(InvalidValueError, match=r"there is no train\.tsv next to"):
        studies.reproduce(SETTINGS, alone, model=model, out=tmp_path / "out")
    with pytest.raises(InvalidValueError, match="is a file: give a folder"):
        studies.reproduce(SETTINGS, corpus, model=model, out=alone)
    with pytest.raises(es.errors.EmbstoreError, match=r"nowhere\.tsv"):
        studies.reproduce(replace(SETTINGS, train="nowhere.tsv"), corpus, model=model, out=tmp_path / "out")


REFUSED = {
    "epochs": ({"epochs": 0}, "epochs 0 is not allowed"),
    "hidden units": ({"hidden_size": 0}, "hidden"),
    "contexts": ({"max_contexts": 0}, "max_contexts 0 is not allowed"),
    "seeds": ({"seeds": (-1,)}, "-1"),
    "windows": ({"context_windows": (-2, None)}, "context_windows"),
    "tuning epochs": ({"tuning_epochs": 0}, "epochs"),
    "skip-gram": ({"skipgram_size": 0}, "size 0 is not allowed"),
    "sentences": ({"similarity_sentences": 0}, "similarity_sentences 0 is not allowed"),
    "kind": ({"kind": "deep"}, "deep"),
    "vectors": ({"vectors": {"GloVe": "gone.txt"}}, r"gone\.txt"),
    "vectors of text": ({"vectors": {"GloVe": "corpus.txt"}}, r"corpus\.txt"),
    "vectors with a bad line": ({"vectors": {"GloVe": "bad.txt"}}, r"bad\.txt:3"),
    "tuning with a bad test line": ({"tuning": {"classify": "texts"}}, r"test\.tsv:2"),
    "words that do not occur": ({"test": "absent.tsv"}, "no test word occurs with one of its classes"),
    "passages": ({"passage_subwords": 1000}, "passage_subwords 1000 is more than the model accepts: give"),
    "tuning": ({"tuning": {"pos": "gone"}}, "no data at gone"),
    "tuning file": ({"tuning": {"pos": "corpus.txt"}}, r"corpus\.txt is a file"),
    "tuning of one label": ({"tuning": {"pos": "one"}}, "every label is 'X'"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_used_is_refused_before_anything_is_extracted(
    case: str, corpus: Path, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "corpus.txt").write_text(corpus.read_text())
    (tmp_path / "one").mkdir()
    (tmp_path / "texts").mkdir()
    for split in ("train", "dev", "test"):
        (tmp_path / "one" / f"{split}.conll").write_text("a\tX\nb\tX\n\n")
        (tmp_path / "texts" / f"{split}.tsv").write_text("1\ta b\n0\tb\n" if split != "test" else "1\ta\nb\n")
    (tmp_path / "bad.txt").write_text("a 1 2\nb 1 2\nc 1 x\n")
    (tmp_path / "absent.tsv").write_text("@absent@\t-animal=2\n")
    changes, message = REFUSED[case]
    with pytest.raises(es.errors.InputError, match=message):
        studies.reproduce(replace(SETTINGS, **changes), corpus, model=model, out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def scores_of(n_layers: int) -> report.Scores:
    """Scores that count: layer l of the model has 0.01 l, and so on, on every split."""
    rows: list[dict[str, Any]] = []
    for store, layers in (("AVG", range(n_layers + 1)), ("Rand", [0]), ("BERT", range(n_layers + 1)), ("P-BERT", [0])):
        rows += [{"store": store, "layer": layer, "value": 0.01 * layer} for layer in layers]
    frame = pl.DataFrame(rows).with_columns(
        task=pl.lit("class"), metric=pl.lit("f1"), item=pl.lit(""), deviation=pl.lit(None, pl.Float64),
        vocabulary=pl.lit("own"), count=pl.lit(7),
    )  # fmt: skip
    frame = pl.concat([frame.with_columns(split=pl.lit(split)) for split in ("dev", "test")])
    types, contexts = (frame.filter(pl.col("store").is_in(each)) for each in (["AVG", "Rand"], ["BERT", "P-BERT"]))
    windows = contexts.with_columns(context=pl.lit("2"), value=pl.col("value") / 2)
    tuned = contexts.filter(store="BERT").drop("store").with_columns(model=pl.lit("pos"))
    both = pl.concat([tuned.with_columns(setup=pl.lit(each), value=pl.col("value") / 4) for each in "ab"])
    maps = [
        {"task": "pos", "layer": layer, "head": head, "value": 1 - 0.1 * head} for layer in (1, 2) for head in (0, 1)
    ]
    frames = {
        "counts": pl.DataFrame(
            [
                {"split": split, "class": name, "words": 1, "pairs": 2, "contexts": 3}
                for split in ("train", "dev", "test")
                for name in ("", "location")
            ]
        ),
        "types": types,
        "contexts": contexts,
        "windows": windows,
        "finetuned": both,
        "attention": pl.DataFrame(maps),
    }
    return report.Scores(replace(SETTINGS, context_windows=(2, None)), n_layers, frames)


def lines_of(axis: Any) -> dict[str, list[tuple[float, float]]]:
    return {line.get_label(): list(zip(*map(list, line.get_data()), strict=True)) for line in axis.get_lines()}


def test_the_figures_show_the_scores_and_the_paper_s_layers_where_they_belong() -> None:
    scores, own = scores_of(12), [(layer, pytest.approx(0.01 * layer)) for layer in range(13)]
    (axis,) = figures.word_scores(scores).axes
    heights = dict(zip([text.get_text() for text in axis.get_xticklabels()], axis.patches, strict=True))
    assert heights["Rand"].get_height() == 0
    assert heights["AVG 12"].get_height() == pytest.approx(0.12)
    paper = dict(lines_of(axis)["paper"])
    assert (paper[0], paper[2], paper[13]) == (0.267, 0.744, 0.806)  # Rand, AVG 1 and AVG 12; AVG 0 has none
    assert np.isnan(paper[1])
    (axis,) = figures.layer_scores(scores).axes
    drawn = lines_of(axis)
    assert drawn["BERT"] == own
    assert drawn["paper"] == list(enumerate(published.CONTEXTUAL["test"], 1))
    assert [y for _, y in drawn["P-BERT"]] == [0, 0]
    (axis,) = figures.context_sizes(scores).axes
    assert [text.get_text() for text in axis.get_xticklabels()] == ["2", "all"]
    assert lines_of(axis)["BERT, layer 12"] == [(0, pytest.approx(0.06)), (1, pytest.approx(0.12))]
    (axis,) = figures.finetuned(scores).axes
    drawn = lines_of(axis)
    assert (drawn["pretrained"], len(drawn["pos (a)"])) == (own, 13)
    assert drawn["paper"] == [(12, 0.835), (12, 0.072), (12, 0.735)]
    (axis, _) = figures.attention(scores).axes
    np.testing.assert_allclose(axis.get_images()[0].get_array(), [[1, 0.9], [1, 0.9]])
    assert [text.get_text() for text in axis.get_yticklabels()] == ["1", "2"]
    (axis,) = figures.layer_scores(scores_of(6)).axes
    assert "paper" not in lines_of(axis), "another model's layers are not the paper's"


def test_the_tables_show_the_paper_s_layers_where_they_belong() -> None:
    rows = {row["representation"]: row for row in report.contexts(scores_of(12)).rows}
    assert (rows["BERT, layer 0"]["paper test"], rows["BERT, layer 1"]["paper test"]) == ("", "0.645")
    assert (rows["BERT, layer 12"]["paper test"], rows["P-BERT"]["paper test"]) == ("0.831", "0.670")
    other = {row["representation"]: row["paper test"] for row in report.contexts(scores_of(6)).rows}
    assert [name for name, value in other.items() if value] == ["P-BERT"], "another model's layers are not the paper's"
    (table,) = report.types(scores_of(12))
    averaged = {row["representation"]: row["paper dev"] for row in table.rows}
    assert (averaged["AVG, layer 0"], averaged["AVG, layer 1"], averaged["AVG, layer 12"]) == ("", "0.746", "0.809")
    last = report.finetuned(scores_of(12)).rows[-1]
    assert (last["paper"], last["paper pos (a)"], last["paper pos (b)"]) == ("0.835", "0.072", "0.735")
    assert "paper" not in report.finetuned(scores_of(6)).rows[-1]
    (by_class,) = report.class_counts(scores_of(12)).rows
    assert (by_class["dev pairs"], by_class["dev contexts"], by_class["paper train pairs"]) == (2, 3, 13_474)
    assert (by_class["paper dev pairs"], by_class["paper test contexts"]) == (3_408, 776_848)
    assert report.counts(scores_of(12)).rows[1]["paper pairs"] == 15_437
    assert rows["BERT, layer 12"]["test less paper"] == "-0.711"
    changes = [
        (row["ours"], row["change"], row["paper"], row["paper change"]) for row in report.after_pos(scores_of(6)).rows
    ]
    assert changes == [
        ("0.060", "", "0.835", ""),
        ("0.015", "-0.045", "0.072", "-0.763"),
        ("0.015", "-0.045", "0.735", "-0.100"),
    ]


def test_the_figures_of_the_paper() -> None:
    assert len(published.CONTEXTUAL["test"]) == len(published.AVERAGED["test"]) == published.N_LAYERS
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
    titles = [name.split(".")[0] for name in json.loads(ran.stdout) if not name.startswith("Examples")]
    assert titles == [
        *("Table 1", "Table 2", "Table 8", "Table 9", "Table 5", "Table 6"),
        "Control task: random classes for each word (test)",
        "Section 4",
        "F1 by the number of subwords of the word (test)",
        *("Figure 5", "Section 4"),
    ]

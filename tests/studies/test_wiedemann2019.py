"""The study of Wiedemann et al. 2019 in small: its scores are those of loops over the nearest train occurrences."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest

import embstore as es
import embstore_studies as studies
from embstore.errors import InputError
from embstore_studies import StudyResult, Wiedemann2019
from embstore_studies.wiedemann2019.report import Scores
from embstore_studies.wiedemann2019.senses import read_senses
from tests.studies.sections import rows_of

SETTINGS = Wiedemann2019(n_sentences=60, test_share=0.3, ks=(1, 3), last=2, resamples=50)
CONTEXTS = {"noun.artifact": ("warm", "mat"), "noun.object": ("sea", "hill"), "noun.group": ("money", "people")}


def corpus_lines() -> list[str]:
    """Three words of two senses, one of one, and words that occur once."""
    draws = np.random.default_rng(0)
    lines = []
    for number in range(80):
        word = ("bank", "bank", "cat", "river")[number % 4]
        senses = list(CONTEXTS) if word != "river" else ["noun.object"]
        sense = senses[int(draws.integers(len(senses)))]
        around = " ".join(draws.choice(CONTEXTS[sense], 2))
        once = f"@once{number}@-noun.act" if number % 9 == 0 else "the"
        lines.append(f"{around} @{word}@-{sense} sat {once} {' '.join(draws.choice(['the', 'because', 'need'], 3))}")
    return list(dict.fromkeys(lines))


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("semcor") / "corpus.txt"
    path.write_text("\n".join(corpus_lines()) + "\nno target here\n")
    return path


@pytest.fixture(scope="module")
def study(data: Path, model: Path, tmp_path_factory: pytest.TempPathFactory) -> StudyResult:
    return studies.reproduce(
        SETTINGS, data, model={"tiny": model}, out=tmp_path_factory.mktemp("study"), progress=False
    )


def by_hand(store: es.Store, layers: tuple[int, ...], k: int) -> dict[str, tuple[int, float]]:
    """The test occurrences and the accuracy of each word of two train senses, without votes shared by equal vectors."""
    table = store.table().with_columns(pl.col("target", "sense", "split").cast(pl.String))
    vectors = np.mean([store.select(layers=layer).vectors(dtype="float64")[0] for layer in layers], axis=0)
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    found = {}
    for word in sorted(set(table["target"])):
        rows = {
            split: np.flatnonzero((table["target"] == word) & (table["split"] == split)) for split in ("train", "test")
        }
        senses = table["sense"].to_list()
        counts = Counter(senses[row] for row in rows["train"])
        if len(counts) < 2 or not len(rows["test"]):
            continue
        right = 0
        for row in rows["test"]:
            n_votes = min(k, min(counts.values()))
            near = sorted(rows["train"], key=lambda other, row=row: -float(unit[row] @ unit[other]))[:n_votes]
            votes = Counter(senses[other] for other in near)  # the first of equally frequent ones is the nearest
            right += max(votes, key=lambda name: votes[name]) == senses[row]
        found[word] = len(rows["test"]), right / len(rows["test"])
    return found


@pytest.mark.parametrize("k", [1, 3])
@pytest.mark.quick(1)
def test_scores_are_those_of_the_nearest_train_occurrences(k: int, study: StudyResult) -> None:
    (path,) = (study.folder / "stores").iterdir()
    store = es.open(path)
    for layer in (*store.layers[1:], None):  # vectors of layer 0 are equal
        layers = store.layers[-2:] if layer is None else (layer,)
        chosen = pl.col("layer").eq_missing(pl.lit(layer, pl.Int64))
        frame = study.frames["words"].filter(chosen, k=k)
        wanted = by_hand(store, layers, k)
        assert {row["word"]: (row["count"], pytest.approx(row["accuracy"])) for row in frame.to_dicts()} == wanted
        (row,) = study.frames["layers"].filter(chosen, k=k).to_dicts()
        total = sum(count for count, _ in wanted.values())
        assert row["accuracy"] == pytest.approx(sum(count * value for count, value in wanted.values()) / total)
        assert row["f1"] == pytest.approx(frame["f1"].mean())
        assert row["accuracy_low"] <= row["accuracy"] <= row["accuracy_high"]


def test_words_of_one_sense_and_unseen_words_are_counted_apart(study: StudyResult, data: Path) -> None:
    table = read_senses(data, n_sentences=60, test_share=0.3, seed=0).table
    train, test = (table.filter(split=split).to_dicts() for split in ("train", "test"))
    assert 0 < len(test) < len(train)
    known = {
        word: {row["sense"] for row in train if row["target"] == word} for word in {row["target"] for row in train}
    }
    best = Counter(row["sense"] for row in train).most_common(1)[0][0]
    rows = {row["train"]: row for row in rows_of(study, "What is ambiguous")}
    one = [row for row in test if len(known.get(row["target"], ())) == 1]
    unseen = [row for row in test if row["target"] not in known]
    assert one
    assert unseen
    assert rows["one sense"]["occurrences"] == len(one)
    assert rows["one sense"]["accuracy"] == f"{np.mean([row['sense'] in known[row['target']] for row in one]):.3f}"
    assert rows["no example (back-off)"]["occurrences"] == len(unseen)
    assert rows["no example (back-off)"]["accuracy"] == f"{np.mean([row['sense'] == best for row in unseen]):.3f}"
    assert rows["all"]["occurrences"] == len(test)
    parts = [rows[name] for name in ("two senses or more", "one sense", "no example (back-off)")]
    whole = sum(row["occurrences"] * float(row["accuracy"]) for row in parts) / len(test)
    assert float(rows["all"]["accuracy"]) == pytest.approx(whole, abs=2e-3)


def test_intervals_are_over_words() -> None:
    """Words of accuracy 0 and 1: resampled words give both; one word gives no interval."""
    words = {"word": ["a", "b"], "count": [3, 1], "accuracy": [1.0, 0.0], "f1": [1.0, 0.0]}
    frame = pl.DataFrame(words).with_columns(baseline=0.5, chance=0.5, n_labels=2, model=pl.lit("m"), k=1)
    frame = frame.with_columns(layer=pl.lit(0, pl.Int64))
    empty = pl.DataFrame(schema={"split": pl.String, "target": pl.String, "sense": pl.String})
    (row,) = Scores(Wiedemann2019(), empty, frame).by_layer.to_dicts()
    assert (row["accuracy"], row["accuracy_low"], row["accuracy_high"]) == (0.75, 0, 1)
    assert (row["f1"], row["gain"], row["baseline_low"]) == (0.5, 0.25, 0.5)
    (row,) = Scores(Wiedemann2019(), empty, frame.head(1)).by_layer.to_dicts()
    assert (row["accuracy"], row["accuracy_low"]) == (1, None)


def test_senses_are_said_to_be_classes_and_the_published_scores_are_shown(study: StudyResult) -> None:
    text = study.report.read_text()
    assert "The senses are 4 lexicographer classes of WordNet" in text
    assert {"data": "SensEval-3 lexical sample", "system": "kNN-BERT", "F1": "0.8012"} in rows_of(study, "Published")
    assert set(study.figures) == {"layers.png"}
    assert (study.folder / "figures" / "layers.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_the_order_of_the_corpus_does_not_matter_and_the_study_resumes(
    study: StudyResult, data: Path, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import embstore_studies.wiedemann2019.study as running

    other = tmp_path / "reversed.txt"
    other.write_text("\n".join(reversed(data.read_text().splitlines())))
    found = studies.reproduce(SETTINGS, other, model={"tiny": model}, out=tmp_path / "out", progress=False)
    assert found.frames["layers"].equals(study.frames["layers"])
    monkeypatch.setattr(running, "knn_labels", None)
    again = studies.reproduce(SETTINGS, data, model={"tiny": model}, out=study.folder, progress=False)
    assert again.frames["words"].equals(study.frames["words"])


def coarse(folder: Path) -> Path:
    """Two words in the form of CoarseWSD-20."""
    for word in ("bank", "cat"):
        (folder / word).mkdir(parents=True)
        (folder / word / "classes_map.txt").write_text(f'{{"0": "{word}_a", "1": "{word}_b"}}')
        for split, count in (("train", 8), ("test", 4)):
            lines = [f"{1 + number % 2}\tthe {word} {word} sat because{number % 3} warm" for number in range(count)]
            (folder / word / f"{split}.data.txt").write_text("\n".join(lines) + "\n")
            (folder / word / f"{split}.gold.txt").write_text("\n".join(str(number % 2) for number in range(count)))
    return folder


def test_coarse_wsd_has_its_own_split_and_names(tmp_path: Path) -> None:
    senses = read_senses(coarse(tmp_path / "data"), n_sentences=None, test_share=0.5, seed=0)
    assert senses.table.group_by("split", "target", "sense").len().sort("split", "target", "sense").rows() == [
        (split, word, f"{word}_{name}", count)
        for split, count in (("test", 2), ("train", 4))
        for word in ("bank", "cat")
        for name in "ab"
    ]
    first = senses.sentences[1]
    assert (first.words[2], first.labels["sense"][2]) == ("bank", "bank_b")
    assert first.labels["sense"].count(None) == len(first.words) - 1


@pytest.mark.slow
def test_coarse_wsd_runs(tmp_path: Path, model: Path) -> None:
    coarse(tmp_path / "data")
    settings = replace(SETTINGS, ks=(1,), resamples=5)
    study = studies.reproduce(settings, tmp_path / "data", model={"tiny": model}, out=tmp_path / "out", progress=False)
    assert set(study.frames["words"]["word"]) == {"bank", "cat"}
    assert "lexicographer" not in study.report.read_text()


@pytest.mark.parametrize(
    ("case", "said"),
    [
        ("missing", "no corpus at"),
        ("empty folder", "has no folder of a word"),
        ("no classes", "has no word with a sense"),
        ("one sentence", "part of"),
        ("other words", "no test word of"),
        ("one sense", "has two senses in train"),
        ("k", "ks: 99 is more than the"),
        ("gold", "8 lines of train.data.txt and 7 of train.gold.txt"),
        ("position", "train.data.txt:1: '99"),
        ("map", "is not a JSON object"),
        ("no model", "none"),
    ],
)
def test_bad_input_is_refused_before_the_extraction(case: str, said: str, data: Path, tmp_path: Path) -> None:
    texts = {
        "no classes": "a plain line\n",
        "one sentence": "the @bank@-noun.group sat\n",
        "other words": "\n".join(f"a{number} @w{number}@-noun.act" for number in range(30)),
        "one sense": "\n".join(f"a{number} @bank@-noun.act" for number in range(30)),
    }
    path, settings = data, SETTINGS
    if case in texts:
        path = tmp_path / "corpus.txt"
        path.write_text(texts[case])
    elif case == "missing":
        path = tmp_path / "nowhere.txt"
    elif case == "empty folder":
        path = tmp_path
    elif case == "k":
        settings = replace(SETTINGS, ks=(1, 99))
    elif case in ("gold", "position", "map"):
        path = coarse(tmp_path / "data")
        name, text = {
            "gold": ("train.gold.txt", "0\n" * 7),
            "position": ("train.data.txt", "99\tthe bank\n" * 8),
            "map": ("classes_map.txt", "[1]"),
        }[case]
        (path / "bank" / name).write_text(text)
    with pytest.raises(InputError) as refused:
        studies.reproduce(settings, path, model={"tiny": "./none"}, out=tmp_path / "out")
    assert said in str(refused.value)
    assert not (tmp_path / "out").exists()

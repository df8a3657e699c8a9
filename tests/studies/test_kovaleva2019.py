"""The study of Kovaleva et al. 2019 in small: its tables are those of the functions that it calls."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

import embstore as es
import embstore_studies as studies
from embstore.errors import EmbstoreError
from embstore_studies import Kovaleva2019, StudyResult
from embstore_studies.finetuning.finetune import FineTuned
from embstore_studies.heads.measure import disable_heads, head_importance, prune_heads
from embstore_studies.kovaleva2019.study import unlearned
from tests.models import tiny
from tests.studies.finetuning import planted

SMALL: dict[str, Any] = {"n_sentences": 8, "resamples": 50, "seeds": (1,), "tuning_rate": 4e-3}


def treebank(path: Path, count: int, *, seed: int) -> Path:
    """Random trees over the words of the planted tasks, with their tags as upos."""
    draws, text = np.random.default_rng(seed), ""
    for words in planted.words(count, seed=seed):
        for place, word in enumerate(words):
            head = 0 if place == 0 else int(draws.integers(1, place + 1))
            tag = "NOUN" if word in planted.ANIMATE else "ADJ"
            text += f"{place + 1}\t{word}\t_\t{tag}\t_\t_\t{head}\t{'root' if head == 0 else 'nsubj'}\t_\t_\n"
        text += "\n"
    path.write_text(text)
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("kovaleva")
    planted.model(made / "model")
    (made / "pos").mkdir()
    for seed, split in enumerate(("train", "dev")):
        treebank(made / "pos" / f"{split}.conllu", 20, seed=seed)
    planted.folder(made / "pairs", "paraphrase", train=20, dev=10)
    return made


def settings_of(folder: Path) -> Kovaleva2019:
    return Kovaleva2019(tuning={"pos": folder / "pos", "paraphrase": folder / "pairs"}, **SMALL)


@pytest.fixture(scope="module")
def study(folder: Path) -> StudyResult:
    corpus = folder / "pos" / "dev.conllu"
    return studies.reproduce(settings_of(folder), corpus, model=folder / "model", out=folder / "out", progress=False)


def rows_of(study: StudyResult, title: str) -> list[dict[str, Any]]:
    (found,) = (section for section in study.sections if section.title == title)
    return [dict(row) for row in found.rows]


@pytest.mark.slow
def test_tables_are_those_of_the_functions(study: StudyResult, folder: Path) -> None:
    dev, model = folder / "pos" / "dev.conllu", folder / "out" / "models" / "pos"
    options = {"model": model, "n_sentences": 8, "resamples": 50}
    disabled = disable_heads(dev, **options)
    assert study.frames["disabled"].filter(task="pos").drop("task").equals(disabled)
    importance = head_importance(folder / "pos" / "train.conllu", **options)
    assert study.frames["importance"].filter(task="pos").drop("task").equals(importance)
    pruned = prune_heads(dev, importance=importance, seeds=[1], **options)
    assert study.frames["pruned"].filter(task="pos").drop("task").equals(pruned)
    layer = disabled.filter(pl.col("head").is_null(), layer=2).row(0, named=True)
    row = rows_of(study, "Disabled layers: pos")[2]
    assert (row["without"], row["change"]) == ("the heads of layer 2", f"{layer['effect']:+.4f}")
    assert (row["accuracy"], row["clear"]) == (f"{layer['value']:.3f}", "yes" if layer["clear"] else "no")
    heads = [float(row["change"]) for row in rows_of(study, "Disabled heads: pos")]
    single = disabled.filter(pl.col("head").is_not_null())["effect"]
    assert (min(heads), max(heads)) == (round(single.min(), 4), round(single.max(), 4))
    last = [row for row in rows_of(study, "Pruning") if row["task"] == "paraphrase"][-1]
    frame = study.frames["pruned"].filter(task="paraphrase", share=1.0)
    assert last["pruned"] == "12 (100%)"
    assert last["by importance"] == f"{frame['value'][0]:.3f}"
    assert last["random orders"] == f"{frame['value'][0]:.3f} to {frame['value'][0]:.3f}"


@pytest.mark.slow
def test_attention_is_that_of_the_corpus_and_of_dev(study: StudyResult, folder: Path) -> None:
    dev, tuned = folder / "pos" / "dev.conllu", folder / "out" / "models" / "pos"
    for name, model in (("pretrained", folder / "model"), ("pos", tuned)):
        frame = es.attention(dev, model=model, statistics=["patterns"], n_sentences=8).frame
        rows = [row for row in rows_of(study, "Patterns of attention maps") if row["model"] == name]
        assert [row["layer"] for row in rows] == ["all", "1", "2", "3"]
        for row in rows:
            part = frame.filter(pl.col("layer").is_not_null(), item="heterogeneous")
            part = part if row["layer"] == "all" else part.filter(layer=int(row["layer"]))
            assert row["heterogeneous"] == f"{np.mean(part['value'].to_list()):.3f}"
    similarity = es.analysis.attention_similarity(dev, model_a=folder / "model", model_b=tuned, n_sentences=8)
    assert study.frames["similarity"].filter(task="pos")["value"].to_list() == pytest.approx(
        similarity["value"].to_list()
    )
    row = rows_of(study, "Attention before and after fine-tuning")[0]
    assert row["layer 3"] == f"{np.mean(similarity.filter(layer=3)['value'].to_list()):.3f}"
    relations = rows_of(study, "Attention to syntactic relations")
    assert [row["relation"] for row in relations] == ["all", "nsubj"]
    assert float(relations[0]["attends most to the head"]) > 0


@pytest.mark.slow
def test_figures_are_drawn_and_the_same_call_resumes(
    study: StudyResult, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import embstore_studies.kovaleva2019.study as running

    assert set(study.figures) == {"patterns-pretrained.png"} | {
        f"{name}-{task}.png" for name in ("patterns", "similarity", "heads") for task in ("pos", "paraphrase")
    }
    for name in study.figures:
        assert (study.folder / "figures" / name).read_bytes().startswith(b"\x89PNG")
    for name in ("attention", "attention_similarity", "disable_heads", "head_importance", "prune_heads"):
        monkeypatch.setattr(running, name, lambda *_, **__: pytest.fail("measured again"))
    corpus = folder / "pos" / "dev.conllu"
    again = studies.reproduce(settings_of(folder), corpus, model=folder / "model", out=folder / "out", progress=False)
    assert [section.rows for section in again.sections] == [section.rows for section in study.sections]


@pytest.mark.parametrize(("accuracy", "count"), [(0.5, 1), (0.51, 0)])
def test_a_model_that_has_learned_nothing_is_named(accuracy: float, count: int, folder: Path) -> None:
    """Half of the pairs have each label."""
    tuned = FineTuned(folder, {"epochs": [{"dev": {"accuracy": accuracy}}, {"dev": {"accuracy": 0.1}}]})
    found = unlearned({"paraphrase": {"dev": folder / "pairs" / "dev.tsv"}}, {"paraphrase": tuned})
    assert len(found) == count
    assert not count or "paraphrase: the accuracy on dev, 0.500, is not above" in found[0]


@pytest.mark.parametrize(
    ("case", "says"),
    [
        ("corpus", "no corpus at"),
        ("trees", "needs a file in CoNLL-U"),
        ("data", "no data at"),
        ("labels", "fields instead of 3"),
        ("model", "none"),
        ("heads", "the heads of 'deberta' cannot be disabled"),
    ],
)
def test_bad_input_is_refused_before_anything_is_computed(case: str, says: str, folder: Path, tmp_path: Path) -> None:
    corpus: Path = folder / "pos" / "dev.conllu"
    tuning, model = {"pos": folder / "pos"}, folder / "model"
    if case == "corpus":
        corpus = tmp_path / "gone.conllu"
    if case == "trees":
        corpus = folder / "pairs" / "dev.tsv"
    if case == "data":
        tuning = {"pos": tmp_path / "gone"}
    if case == "labels":
        tuning = {"paraphrase": folder / "pos"}
    if case == "model":
        model = tmp_path / "none"
    if case == "heads":
        model = tiny.save("deberta_v2", tmp_path / "deberta")
    with pytest.raises(EmbstoreError) as refused:
        studies.reproduce(Kovaleva2019(tuning=tuning), corpus, model=model, out=tmp_path / "out")
    assert says in str(refused.value)
    assert not (tmp_path / "out").exists()

"""Each study in small: it runs from extraction to report, a number of it is computed again, and it resumes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import polars as pl
import pytest
import torch
import transformers
from scipy.stats import spearmanr

import embstore as es
import embstore_studies as studies
from embstore.corpus import EdgeSentence, EdgeTarget
from embstore.errors import CorpusError, EmbstoreError, InvalidValueError
from embstore.probes import summary
from embstore_studies.heads import HeadNetwork, score
from embstore_studies.peters2018 import _unit, find_pronouns
from tests.models import tiny
from tests.probes.edge_store import write_edges
from tests.studies import planted

WORDS = ("the", "cat", "sat", "mat", "because", "warm", "river", "hill", "money", "people", "need", "sea", "bank")
TAGS = ("NOUN", "VERB", "ADJ")


def run(settings: Any, data: Path, model: Path, out: Path) -> studies.StudyResult:
    """Run a study twice: the second call makes no table again."""
    made = studies.reproduce(settings, data, model={"tiny": model}, out=out)
    tables = {path: path.stat().st_mtime_ns for path in (out / "tables").glob("*.parquet")}
    with patch("matplotlib.figure.Figure.savefig", lambda figure, path, **options: path.write_bytes(b"\x89PNG")):
        again = studies.reproduce(settings, data, model={"tiny": model}, out=out)
    assert {path: path.stat().st_mtime_ns for path in (out / "tables").glob("*.parquet")} == tables
    assert all(again.frames[name].equals(frame) for name, frame in made.frames.items())
    assert again.notes == made.notes
    assert made.report.read_text().count("\n## ") >= len(made.sections)
    assert all((out / "figures" / name).read_bytes().startswith(b"\x89PNG") for name in made.figures)
    return made


@pytest.fixture(scope="module")
def treebank(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Random trees over a few words; a word has one tag."""
    folder = tmp_path_factory.mktemp("treebank")
    draws = np.random.default_rng(0)
    for split, count in (("train", 30), ("dev", 10), ("test", 10)):
        text = ""
        for number in range(count):
            words = [*draws.choice(WORDS, 9).tolist(), f"{split}{number}"]
            for place, word in enumerate(words):
                head = 0 if place == 0 else int(draws.integers(1, place + 1))
                relation = "root" if head == 0 else "dep"
                text += f"{place + 1}\t{word}\t_\t{TAGS[len(word) % 3]}\t_\t_\t{head}\t{relation}\t_\t_\n"
            text += "\n"
        (folder / f"some-{split}.conllu").write_text(text)
    return folder


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A task over single words, and coreference of two mentions and a pronoun."""
    folder = tmp_path_factory.mktemp("tasks")
    draws = np.random.default_rng(1)
    for split, count in (("train", 30), ("dev", 12)):
        edges, records = [], []
        for number in range(count):
            words = [*draws.choice(WORDS, 6).tolist(), f"s{split}{number}"]
            edges.append(EdgeSentence(words, [EdgeTarget((p, p + 1), None, (w[0],)) for p, w in enumerate(words)]))
            one, other = draws.choice(("cat", "river", "hill", "people"), 2)
            pronoun = ("it", "they")[number % 2]
            words = ["the", one, "sat", "because", "the", other, "need", pronoun, f"w{split}{number}"]
            pairs = [([0, 2], number % 3 != 0), ([4, 6], number % 3 == 0)]
            targets = [{"span1": span, "span2": [7, 8], "label": str(int(same))} for span, same in pairs]
            info = {"document": f"document {number % 5}"}
            records.append(json.dumps({"text": " ".join(words), "targets": targets, "info": info}))
        (folder / "pos").mkdir(exist_ok=True)
        (folder / "coreference").mkdir(exist_ok=True)
        write_edges(folder / "pos" / f"{split}.jsonl", edges)
        (folder / "coreference" / f"{split}.jsonl").write_text("\n".join(records) + "\n")
    return folder


def test_peters(tasks: Path, model: Path, tmp_path: Path) -> None:
    study = run(studies.Peters2018(n_sentences=20, resamples=50), tasks, model, tmp_path / "out")
    store = es.open(next((tmp_path / "out" / "stores").iterdir()))
    sentences = {" ".join(s.words): s for s in es.corpus.read_edges(tasks / "coreference" / "train.jsonl")}
    row = study.frames["pronouns"].filter(layer=3, centered=False).row(0, named=True)
    text = sorted(store.index.text)[row["sentence"]]
    if text in sentences:
        (pronoun,) = find_pronouns([sentences[text]])
        first = int(store.index.indptr[list(store.index.text).index(text)])
        vectors = store.select(rows=range(first, first + 9), layers=3).vectors(dtype="float64")
        unit = _unit(np.stack([vectors[slice(*s)].mean(0) for s in (pronoun.span, *pronoun.candidates)]))
        assert row["value"] == float(pronoun.right[int((unit[1:] @ unit[0]).argmax())])


def test_tenney_and_liu(tasks: Path, model: Path, tmp_path: Path) -> None:
    common: dict[str, Any] = {"tasks": ("pos",), "n_sentences": 10, "epochs": 1, "resamples": 20, "batch_size": 8}
    tenney = studies.Tenney2019(**common, seeds=(0, 1), hidden_size=8, layers="0,2,3")
    study = run(tenney, tasks, model, tmp_path / "tenney")
    means = summary(study.frames["scores"].filter(encoder="trained").drop("model", "encoder"))
    weights = means.filter(metric="mixing")
    assert weights["layer"].to_list() == [0, 2, 3]
    assert "layers 0, 2, 3 in" in study.methods
    gravity = float((weights["layer"] * weights["value"]).sum())
    (row,) = study.sections[0].rows
    assert row["center of gravity"].startswith(f"{gravity:.2f}")
    assert row["P(0), paper"] == "0.890 (which model is not said)"
    study = run(studies.Liu2019(**common, seeds=(0, 1)), tasks, model, tmp_path / "liu")
    means = summary(study.frames["scores"].filter(encoder="trained").drop("model", "encoder"))
    value = means.filter(metric="layer_f1", split="dev", layer=2)["value"].item()
    assert study.sections[0].rows[0]["2"] == f"{value:.3f}"


@pytest.mark.slow
def test_hewitt(treebank: Path, model: Path, tmp_path: Path) -> None:
    settings = studies.Hewitt2019(n_sentences=10, ranks=(2, 64), tasks=(), epochs=2)
    assert settings.probe().training.epochs == 2
    study = run(settings, treebank, model, tmp_path / "out")
    frame = study.frames["structure"].filter(
        split="test", metric="uuas", layer=0, baseline=False, encoder="trained", rank=32
    )
    assert study.sections[0].rows[1]["UUAS"] == f"{frame['value'].mean():.3f}"
    assert study.notes == ("tiny: rank 64 is left out, as its vectors have 32 numbers.",)
    with pytest.raises(InvalidValueError, match="unknown task"):
        studies.Hewitt2019(tasks=("ner",))


def test_clark(treebank: Path, model: Path, tmp_path: Path) -> None:
    study = run(studies.Clark2019(), treebank, model, tmp_path / "out")
    frame = study.frames["attention"].filter(metric="share", item="cls", layer=1)
    assert study.sections[0].rows[0]["cls"] == f"{frame['value'].mean():.3f}"


def test_wiedemann(model: Path, tmp_path: Path) -> None:
    """The score of k = 1 is that of the nearest train occurrence."""
    draws = np.random.default_rng(0)
    senses = {"noun.artifact": ("warm", "mat"), "noun.object": ("sea", "hill")}
    lines = []
    for number in range(60):
        sense = list(senses)[int(draws.integers(2))]
        around, rest = " ".join(draws.choice(senses[sense], 2)), " ".join(draws.choice(["the", "because", "need"], 3))
        lines.append(f"{around} @{('bank', 'cat')[number % 2]}@-{sense} sat {rest}")
    (tmp_path / "corpus.txt").write_text("\n".join(dict.fromkeys(lines)) + "\n")
    settings = studies.Wiedemann2019(ks=(1, 3, 90), resamples=50)
    study = run(settings, tmp_path / "corpus.txt", model, tmp_path / "out")
    assert study.frames["words"]["k"].unique().sort().to_list() == [1, 3]
    assert "k = 90 is left out: no ambiguous word has as many train examples." in study.notes
    with pytest.raises(InvalidValueError, match="ks: 80 is more than the"):
        studies.reproduce(studies.Wiedemann2019(ks=(80, 90)), tmp_path / "corpus.txt", model=model, out=tmp_path / "no")
    store = es.open(next((tmp_path / "out" / "stores").iterdir()))
    table = store.table().with_columns(pl.col("target", "sense", "split").cast(pl.String))
    unit = _unit(store.select(layers=3).vectors(dtype="float64"))
    for word in ("bank", "cat"):
        train, test = (np.flatnonzero((table["target"] == word) & (table["split"] == s)) for s in ("train", "test"))
        nearest = train[(unit[test] @ unit[train].T).argmax(1)]
        right = np.mean([table["sense"][int(a)] == table["sense"][int(b)] for a, b in zip(test, nearest, strict=True)])
        row = study.frames["words"].filter(word=word, layer=3, k=1)
        assert (row["count"].item(), row["accuracy"].item()) == (len(test), pytest.approx(right))


def test_ethayarajh(tmp_path: Path) -> None:
    """A decoder is measured with its attention sinks and without."""
    draws, model = np.random.default_rng(0), tiny.save("gpt2", tmp_path / "tiny")
    network: Any = transformers.AutoModel.from_pretrained(model)
    network.wpe.weight.data[0, 7] = 300.0
    network.save_pretrained(model)
    text = "".join(" ".join(draws.choice(WORDS, draws.integers(4, 9))) + "\n" for _ in range(60))
    (tmp_path / "text.txt").write_text(text)
    (tmp_path / "similarity").mkdir()
    pairs = [(one, other) for one in WORDS for other in WORDS if one < other]
    lines = [f"{one}\t{other}\t{draws.integers(10)}\n" for one, other in pairs]
    (tmp_path / "similarity" / "SimLex.tsv").write_text("".join(lines))
    settings = studies.Ethayarajh2019(benchmarks=tmp_path / "similarity", layers="1,2,3", resamples=50)
    study = run(settings, tmp_path / "text.txt", model, tmp_path / "out")
    store = es.open(tmp_path / "out" / "stores" / "tiny.zarr")
    assert store.layers == (1, 2, 3)
    for name, sinks in {"tiny": True, "tiny-no-sinks": False}.items():
        vectors: Any = es.static_vectors(store.select(sinks=sinks), layers=1, min_contexts=5)
        unit = _unit(vectors.vectors.astype(np.float64))
        cosines = [float(unit[vectors.row_of(a)] @ unit[vectors.row_of(b)]) for a, b in pairs]
        rho = spearmanr(cosines, [float(line.split("\t")[2]) for line in lines]).statistic
        found = study.frames["evaluation"].filter(system=f"{name}, layer 1")["value"].item()
        assert found == pytest.approx(rho), name


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"word1\tword2\trating\n", "no pair"), (b"cat\tmat\tnan\n", "not finite"),
        (b"cat\tmat\t1\nsea\thill\n", "sea"), (b"caf\xe9\tmat\t1\n", "cannot be read"), (None, "has no benchmark"),
    ],
)  # fmt: skip
def test_benchmarks_that_cannot_be_used_are_refused(data: bytes | None, says: str, model: Path, tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("the cat sat\n")
    if data is not None:
        (tmp_path / "pairs.tsv").write_bytes(data)
    folder = tmp_path if data is not None else tmp_path / "gone"
    with pytest.raises(CorpusError, match=says):
        studies.reproduce(
            studies.Ethayarajh2019(benchmarks=folder), tmp_path / "text.txt", model=model, out=tmp_path / "out"
        )
    assert not (tmp_path / "out").exists()


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tuned")
    planted.model(folder / "model")
    planted.folder(folder / "ner", "ner")
    settings = studies.FineTuneSettings(epochs=3, batch_size=10, learning_rate=4e-3)
    made = studies.finetune(folder / "ner", task="ner", model=folder / "model", out=folder / "out", settings=settings)
    assert made.frame.filter("best", metric="f1")["value"].item() > 0.9, "the planted rule is learned"
    again = studies.finetune(folder / "ner", task="ner", model=folder / "model", out=folder / "out", settings=settings)
    assert again.record == made.record
    with pytest.raises(InvalidValueError, match="other data or settings"):
        studies.finetune(folder / "ner", task="ner", model=folder / "model", out=folder / "out")
    return folder


def test_disabled_heads(tuned: Path) -> None:
    """A head whose queries are zero attends to all subwords alike."""
    dev = tuned / "ner" / "dev.conll"
    network = HeadNetwork(tuned / "out", dev, n_sentences=None, seed=0)
    whole, without = network.counts([(), [(1, 2)]])
    query = network.network.base_model.encoder.layer[0].attention.self.query
    size = query.weight.shape[0] // network.network.config.num_attention_heads
    with torch.no_grad():
        query.weight[2 * size : 3 * size] = 0
        query.bias[2 * size : 3 * size] = 0
    assert (network.counts([()])[0] == without).all()
    frame = studies.disable_heads(dev, model=tuned / "out")
    row = frame.filter(layer=1, head=2).row(0, named=True)
    assert row["effect"] == score(without.sum(0)) - score(whole.sum(0))
    assert row["value"] == score(without.sum(0))
    assert row["low"] < row["effect"] < row["high"]


@pytest.mark.slow
def test_kovaleva(treebank: Path, tmp_path: Path) -> None:
    """The effects of disabled heads are those of the fine-tuned model; the table shows the attention of the model."""
    planted.model(tmp_path / "model")
    planted.folder(tmp_path / "ner", "ner", train=20, dev=10)
    settings = studies.Kovaleva2019(tuning={"ner": tmp_path / "ner"}, n_sentences=8, tuning_rate=4e-3)
    dev = treebank / "some-dev.conllu"
    study = run(settings, dev, tmp_path / "model", tmp_path / "out")
    tuned = tmp_path / "out" / "models" / "ner"
    disabled = studies.disable_heads(tmp_path / "ner" / "dev.conll", model=tuned, n_sentences=8)
    assert study.frames["disabled"].drop("task").equals(disabled)
    layer = disabled.filter(pl.col("head").is_null(), layer=2).row(0, named=True)
    (section,) = (each for each in study.sections if each.title == "Disabled layers: ner")
    assert section.rows[2]["change"] == f"{layer['effect']:+.4f}"
    patterns = es.attention(dev, model=tmp_path / "model", statistics=["patterns"], n_sentences=8).frame
    values = patterns.filter(pl.col("layer").is_not_null(), item="heterogeneous")["value"]
    assert study.sections[0].rows[0]["heterogeneous"] == f"{values.mean():.3f}"


@pytest.mark.slow
def test_zhao(model: Path, tmp_path: Path) -> None:
    """The scores of the layers are those of class probes on the store of the study; a tuned model is probed too."""
    frames = {"animal": "the {} sat on a mat because it was warm .", "place": "a b {} flow to the old hill , ok !"}
    lines: list[str] = []
    lists: dict[str, list[str]] = {"train": [], "test": []}
    for number, word in enumerate([name + end for end in ("", "s") for name in WORDS]):
        sense = ("animal", "place")[number % 2]
        lines += [frames[sense].format(f"@{word}@-{sense}")] * (1 + number % 4)
        lists["test" if number % 3 == 0 else "train"].append(f"@{word}@\t-{sense}=2")
    (tmp_path / "corpus.txt").write_text("\n".join(lines) + "\n")
    for name, rows in lists.items():
        (tmp_path / f"{name}.tsv").write_text("\n".join(rows) + "\n")
    planted.folder(tmp_path / "pos", "pos", train=20, dev=10)
    settings = studies.Zhao2020.small(
        epochs=3, context_windows=(0, None), tuning={"pos": tmp_path / "pos"}, tuning_sentences=20, skipgram_size=12
    )
    study = run(settings, tmp_path / "corpus.txt", model, tmp_path / "out")
    train, test = (es.corpus.read_word_classes(tmp_path / f"{name}.tsv") for name in ("train", "test"))
    store = es.open(tmp_path / "out" / "stores" / "bert-full.zarr")
    probe = settings.probe().fit(store, es.probes.split_words(train, test, seed=0))
    scored = probe.score(splits=["dev", "test"], name="BERT").summary()
    value = scored.filter(metric="f1", split="test", layer=2)["value"].item()
    contexts = study.frames["contexts"].filter(store="BERT", task="class", metric="f1", split="test", layer=2)
    assert contexts["value"].item() == value
    (section,) = (each for each in study.sections if each.title.startswith("Table 6"))
    (row,) = (row for row in section.rows if row["representation"] == "BERT, layer 2")
    assert row["test"].startswith(f"{value:.3f}")
    assert set(study.frames["finetuned"]["setup"]) == {"a", "b"}


@pytest.mark.parametrize("study", list(studies.STUDIES))
def test_what_cannot_be_used_is_refused_before_anything_is_made(study: str, tmp_path: Path) -> None:
    with pytest.raises(EmbstoreError):
        studies.reproduce(study, tmp_path / "gone", model="./none", out=tmp_path / "out")
    assert not (tmp_path / "out").exists()

"""The examples run as written and print what is true."""

from __future__ import annotations

import json
import re
import runpy
import subprocess
import sys
from importlib.resources import files
from pathlib import Path

import h5py
import numpy as np
import pytest
from scipy.stats import skew, spearmanr

import embstore as es
from tests.analysis.word_store import write_senses

EXAMPLES = Path(__file__).parents[2] / "examples"
WORDS = {"DET": ["the", "a"], "NOUN": ["bank", "river", "cat"], "VERB": ["sat", "was"], "ADV": ["on", "because"]}
ORDER = ["DET", "NOUN", "VERB", "ADV", "DET", "NOUN"]


def test_there_is_a_test_for_every_example() -> None:
    tested = Path(__file__).read_text() + "ray_cluster.py is that of tests/cluster/test_ray.py"
    assert all(path.name in tested for path in EXAMPLES.glob("*.py"))


@pytest.fixture(scope="module")
def conllu(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rng = np.random.default_rng(0)
    path = tmp_path_factory.mktemp("corpora") / "made.conllu"
    with path.open("w") as file:
        for _ in range(60):
            for number, tag in enumerate(ORDER, 1):
                word = rng.choice(WORDS[tag])
                print(number, word, word, tag, "_", "_", 0, "root", "_", "_", sep="\t", file=file)
            print(file=file)
    return path


@pytest.fixture(scope="module", params=["zarr", "h5"])
def store(
    request: pytest.FixtureRequest, conllu: Path, tiny_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    path = tmp_path_factory.mktemp("stores") / f"made.{request.param}"
    es.extract(es.plan(conllu, model=tiny_model, options=es.ExtractionOptions(dtype="float32"), calibrate=False), path)
    return path


def test_extract_and_select(conllu: Path, tiny_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main = runpy.run_path(str(EXAMPLES / "extract_and_select.py"))["main"]
    printed = []
    for _ in range(2):  # the second run finds the store there
        main(str(conllu), str(tmp_path / "made.zarr"), str(tiny_model))
        printed.append(capsys.readouterr().out)
    store = es.open(tmp_path / "made.zarr")
    verb = re.search(r"'(\w+)': \d+ occurrences x 32 features in layers \[0, 3\]", printed[0])
    assert verb is not None
    counts = {word: len(store.select(words=word)) for word in WORDS["VERB"]}
    assert counts[verb[1]] == max(counts.values())
    vectors = store.select(words=verb[1], layers=3).vectors(dtype="float64")
    unit = vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)
    pairs = (unit @ unit.T)[~np.eye(len(unit), dtype=bool)]
    assert f"layer 3: self-similarity of '{verb[1]}' {pairs.mean():.3f}" in printed[0]
    norm = np.linalg.norm(store.select(layers=0).vectors(dtype="float64").mean(0))
    assert f"layer 0 has norm {norm:.3f}" in printed[0]


@pytest.mark.quick(1)
def test_train_with_torch(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main = runpy.run_path(str(EXAMPLES / "train_with_torch.py"))["main"]
    found = main(str(store), "upos", 0)
    assert found == main(str(store), "upos", 0), "seeded"
    assert found > 0.95, "a linear probe tells nine words apart by their embeddings"
    assert capsys.readouterr().out.startswith(f"layer 0: {found:.3f} of 72 held-out words right, of 4 labels")


@pytest.mark.slow
def test_train_with_torch_on_the_demo_s_senses(minilm: Path, tmp_path: Path) -> None:
    plan = es.plan(
        es.open_corpus(str(files("embstore_cli") / "demo_sentences.txt"), format="pse"), model=minilm, calibrate=False
    )
    es.extract(plan, tmp_path / "demo.zarr")
    main = runpy.run_path(str(EXAMPLES / "train_with_torch.py"))["main"]
    assert main(str(tmp_path / "demo.zarr"), "class") > 0.7


@pytest.mark.slow
def test_read_without_embstore(store: Path) -> None:
    code = (
        f"import runpy, sys; main = runpy.run_path({str(EXAMPLES / 'read_without_embstore.py')!r})['main']\n"
        f"vectors = main({str(store)!r}, 'bank')\n"
        "assert not any(name.startswith(('embstore', 'torch')) for name in sys.modules)\n"
        "import numpy; numpy.save(sys.argv[1], vectors)"
    )
    saved = store.with_name("vectors.npy")
    done = subprocess.run([sys.executable, "-c", code, saved], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    bank = es.open(store).select(words="bank")
    np.testing.assert_array_equal(np.load(saved), bank.vectors())
    assert f"'bank': {len(bank)} occurrences in layers [0, 1, 2, 3]" in done.stdout
    first = bank.table().row(0, named=True)
    assert f"row {first['occurrence']}: sentence {first['sentence']}, word {first['position']} of it" in done.stdout


def test_own_reducer(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(EXAMPLES / "own_reducer.py"))["main"](str(store))
    means = es.open(store).select(layers=2).vectors(dtype="float64").mean(0)
    farthest = np.argsort(-np.abs(means))[:3]
    printed = ", ".join(f"{place} ({means[place]:+.2f})" for place in farthest)
    assert f"layer 2: features with the largest mean: {printed}\n" in capsys.readouterr().out


def test_sparse_autoencoder(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main = runpy.run_path(str(EXAMPLES / "sparse_autoencoder.py"))["main"]
    explained, l0 = main(str(store), 0, 30)
    assert explained > 0.9, "nine vectors of layer 0, one a word"
    assert 0 < l0 <= 8
    assert main(str(store), 0, 1)[0] < explained
    assert capsys.readouterr().out.startswith(f"{explained:.1%} of the variance explained, {l0:.1f} of 128 features")


def test_train_skipgram(tmp_path: Path) -> None:
    (tmp_path / "corpus.pse").write_text("i like @new_york@-place and @rome@-place .\n" * 9 + "@rare_bird@-animal .\n")
    main = runpy.run_path(str(EXAMPLES / "train_skipgram.py"))["main"]
    for name in ("v.bin", "again.bin"):
        main(str(tmp_path / "corpus.pse"), str(tmp_path / name), 8)
    assert (tmp_path / "v.bin").read_bytes() == (tmp_path / "again.bin").read_bytes(), "seeded"
    assert set(es.vectors.read_vectors(tmp_path / "v.bin").words) == {"i", "like", "new_york", "and", "rome", "."}
    store = es.extract(
        es.plan(tmp_path / "corpus.pse", model=es.models.vector_encoder(tmp_path / "v.bin"), calibrate=False),
        tmp_path / "v.zarr",
    )
    assert "new york" in store.index.words


def test_semantic_change(tmp_path: Path, tiny_model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rng = np.random.default_rng(0)
    rows = [{"text": " ".join(rng.choice(list(WORDS["NOUN"]), 6)), "year": 1900 + n // 9} for n in range(180)]
    rows += [{"text": " ".join(["cat"] * 6), "year": 1919} for _ in range(20)]
    es.extract(es.plan(es.open_corpus(rows), model=tiny_model, calibrate=False), tmp_path / "years.zarr")
    (tmp_path / "gold.tsv").write_text("cat\t0.9\nbank\t0.2\nriver\t0.1\n")
    example = runpy.run_path(str(EXAMPLES / "semantic_change.py"))
    change = example["main"](str(tmp_path / "years.zarr"), "year", "10", str(tmp_path / "gold.tsv"))
    store = es.open(tmp_path / "years.zarr")
    sides = [store.select(where=f"year {sign} 1910") for sign in ("<", ">=")]
    assert change.drop("period").equals(es.analysis.measure_change(*sides, layers=-1))
    assert set(change["period"]) == {1910}
    degrees = {"cat": 0.9, "bank": 0.2, "river": 0.1}
    values = change.filter(metric="prt").select("word", "value").rows()
    expected = spearmanr([value for _, value in values], [degrees[word] for word, _ in values]).statistic
    assert f"prt: Spearman's correlation {expected:.3f} with 3 words" in capsys.readouterr().out


def test_sense_separability(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    listed = [(word, str(label), list(rng.normal(size=4))) for word in "ab" for label in rng.choice(["x", "y"], 15)]
    listed += [("equal", label, [1.0, 2.0, 0.0, 1.0]) for label in "xxyyy"] + [("one", "x", [1.0, 0, 0, 0])] * 3
    listed += [("a", None, [0.0, 1.0, 0.0, 0.0]), ("a", "once", [0.0, 0.0, 1.0, 0.0])]
    right, most = [], []
    for word in ("a", "b", "equal"):
        rows = [(label, np.array(vector)) for name, label, vector in listed if name == word and label in ("x", "y")]
        shares = []
        for place, (own, vector) in enumerate(rows):
            others = [(label, other / np.linalg.norm(other)) for at, (label, other) in enumerate(rows) if at != place]
            centroids = {name: np.mean([unit for label, unit in others if label == name], axis=0) for name in "xy"}
            score = {name: mean @ vector / np.linalg.norm(mean) for name, mean in centroids.items()}
            best = [name for name in "xy" if score[name] >= max(score.values()) - 1e-12]
            shares.append((own in best) / len(best))
        right.append(np.mean(shares))
        most.append(max(np.mean([label == name for label, _ in rows]) for name in "xy"))
    store = write_senses(tmp_path / "senses.zarr", [listed[place] for place in rng.permutation(len(listed))])
    found = runpy.run_path(str(EXAMPLES / "sense_separability.py"))["separability"](store, "class")
    assert found == {2: pytest.approx((np.mean(right), np.mean(most)), abs=1e-6)}


@pytest.mark.parametrize("named", [True, False])
def test_import_hidden_states(named: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main = runpy.run_path(str(EXAMPLES / "import_hidden_states.py"))["main"]
    texts = ["the bank .", "it rains", "the bank"]
    values = [np.random.default_rng(n).normal(size=(3, len(text.split()), 4)) for n, text in enumerate(texts)]
    with h5py.File(tmp_path / "elmo.hdf5", "w") as file:
        for number, array in enumerate(values):
            file[str(number)] = array.astype("<f4")
        if named:
            file["sentence_to_index"] = [json.dumps({text: str(n) for n, text in enumerate(texts)})]
    (tmp_path / "texts.txt").write_text("\n".join(texts))
    store = main(str(tmp_path / "elmo.hdf5"), str(tmp_path / "elmo.zarr"), None if named else tmp_path / "texts.txt")
    np.testing.assert_array_equal(store.select().vectors(), np.concatenate(values, 1).astype("<f2"))
    assert store.table()["text"].unique(maintain_order=True).to_list() == texts
    assert capsys.readouterr().out.startswith(f"{store.path}: 7 occurrences in layers [0, 1, 2]")


@pytest.mark.parametrize("name", sorted(path.name for path in EXAMPLES.glob("*.py")))
def test_without_arguments_an_example_says_how_it_is_run(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", [name])
    with pytest.raises(SystemExit, match=f"python examples/{name}"):
        runpy.run_path(str(EXAMPLES / name), run_name="__main__")
    assert len((EXAMPLES / name).read_text().splitlines()) <= 80


def test_hubness(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Against counts by all pairs."""
    found = runpy.run_path(str(EXAMPLES / "hubness.py"))["main"](str(store), 1, 4, 50)
    vectors = es.open(store).vectors(layers=1).astype(np.float64)
    rows = np.sort(np.random.default_rng(0).choice(len(vectors), 50, replace=False))
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    scores = unit[rows] @ unit.T
    scores[np.arange(50), rows] = -np.inf
    counts = np.bincount(np.argsort(-scores.round(12), 1, kind="stable")[:, :4].ravel(), minlength=len(vectors))
    assert found["as stored"] == pytest.approx(skew(counts))
    assert capsys.readouterr().out.startswith(f"as stored: skewness of N_4 {found['as stored']:.2f} (")

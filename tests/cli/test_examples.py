"""The examples run as written and print what is true."""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest

import embstore as es

EXAMPLES = Path(__file__).parents[2] / "examples"
WORDS = {"DET": ["the", "a"], "NOUN": ["bank", "river", "cat"], "VERB": ["sat", "was"], "ADV": ["on", "because"]}
ORDER = ["DET", "NOUN", "VERB", "ADV", "DET", "NOUN"]


def test_there_is_a_test_for_every_example() -> None:
    tested = Path(__file__).read_text()
    assert all(f'"{path.name}"' in tested for path in EXAMPLES.glob("*.py"))
    assert len(list(EXAMPLES.glob("*.py"))) == 6


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
    vectors = store.select(words=verb[1], layers=3).vectors(dtype="float64")[0]
    unit = vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)
    pairs = (unit @ unit.T)[~np.eye(len(unit), dtype=bool)]
    assert f"layer 3: self-similarity of '{verb[1]}' {pairs.mean():.3f}" in printed[0]
    norm = np.linalg.norm(store.select(layers=0).vectors(dtype="float64")[0].mean(0))
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
    means = es.open(store).select(layers=2).vectors(dtype="float64")[0].mean(0)
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


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        "extract_and_select.py",
        "train_with_torch.py",
        "read_without_embstore.py",
        "own_reducer.py",
        "sparse_autoencoder.py",
        "train_skipgram.py",
    ],
)
def test_without_arguments_an_example_says_how_it_is_run(name: str) -> None:
    done = subprocess.run([sys.executable, EXAMPLES / name], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert f"python examples/{name}" in done.stderr
    assert len((EXAMPLES / name).read_text().splitlines()) < 60

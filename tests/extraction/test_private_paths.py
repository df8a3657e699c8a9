"""What is saved or published names no folder of this machine and no user."""

from __future__ import annotations

import getpass
import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest

import embstore as es
from tests.extraction.plans import plan_of
from tests.models import tiny
from tests.store.example import all_files

SENTENCES = tiny.random_sentences(40, seed=4)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a user that nothing may name."""
    folder = tmp_path / "home-of-somebody"
    folder.mkdir()
    monkeypatch.setenv("HOME", str(folder))
    monkeypatch.setenv("USER", "somebody-else")
    monkeypatch.setenv("LOGNAME", "somebody-else")
    return folder


def test_no_file_names_a_folder_or_a_user(home: Path) -> None:
    model = tiny.save("bert", home / "models" / "small")
    corpus = home / "texts" / "novel.conllu"
    corpus.parent.mkdir()
    rows = (
        f"{number}\t{word}\t_\t{'NOUN' if number % 2 else 'X'}\t_\t_\t{number - 1}\t_\t_\t_\n"
        for words in SENTENCES
        for number, word in enumerate([*words, ""], 1)
    )
    corpus.write_text("".join(row if row.split("\t")[1] else "\n" for row in rows))
    made = home / "made"
    made.mkdir()
    stores = []
    for name in ("s.zarr", "s.h5"):
        plan = plan_of(corpus, model=model, store=made / name)
        (made / f"{name}.plan.json").write_text(json.dumps(plan.as_json()))
        stores.append(es.extract(plan, made / name))
    for store in stores:
        assert store.metadata.model["name"] == "small"
        assert store.metadata.corpus["name"] == "novel.conllu"
        es.export(store, made / f"copy-of-{store.path.name}.zarr")  # type: ignore[union-attr]
    es.analysis.build_index(stores[0], 1)
    words = {word: {"NOUN": 1} if number % 2 else {"X": 1} for number, word in enumerate(stores[0].index.words)}
    first = sorted(words)[: len(words) // 2]
    split = es.probes.split_words(
        {word: words[word] for word in first}, {word: words[word] for word in words if word not in first}
    )
    es.ClassProbe(label="upos", training=es.probes.Training(epochs=1)).fit(stores[0], split).save(made / "probe")
    es.geometry(stores[0]).write_csv(made / "geometry.csv")
    found = all_files(made)
    assert len(found) > 30
    private = [str(home), home.name, os.path.expanduser("~"), "/tmp/", "somebody-else", getpass.getuser() + "/"]
    for name, data in found.items():
        for each in private:
            for spelled in (each.encode(), each.encode("utf-16-le"), json.dumps(each)[1:-1].encode()):
                assert spelled not in data, f"{name} holds {each}"


def test_a_store_resumes_with_the_model_and_the_corpus_at_another_place(home: Path) -> None:
    model = tiny.save("bert", home / "model")
    corpus = home / "a.txt"
    corpus.write_text("\n".join(map(" ".join, SENTENCES)))
    store = es.extract(plan_of(corpus, model=model), home / "s.zarr")
    before = np.asarray(store.vectors(np.arange(store.n_rows)))
    (home / "elsewhere").mkdir()
    for name in ("model", "a.txt", "s.zarr"):
        shutil.move(home / name, home / "elsewhere" / name.replace("model", "renamed"))
    shutil.copy(home / "elsewhere" / "a.txt", home / "elsewhere" / "b.txt")
    moved = home / "elsewhere" / "s.zarr"
    shard = next(file for file in (moved / "hidden_states" / "c").rglob("*") if file.is_file())
    shard.write_bytes(shard.read_bytes()[:-40] + bytes(40))
    plan = plan_of(home / "elsewhere" / "b.txt", model=home / "elsewhere" / "renamed", store=moved)
    repaired = es.extract(plan, moved, repair=True)
    np.testing.assert_array_equal(repaired.vectors(np.arange(store.n_rows)), before)
    assert es.verify(moved).ok

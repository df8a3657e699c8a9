"""Gold standards are read from small files of the forms of SemEval-2020 Task 1 and DWUG, and scored as scipy does."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import spearmanr
from sklearn.metrics import roc_auc_score

from embstore.analysis.change import ChangeGold, ChangeTests, evaluate_change, measure_change, read_change_gold
from embstore.analysis.change.gold import _binary, _graded
from embstore.errors import CorpusError, CorpusNotFoundError, InvalidValueError
from tests.analysis.change.made import write_sides
from tests.analysis.word_store import one_line

USES = "lemma\tpos\tdate\tgrouping\tidentifier\tdescription\tcontext\tindexes_target_token\tindexes_target_sentence\n"
STATS = "lemma\tgrouping\tnodes\tchange_binary\tchange_binary_gain\tchange_binary_loss\tchange_graded\tCOMPARE\n"


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text, "utf-8")
    return root


def semeval(root: Path, **changed: str) -> Path:
    files = {
        "targets.txt": "plane_nn\ntree_nn\n",
        "truth/graded.txt": "plane_nn\t0.882\ntree_nn\t0.071\n",
        "truth/binary.txt": "plane_nn\t1\ntree_nn\t0\n",
        "corpus1/lemma/ccoha1.txt": "the plane_nn be flat\n",
        "corpus2/lemma/ccoha2.txt": "the plane_nn land\n",
    }
    return write(root, files | {name.replace("__", "/") + ".txt": text for name, text in changed.items()})


def test_semeval_is_read(tmp_path: Path) -> None:
    gold = read_change_gold(semeval(tmp_path))
    assert gold.graded == {"plane_nn": 0.882, "tree_nn": 0.071}
    assert gold.binary == {"plane_nn": 1, "tree_nn": 0}
    assert gold.words == ("plane_nn", "tree_nn")
    assert gold.corpora == {"lemma": (tmp_path / "corpus1/lemma/ccoha1.txt", tmp_path / "corpus2/lemma/ccoha2.txt")}


def test_usage_graphs_are_read(tmp_path: Path) -> None:
    use = 'plane_nn\tnn\t1830\t1\tid-1\t \tA "plane is flat.\t3:8\t0:16\n'
    stats = "plane_nn\t1_2\t20\t1\t1\t0\t0.88\t1.6\n"
    root = write(tmp_path, {"data/plane_nn/uses.csv": USES + use, "stats/opt/stats_groupings.csv": STATS + stats})
    gold = read_change_gold(root)
    assert (gold.graded, gold.binary) == ({"plane_nn": 0.88}, {"plane_nn": 1})
    assert gold.uses is not None
    [row] = gold.uses.to_dicts()
    assert row["text"][row["start"] : row["stop"]] == "plane"
    assert (row["word"], row["period"], row["date"]) == ("plane_nn", "1", "1830")


def test_malformed_files_are_refused_with_their_line(tmp_path: Path) -> None:
    one_line(lambda: read_change_gold(tmp_path), CorpusNotFoundError, "targets.txt", "uses.csv")
    bad = semeval(tmp_path / "a", truth__graded="plane_nn\t0.8\ntree_nn 0.1\n")
    one_line(lambda: read_change_gold(bad), CorpusError, "graded.txt, line 2", "not a number")
    bad = semeval(tmp_path / "b", truth__binary="plane_nn\t1\n")
    one_line(lambda: read_change_gold(bad), CorpusError, "binary.txt", "'tree_nn'")
    for value in ("nan", "inf"):  # NaN would rank as the greatest change
        bad = semeval(tmp_path / value, truth__graded=f"plane_nn\t0.8\ntree_nn\t{value}\n")
        one_line(partial(read_change_gold, bad), CorpusError, "graded.txt, line 2", repr(value))
    bad = semeval(tmp_path / "half", truth__binary="plane_nn\t1\ntree_nn\t0.5\n")
    one_line(lambda: read_change_gold(bad), CorpusError, "binary.txt", "0.5", "0 or 1")
    use = "plane_nn\tnn\t1830\t1\tid-1\t \tA plane.\t3:99\t0:16\n"
    bad = write(tmp_path / "c", {"data/plane_nn/uses.csv": USES + use})
    one_line(lambda: read_change_gold(bad), CorpusError, "uses.csv, line 2", "'3:99'")
    bad = write(tmp_path / "d", {"data/plane_nn/uses.csv": "lemma\tcontext\n"})
    one_line(lambda: read_change_gold(bad), CorpusError, "'grouping'")
    bad = write(tmp_path / "e", {"data/plane_nn/uses.csv": USES + "plane_nn\tnn\n"})
    one_line(lambda: read_change_gold(bad), CorpusError, "line 2", "columns")


def test_scores_are_those_of_scipy_and_scikit_learn() -> None:
    random = np.random.default_rng(0)
    graded = random.integers(0, 5, 30) / 4
    values = graded + random.normal(size=30)
    [(name, value, low, high, _)] = _graded(values, graded, 300, 1)
    assert (name, value) == ("spearman", pytest.approx(spearmanr(values, graded).statistic))
    assert low is not None
    assert high is not None
    assert low < value < high  # type: ignore[operator]
    assert _graded(np.arange(3.0), np.arange(3.0), 300, 1) == [("spearman", 1, None, None, None)]
    binary = (graded > 0.5).astype(float)
    area, best = _binary(values, binary, 0, 0)
    assert area[:2] == ("auc", pytest.approx(roc_auc_score(binary, values)))
    expected = max(((values >= limit) == (binary > 0)).mean() for limit in values)
    assert best[:2] == ("accuracy", pytest.approx(expected))
    assert ((values >= best[4]) == (binary > 0)).mean() == pytest.approx(expected)  # type: ignore[operator]


def test_words_that_were_not_compared_are_left_out(tmp_path: Path) -> None:
    old, new = write_sides(tmp_path, n_words=6, n_changed=3)
    found = measure_change(old.store, new.store, metrics="prt", tests=ChangeTests(permutations=0, resamples=0))
    truth = {f"w{number}": 1 if number < 3 else 0 for number in range(6)} | {"gone": 1}
    gold = ChangeGold("made", {word: float(value) for word, value in truth.items()}, truth, {})
    scores = {row["score"]: row for row in evaluate_change(found, gold, resamples=50).to_dicts()}
    assert scores["auc"]["value"] == scores["accuracy"]["value"] == 1
    assert scores["spearman"]["value"] == pytest.approx(spearmanr([1] * 3 + [0] * 3, [6, 5, 4, 3, 2, 1]).statistic)
    assert {row["count"] for row in scores.values()} == {6}
    few = ChangeGold("few", {"w0": 1.0, "gone": 0.0}, {}, {})
    one_line(lambda: evaluate_change(found, few), InvalidValueError, "fewer than three words of few")


def test_the_best_accuracy_is_at_least_that_of_no_change() -> None:
    values, binary = np.array([3.0, 2.0, 1.0]), np.array([0.0, 0.0, 1.0])
    _, (_, value, _, _, threshold) = _binary(values, binary, 0, 0)
    assert value == pytest.approx(2 / 3)
    assert threshold is not None
    assert ((values >= threshold) == (binary > 0)).mean() == pytest.approx(2 / 3)

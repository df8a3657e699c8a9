"""Linear class probes against scikit-learn's logistic regression on the same rows, layer by layer.

python benchmarks/class_probes.py STORE --train train.tsv --test test.tsv
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
from measure import parser_of, table, write_json
from numpy.typing import NDArray
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler

import embstore as es
from embstore.corpus import read_word_classes
from embstore.probes import WordSplit, split_words
from embstore.probes.classes.examples import ClassExamples, ExampleOptions, SplitExamples
from embstore.probes.classes.scores import verdicts

STRENGTHS = (0.01, 0.03, 0.1, 0.3, 1.0)  # of the penalty, inverted: C


def vectors_of(part: SplitExamples, layer: int) -> NDArray[np.float32]:
    out = np.empty((1, len(part.examples), part.examples.width), part.examples.dtype)
    part.examples.read(np.arange(len(part.examples)), [layer], out)
    return out[0].astype(np.float32)


def micro_f1(part: SplitExamples, yes: NDArray[np.bool_]) -> float:
    """Micro F1 by the rule of half of answers to contexts, bool [contexts, classes]."""
    positives = np.zeros((len(part.word), yes.shape[1]), np.int32)
    np.add.at(positives, part.group, yes)
    right, wrong, missed = (int(each.sum()) for each in verdicts(positives, part.contexts, part.gold))
    return 2 * right / (2 * right + wrong + missed)


def logistic_regression(
    parts: dict[str, SplitExamples], layer: int, strengths: Sequence[float] = STRENGTHS
) -> tuple[float, float, float]:
    """One classifier a class on standardised vectors, C by dev F1: returns dev F1, C and test F1."""
    scaler = StandardScaler().fit(vectors_of(parts["train"], layer))
    vectors = {name: scaler.transform(vectors_of(part, layer)) for name, part in parts.items()}
    gold, found = parts["train"].gold[parts["train"].group], []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        for strength in strengths:
            models = [LogisticRegression(C=strength, max_iter=300).fit(vectors["train"], own) for own in gold.T]
            dev, test = (
                micro_f1(parts[name], np.stack([model.predict(vectors[name]) for model in models], 1))
                for name in ("dev", "test")
            )
            found.append((dev, strength, test))
    return max(found)


def compared(store: es.Store, words: WordSplit, layers: Sequence[int], **settings: Any) -> list[tuple[int, ...]]:
    """Rows of layer, test F1 of the probes with default training, that of scikit-learn, the difference and C."""
    probe = es.ClassProbe(layers=layers, **settings).fit(store, words)
    frame = probe.score(splits=("test",)).frame
    source = ClassExamples(store.select(layers=layers), words, ExampleOptions("class", "context", 100, 0))
    parts = {split: source.of(split, probe.fitted.classes) for split in ("train", "dev", "test")}
    rows = []
    for layer in layers:
        own = frame.filter(metric="f1", layer=layer)["value"].mean()
        converged = frame.filter(metric="converged", layer=layer)["value"].mean()
        _, strength, theirs = logistic_regression(parts, layer)
        rows.append((layer, own, theirs, own - theirs, strength, converged))
        print("  ".join(f"{each:.4g}" for each in rows[-1]), flush=True)
    return rows


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("store")
    parser.add_argument("--train", required=True, help="list of words with their classes, as Wiki-PSE has them")
    parser.add_argument("--test", required=True)
    parser.add_argument("--layers", default="all")
    arguments = parser.parse_args()
    store = es.open(arguments.store)
    words = split_words(read_word_classes(arguments.train), read_word_classes(arguments.test))
    layers = store.layers if arguments.layers == "all" else tuple(map(int, arguments.layers.split(",")))
    rows = compared(store, words, layers)
    columns = ["layer", "class probes", "scikit-learn", "difference", "its C", "converged"]
    print(table(columns, rows))
    write_json(arguments.out, {"rows": [dict(zip(columns, row, strict=True)) for row in rows]})


if __name__ == "__main__":
    main()

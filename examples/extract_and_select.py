"""Plan, extract, select: from a text to the vectors of the words that a question is about.

    python examples/extract_and_select.py CORPUS.conllu STORE.zarr MODEL

CORPUS is a CoNLL-U file, whose words have parts of speech; MODEL a folder or a name on the Hugging Face hub.
"""

import sys

import numpy as np
import polars as pl

import embstore as es


def main(corpus: str, path: str, model: str) -> None:
    # The cost first, then the extraction; running the script again resumes it.
    plan = es.plan(corpus, model=model, options=es.ExtractionOptions(pooling="mean"), store=path)
    print(plan, end="\n\n")
    store = es.extract(plan, path)

    # The most frequent verb, by Polars expressions over the occurrence table.
    verbs = store.table().filter(pl.col("upos") == "VERB")
    verb = verbs.group_by("word").len().sort("len", "word", descending=[True, False])["word"][0]

    # A selection by words, labels or any condition, and of some layers; vectors are read when they are needed.
    chosen = store.select(words=verb, labels={"upos": "VERB"}, where="position > 0", layers=[0, "last"])
    vectors = chosen.vectors(dtype="float32")  # [layer, occurrence, feature]
    print(f"{verb!r}: {vectors.shape[1]} occurrences x {vectors.shape[2]} features in layers {list(chosen.layers)}")
    print(chosen.table().select("occurrence", "word", "position", "text").head(5))

    # Self-similarity of a word: the mean cosine of all pairs of its occurrences, from the sum of their unit vectors.
    unit = vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)
    n = unit.shape[1]
    for layer, total in zip(chosen.layers, unit.sum(1), strict=True):
        print(f"layer {layer}: self-similarity of {verb!r} {(total @ total - n) / (n * n - n):.3f}")

    # All words of a layer, block by block, in bounded memory.
    mean = sum(block.vectors.sum(0, dtype="float64") for block in store.select(layers=0).scan()) / store.n_rows
    print(f"the mean vector of layer 0 has norm {np.linalg.norm(mean):.3f}")


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    main(*sys.argv[1:])

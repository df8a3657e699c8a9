"""Train skip-gram vectors with negative sampling on a corpus that embstore reads: a static baseline, by gensim.

python examples/train_skipgram.py CORPUS OUT [DIMENSIONS]

OUT is a file of word vectors, .txt, .vec or .bin, which `embstore extract CORPUS STORE --model OUT` takes as a model.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from gensim.models import Word2Vec

import embstore as es


class Texts:
    """The sentences of a corpus, read again in every pass; the words of a target are joined, as in new_york."""

    def __init__(self, corpus: str) -> None:
        self.corpus = es.open_corpus(corpus)

    def __iter__(self) -> Iterator[list[str]]:
        for sentence in self.corpus:
            words = list(sentence.words)
            for start, stop in reversed(sentence.targets):
                words[start:stop] = ["_".join(words[start:stop])]
            yield words


def main(corpus: str, out: str, dimensions: int = 300, *, min_count: int = 5) -> es.vectors.WordVectors:
    """Write the vectors and return them; one worker, so that the same corpus gives the same bytes."""
    model = Word2Vec(Texts(corpus), sg=1, vector_size=dimensions, min_count=min_count, workers=1, seed=0)
    vectors = es.vectors.WordVectors(tuple(model.wv.index_to_key), model.wv.vectors)
    es.vectors.write_vectors(vectors, out, format="binary" if Path(out).suffix == ".bin" else "text")
    print(f"{out} holds {len(vectors)} vectors of {vectors.dimensions} numbers")
    return vectors


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    main(sys.argv[1], sys.argv[2], *map(int, sys.argv[3:4]))

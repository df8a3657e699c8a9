"""From a path to a table of word vectors in which words are looked up."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from embstore.errors import WordVectorsError
from embstore.vectors import gensim_files
from embstore.vectors.fasttext import MAGIC, FastTextTable
from embstore.vectors.lookup import VectorTable, array_table, held_table
from embstore.vectors.mapped import map_binary, map_text, sha256_of_files
from embstore.vectors.reading import format_of, open_npy, read_word_vectors, vocabulary_path
from embstore.vectors.source import Source

_PICKLE = b"\x80"
_COMPRESSED = (b"\x1f\x8b", b"\x28\xb5\x2f\xfd")


def open_vector_table(path: str | Path) -> VectorTable:
    """Open a file of word vectors of any kind for looking words up.

    Text with and without a header (word2vec, GloVe, fastText's .vec), word2vec's binary format, fastText's .bin,
    .npy with its .vocab, and gensim's own files, told by their first bytes. All but compressed files are
    memory-mapped: the words are read, and of the vectors only those asked for.

    Raises WordVectorsError in one line, with the line of the file where there are lines.
    """
    path = Path(path)
    start = Source(path).ahead(4)
    with path.open("rb") as file:
        stored = file.read(4)
    if start == MAGIC:
        if stored != start:
            raise WordVectorsError(f"{path}: a compressed fastText model cannot be mapped: decompress it first")
        return FastTextTable(path, sha256=sha256_of_files([path]))
    if start.startswith(_PICKLE):
        return gensim_files.open_gensim(path)
    format = format_of(Source(path))
    if format == "npy":
        words, array = open_npy(path)
        sha256 = sha256_of_files([path, vocabulary_path(path)])
        return array_table(words, np.asarray(array), name=str(path), sha256=sha256)
    sha256 = sha256_of_files([path])
    if stored.startswith(_COMPRESSED):
        return held_table(read_word_vectors(path, format=format), sha256=sha256)
    if format == "binary":
        return map_binary(path, sha256=sha256)
    return map_text(path, header=format == "text", sha256=sha256)

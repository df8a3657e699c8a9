"""One vector a word: the table, and the files that hold one (word2vec, GloVe, numpy)."""

from embstore.vectors.reading import read_word_vectors as read_word_vectors
from embstore.vectors.vectors import WordVectors as WordVectors
from embstore.vectors.writing import write_word_vectors as write_word_vectors

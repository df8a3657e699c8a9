"""One vector a word: the table, and the files that hold one (word2vec, GloVe, numpy)."""

from embstore.wordvectors.reading import read_word_vectors as read_word_vectors
from embstore.wordvectors.vectors import WordVectors as WordVectors
from embstore.wordvectors.writing import write_word_vectors as write_word_vectors

"""Text in: corpora as streams of sentences, and which occurrences of their words to keep."""

from embstore.corpus.corpus import Corpus, open_corpus
from embstore.corpus.formats.edge import EdgeSentence, EdgeTarget
from embstore.corpus.formats.pse import read_word_classes
from embstore.corpus.formats.registry import FORMATS
from embstore.corpus.keep import Keep
from embstore.corpus.lists import read_word_list
from embstore.corpus.sentence import Sentence

__all__ = [
    "FORMATS",
    "Corpus",
    "EdgeSentence",
    "EdgeTarget",
    "Keep",
    "Sentence",
    "open_corpus",
    "read_word_classes",
    "read_word_list",
]

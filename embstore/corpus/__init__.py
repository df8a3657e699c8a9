"""Corpora: text files and Python sentences read as streams of sentences, and the choice of occurrences to store."""

from embstore.corpus.corpus import Corpus, open_corpus
from embstore.corpus.edge_tasks import derivable_tasks, derived_edges, read_edges
from embstore.corpus.formats import FORMATS
from embstore.corpus.formats.edge import EdgeSentence, EdgeTarget
from embstore.corpus.formats.pse import read_word_classes
from embstore.corpus.keep import Keep
from embstore.corpus.sentence import Document, Sentence, Span
from embstore.corpus.trees import Tree, read_trees

__all__ = [
    "FORMATS",
    "Corpus",
    "Document",
    "EdgeSentence",
    "EdgeTarget",
    "Keep",
    "Sentence",
    "Span",
    "Tree",
    "derivable_tasks",
    "derived_edges",
    "open_corpus",
    "read_edges",
    "read_trees",
    "read_word_classes",
]

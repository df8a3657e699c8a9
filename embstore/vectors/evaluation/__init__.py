"""Static word vectors held against word benchmarks: similarity, analogies, relations, categories."""

from embstore.vectors.evaluation.discovery import Found as Found
from embstore.vectors.evaluation.discovery import find_benchmarks as find_benchmarks
from embstore.vectors.evaluation.evaluate import evaluate as evaluate
from embstore.vectors.evaluation.evaluate import read_benchmarks as read_benchmarks
from embstore.vectors.evaluation.lexicon import Benchmark as Benchmark
from embstore.vectors.evaluation.lexicon import Lexicon as Lexicon
from embstore.vectors.evaluation.lexicon import Score as Score
from embstore.vectors.evaluation.table1 import PAPER_CITATION as PAPER_CITATION
from embstore.vectors.evaluation.table1 import PAPER_TABLE_1 as PAPER_TABLE_1
from embstore.vectors.evaluation.table1 import paper_table1 as paper_table1
from embstore.vectors.evaluation.table1 import table1 as table1

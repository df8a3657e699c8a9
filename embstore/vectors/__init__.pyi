from .evaluation import evaluate as evaluate
from .evaluation import paper_table1 as paper_table1
from .evaluation import read_benchmarks as read_benchmarks
from .evaluation import table1 as table1
from .reading import read_word_vectors as read_word_vectors
from .training import train_vectors as train_vectors
from .vectors import WordVectors as WordVectors
from .writing import write_word_vectors as write_word_vectors

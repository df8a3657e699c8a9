from .files import read_vectors as read_vectors
from .files import write_vectors as write_vectors
from .word_vectors import WordVectors as WordVectors

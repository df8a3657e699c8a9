from .files import open_vector_table as open_vector_table
from .files import read_vectors as read_vectors
from .files import write_vectors as write_vectors
from .word_vectors import RandomVectors as RandomVectors
from .word_vectors import VectorTable as VectorTable
from .word_vectors import WordVectors as WordVectors

"""Word vectors read from and written to files: those of word2vec, GloVe and fastText, by gensim."""

from __future__ import annotations

import hashlib
import tempfile
import warnings
from collections.abc import Sequence
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from embstore.arguments import Positive, checked
from embstore.corpus.lines import GZIP_MAGIC, ZSTD_MAGIC, read_blocks
from embstore.corpus.sentence import is_encodable
from embstore.errors import (
    CorpusError,
    EmbstoreWarning,
    InvalidValueError,
    MissingPackageError,
    StorageError,
    WordVectorsError,
    quoted,
)
from embstore.store.storage.files import regular_file, replacing, storing
from embstore.vectors.word_vectors import RowTable, VectorTable, WordVectors, first_repeated

Format = Literal["auto", "text", "glove", "binary"]
PICKLE_MAGIC = b"\x80"
FASTTEXT_MAGIC = (793712314).to_bytes(4, "little")
_HEAD = 2**12  # bytes that tell the format: more than the first word and a few of its numbers
_NUMBERS = frozenset(b"0123456789+-.eEnaifNAIFty \t\r")
_UNWRITABLE = "\n\r\0"


@checked
def read_vectors(path: str | Path, *, format: Format = "auto", limit: Positive | None = None) -> WordVectors:
    """Read the word vectors of a file into memory.

    Parameters
    ----------
    path
        The file, which may be compressed (gzip, zstd).
    format
        `text`: word2vec's, with a header; `glove`: the same without a header; `binary`: word2vec's; `auto`: by the
        first bytes. gensim, the extra `vectors`, reads them.
    limit
        Read the first ones only.

    Raises
    ------
    WordVectorsError
        For a file that is damaged or cut off, a repeated word, NaN or infinity.
    MissingPackageError
        Without gensim.
    """
    path = Path(path)
    table = _open(path, format, limit)
    if not isinstance(table, RowTable):
        raise WordVectorsError(
            f"{path}: a fastText model, which makes vectors of any word: use it as a model, or read its .vec file"
        )
    return table.vectors


def open_vector_table(path: str | Path) -> VectorTable:
    """Open a file of word vectors to look up words: of any format of `read_vectors`, or fastText's .bin."""
    return _open(Path(path), "auto", None)


def _open(path: Path, format: str, limit: int | None) -> VectorTable:
    try:
        with regular_file(path).open("rb") as file:
            head = file.read(_HEAD)
        if not head.startswith((GZIP_MAGIC, ZSTD_MAGIC)):
            return _read(path, path, head, format, limit)
        with tempfile.NamedTemporaryFile() as plain:
            plain.writelines(read_blocks(path))
            plain.flush()
            plain.seek(0)
            return _read(path, Path(plain.name), plain.read(_HEAD), format, limit)
    except FileNotFoundError:
        raise WordVectorsError(f"no word vectors at {path}: give an existing file") from None
    except IsADirectoryError:
        raise WordVectorsError(f"{path}: is a folder, not a file of word vectors") from None
    except OSError as error:
        raise WordVectorsError(f"{path}: cannot be read: {error.strerror or error}") from None
    except CorpusError as error:
        raise WordVectorsError(str(error)) from None


def _read(path: Path, plain: Path, head: bytes, format: str, limit: int | None) -> VectorTable:
    """Read what is at `plain`, which is `path` without its compression."""
    if head.startswith(PICKLE_MAGIC):
        raise WordVectorsError(
            f"{path}: a pickle, as gensim saves it, which can run any code and is not read; convert it: "
            "KeyedVectors.load(...).save_word2vec_format('vectors.bin', binary=True)"
        )
    if head.startswith(FASTTEXT_MAGIC):
        return FastTextTable(_by_gensim(path, "fasttext.load_facebook_vectors", str(plain)), _sha256(path))
    if head.startswith(b"\xef\xbb\xbf"):
        raise WordVectorsError(f"{path}: begins with a byte-order mark: save it as UTF-8 without one")
    if not head.strip():
        raise WordVectorsError(f"{path}: no word vector in it")
    header, _, rest = head.partition(b"\n")
    has_header = len(header.split()) == 2 and all(field.isdigit() for field in header.split())
    if format == "text" and not has_header:
        raise WordVectorsError(f"{path}, line 1: not the numbers of vectors and dimensions: without them it is glove")
    if format == "auto":
        format = "glove"
        if has_header:
            after_word = rest.partition(b" ")[2].partition(b"\n")[0]
            format = "text" if _NUMBERS.issuperset(after_word) else "binary"
    options = {"binary": format == "binary", "no_header": format == "glove", "limit": limit}
    rows = 0 if format == "binary" else _check_lines(path, plain, header if format == "text" else None, limit)
    try:
        keyed = _by_gensim(path, "KeyedVectors.load_word2vec_format", str(plain), **options)
    except WordVectorsError as error:
        raise (format != "binary" and _no_number(path, plain, format)) or error from None
    if format == "binary":
        rows = len(keyed) if limit is not None else int(header.split()[0])
    if (found := len(keyed.key_to_index)) < rows:
        raise WordVectorsError(f"{path}: has {found} different words in {rows} rows: each word must be there once")
    try:
        vectors = WordVectors(tuple(keyed.index_to_key), keyed.vectors)
    except InvalidValueError as error:
        raise WordVectorsError(f"{path}: {error}") from None
    if format == "binary" and limit is None:  # a newline may follow each vector
        nbytes = sum(len(word.encode()) + 2 for word in vectors.words) + vectors.vectors.nbytes
        if plain.stat().st_size > len(header) + 1 + nbytes:
            raise WordVectorsError(f"{path}: its header says {rows} vectors, and it has more: correct the header")
    return RowTable(vectors, _sha256(path))


def _check_lines(path: Path, plain: Path, header: bytes | None, limit: int | None) -> int:
    """Refuse a line of fewer or more numbers, as gensim gives a single one to all dimensions; return the rows read."""
    n_rows, dimensions = map(int, header.split()) if header is not None else (None, 0)
    n_headers = 0 if header is None else 1
    rows = 0
    with plain.open("rb") as file:
        for number, line in enumerate(islice(file, n_headers, None if limit is None else n_headers + limit)):
            if number == n_rows:
                raise WordVectorsError(f"{path}: its header says {n_rows} vectors, and it has more: correct the header")
            found = line.rstrip().count(b" ")
            dimensions = dimensions or found
            if found != dimensions or not found:
                expected = f"where others have {dimensions}" if dimensions else "after the word and a space"
                raise WordVectorsError(f"{path}, line {number + n_headers + 1}: {found} numbers {expected}")
            rows += 1
    if n_rows is not None and rows < (n_rows if limit is None else min(n_rows, limit)):
        raise WordVectorsError(f"{path}: its header says {n_rows} vectors, and it has {rows}: it is cut off")
    return rows


def _no_number(path: Path, plain: Path, format: str) -> WordVectorsError | None:
    """Return the error of the first line with what is no number; None without one."""
    with plain.open("rb") as file:
        for number, line in islice(enumerate(file, 1), format == "text", None):
            for field in line.rstrip().decode(errors="replace").split(" ")[1:]:
                try:
                    float(field)
                except ValueError:
                    return WordVectorsError(f"{path}, line {number}: {quoted(field)} is not a number")
    return None


def _by_gensim(path: Path, function: str, *args: Any, **options: Any) -> Any:
    """Call a function of gensim.models, whose errors of any kind become one line on the file."""
    try:
        called: Any = import_module("gensim.models")
    except ImportError as error:
        raise MissingPackageError('files of word vectors need gensim: pip install "embstore[vectors]"') from error
    for name in function.split("."):
        called = getattr(called, name)
    try:
        return called(*args, **options)
    except Exception as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise WordVectorsError(f"{path}: cannot be read as word vectors: {reason}") from None


def _sha256(path: Path) -> str:
    with path.open("rb", buffering=0) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


class FastTextTable(VectorTable):
    """The words of a fastText model; the vector of a word that is not in its vocabulary is that of its n-grams."""

    def __init__(self, keyed: Any, sha256: str) -> None:
        self._keyed = keyed
        self.sha256 = sha256
        self.dimensions = keyed.vector_size

    def holds(self, word: str) -> bool:
        return self._spelled(word) in self._keyed.key_to_index

    def has(self, word: str) -> bool:
        from gensim.models.fasttext import ft_ngram_hashes

        keyed = self._keyed
        options = (keyed.min_n, keyed.max_n, keyed.bucket)
        return self.holds(word) or bool(keyed.bucket and keyed.max_n and len(ft_ngram_hashes(word, *options)))

    def vectors_of(self, words: Sequence[str]) -> NDArray[np.float32]:
        for word in words:
            if not self.has(word):
                raise KeyError(word)
        made = [self._keyed.get_vector(self._spelled(word)) for word in words]
        return np.array(made, np.float32).reshape(len(words), self.dimensions)

    def _spelled(self, word: str) -> str:
        known = self._keyed.key_to_index
        return word.lower() if word not in known and word.lower() in known else word


@checked
def write_vectors(vectors: WordVectors, path: str | Path, *, format: Format = "auto") -> None:
    """Write word vectors to a file, atomically.

    Parameters
    ----------
    vectors
        The words and their vectors. A space ends a word in these files, so the spaces of phrases are written as "_"
        with an EmbstoreWarning.
    path
        The file.
    format
        One of those of `read_vectors`; `auto`: binary for .bin, else text. Numbers in text are the shortest that read
        back as the same float32.

    Raises
    ------
    InvalidValueError
        For words that no file can hold, and for two words that would be written the same.
    StorageError
        If the file cannot be written.
    MissingPackageError
        Without gensim.
    """
    path = Path(path)
    if path.suffix in (".gz", ".zst"):
        raise InvalidValueError(f"{path}: word vectors are written uncompressed: leave {path.suffix} out of the name")
    if format == "auto":
        format = "binary" if path.suffix == ".bin" else "text"
    for word in vectors.words:
        if any(sign in word for sign in _UNWRITABLE) or not is_encodable(word):
            raise InvalidValueError(f"the word {word!r} cannot be written: a line break, NUL or half a surrogate pair")
    words = _without_spaces(vectors.words, path)
    keyed = _by_gensim(path, "KeyedVectors", vectors.dimensions)
    keyed.add_vectors(words, vectors.vectors)
    with storing(path):
        is_folder = path.absolute().parent.is_dir()
    if not is_folder:
        raise StorageError(f"{path} cannot be written: the folder {path.parent} does not exist")
    with replacing(path) as partial:  # the old file stays until the new one is complete
        options = {"binary": format == "binary", "write_header": format != "glove", "sort_attr": None}
        keyed.save_word2vec_format(str(partial), **options)


def _without_spaces(words: tuple[str, ...], path: Path) -> list[str]:
    renamed = [word.replace(" ", "_") for word in words]
    if (pair := first_repeated(renamed)) is not None:
        first, second = (words[row] for row in pair)
        raise InvalidValueError(f"{first!r} and {second!r} would both be {renamed[pair[0]]!r} in {path}: rename one")
    if phrases := [word for word in words if " " in word]:
        many = "1 word" if len(phrases) == 1 else f"{len(phrases)} words"
        message = f"{path}: the spaces of {many} such as {phrases[0]!r} are written as '_'"
        warnings.warn(message, EmbstoreWarning, stacklevel=4)
    return renamed

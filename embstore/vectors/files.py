"""Word vectors read from and written to files of any supported format."""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import BinaryIO, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from embstore.arguments import checked
from embstore.corpus.sentence import is_encodable
from embstore.errors import (
    InvalidValueError,
    RenamedWordsWarning,
    StorageError,
    WordVectorsError,
    WordVectorsNotFoundError,
    check_choice,
    check_whole,
)
from embstore.store.storage.files import regular_file, replacing, storing
from embstore.vectors.fasttext import MAGIC, FastTextTable
from embstore.vectors.mapped import BOM, MappedFile, header_counts, sha256_of_files
from embstore.vectors.word2vec import open_binary, open_text
from embstore.vectors.word_vectors import RowTable, VectorTable, WordVectors, first_nonfinite, first_repeated

Format = Literal["auto", "text", "glove", "binary", "npy"]
NPY_MAGIC = b"\x93NUMPY"
PICKLE_MAGIC = b"\x80"
BLOCK_ROWS = 2**12
FORMAT_OF_SUFFIX: dict[str, Format] = {".bin": "binary", ".npy": "npy"}
_UNWRITABLE = "\n\r\0"
_NUMBERS = frozenset(b"0123456789+-.eEnaifNAIFty \t\r")


@checked
def read_vectors(path: str | Path, *, format: Format = "auto", limit: int | None = None) -> WordVectors:
    """Read the word vectors of a file into memory, or only the first `limit` of them.

    `format`: `text` is word2vec's text format with a header, `glove` the same without a header, `binary` word2vec's
    binary format, `npy` an array [words, dimensions] with the words, one a line, in a file of the same name with the
    suffix .vocab; `auto` detects it by the first bytes. All but npy may be compressed (gzip, zstd).

    Raises WordVectorsError, with the line if there are lines, for a repeated word, a vector of another length, NaN or
    infinity, a count other than the header's, and a file that is cut off.
    """
    if limit is not None:
        check_whole("limit", limit, 1)
    table = _open(Path(path), format, limit)
    if not isinstance(table, RowTable):
        raise WordVectorsError(
            f"{path}: a fastText model, which makes vectors of any word: use it as a model, or read its .vec file"
        )
    n_words = len(table) if limit is None else min(limit, len(table))
    return WordVectors(tuple(table.words[:n_words]), table.read_rows(range(n_words)))


@checked
def open_vector_table(path: str | Path) -> VectorTable:
    """Open a file of word vectors to look up words without reading all vectors.

    Text with and without a header (word2vec, GloVe, fastText's .vec), word2vec's binary format, fastText's .bin, and
    .npy with its .vocab, detected by their first bytes. The file is memory-mapped; a compressed one is decompressed
    into a temporary file. Raises WordVectorsError, with the line if there are lines.
    """
    return _open(Path(path), "auto", None)


def _open(path: Path, format: str, limit: int | None) -> VectorTable:
    check_choice("format", format, get_args(Format))
    if format == "npy":
        return _open_npy(path)
    file = MappedFile(path)
    start = file.data[: 2**12]
    if start.startswith(PICKLE_MAGIC):
        raise file.error(
            "a pickle, as gensim saves it, which can run any code and is not read; convert it: "
            "KeyedVectors.load(...).save_word2vec_format('vectors.bin', binary=True)"
        )
    if start.startswith(MAGIC):
        return FastTextTable(file)
    if format == "auto":
        if start.startswith(NPY_MAGIC):
            return _open_npy(path)
        first, _, rest = start.partition(b"\n")
        if header_counts(first) is None:
            format = "glove"
        else:
            after_word = rest.partition(b" ")[2].partition(b"\n")[0]
            format = "text" if _NUMBERS.issuperset(after_word) else "binary"
    if format == "binary":
        return open_binary(file, limit=limit)
    return open_text(file, header=format == "text", limit=limit)


def vocabulary_path(path: Path) -> Path:
    """Return the path of the words of an .npy file."""
    return path.with_suffix(".vocab")


def _open_npy(path: Path) -> RowTable:
    try:
        stored = np.load(regular_file(path), mmap_mode="r", allow_pickle=False)
    except FileNotFoundError:
        raise WordVectorsNotFoundError(f"no word vectors at {path}: give an existing file") from None
    except (OSError, ValueError, EOFError) as error:
        raise WordVectorsError(f"{path}: cannot be read as .npy: {' '.join(str(error).split())}") from None
    if not isinstance(stored, np.ndarray) or stored.ndim != 2 or stored.dtype.kind != "f" or not stored.size:
        shape = getattr(stored, "shape", "of several arrays")
        raise WordVectorsError(f"{path}: the array is {shape}: it must hold floats [words, dimensions]")
    vocabulary = vocabulary_path(path)
    words = _read_vocabulary(vocabulary, path)
    if len(words) != len(stored):
        raise WordVectorsError(f"{vocabulary}: {len(words)} words for the {len(stored)} vectors of {path.name}")

    def read_rows(rows: Sequence[int]) -> NDArray[np.float32]:
        with np.errstate(over="ignore"):
            vectors = np.array(stored[np.asarray(rows, np.int64)], np.float32)
        if (bad := first_nonfinite(vectors)) is not None:
            row = rows[bad]
            raise WordVectorsError(f"{path}: the vector of {words[row]!r} (row {row}) has NaN or infinity in it")
        return vectors

    return RowTable(
        words, read_rows, dimensions=int(stored.shape[1]), hash_data=lambda: sha256_of_files(path, vocabulary)
    )


def _read_vocabulary(path: Path, array: Path) -> list[str]:
    try:
        file = MappedFile(path)
    except WordVectorsNotFoundError:
        message = f"no words at {path}: this file must hold the words of {array.name}, one a line"
        raise WordVectorsNotFoundError(message) from None
    content = bytes(file.data)
    try:
        words = content.decode().removesuffix("\n").split("\n")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise file.error(f"byte 0x{content[error.start]:02x} is not UTF-8", line=line) from None
    if "\r" in words[0]:
        words = [word.removesuffix("\r") for word in words]
    if "" in words:
        raise file.error("is empty: write one word a line", line=words.index("") + 1)
    if (pair := first_repeated(words)) is not None:
        message = f"the word {words[pair[1]]!r} is in line {pair[0] + 1} too: a word has one vector"
        raise file.error(message, line=pair[1] + 1)
    return words


@checked
def write_vectors(vectors: WordVectors, path: str | Path, *, format: Format = "auto") -> None:
    """Write word vectors to a file as `text`, `glove`, `binary` or `npy` (see `read_vectors`), atomically.

    `auto` chooses by the suffix: binary for .bin, npy for .npy, else text. Numbers in text are the shortest that read
    back as the same float32. A space ends a word in text and binary files, so the spaces of phrases are written as "_"
    with a RenamedWordsWarning; npy keeps them.

    Raises InvalidValueError for words that no file can hold and for two words that would be written the same,
    StorageError if the file cannot be written.
    """
    path = Path(path)
    check_choice("format", format, get_args(Format))
    if path.suffix in (".gz", ".zst"):
        raise InvalidValueError(f"{path}: word vectors are written uncompressed: leave {path.suffix} out of the name")
    if format == "auto":
        format = FORMAT_OF_SUFFIX.get(path.suffix, "text")
    if format == "npy" and path.suffix != ".npy":
        raise InvalidValueError(f"{path}: the format npy needs a name that ends in .npy")
    for word in vectors.words:
        if any(sign in word for sign in _UNWRITABLE) or not is_encodable(word):
            raise InvalidValueError(f"the word {word!r} cannot be written: a line break, NUL or half a surrogate pair")
    if format == "npy":
        vocabulary = "".join(f"{word}\n" for word in vectors.words).encode()
        with _replacing(path) as array:
            with array.open("wb") as file:
                np.save(file, vectors.vectors)
            Path(os.path.realpath(path)).unlink(missing_ok=True)  # so that an array never has the words of another
            with _replacing(vocabulary_path(path)) as partial:
                partial.write_bytes(vocabulary)
        return
    words = _without_spaces(vectors.words, path)
    with _replacing(path) as partial, partial.open("wb") as file:
        if format == "binary":
            _write_binary(words, vectors, file)
        else:
            _write_text(words, vectors, file, header=format == "text")


def _without_spaces(words: tuple[str, ...], path: Path) -> Sequence[str]:
    renamed = [word.replace(" ", "_") for word in words]
    if (pair := first_repeated(renamed)) is not None:
        first, second = (words[row] for row in pair)
        raise InvalidValueError(f"{first!r} and {second!r} would both be {renamed[pair[0]]!r} in {path}: write .npy")
    if (count := sum(" " in word for word in words)) > 0:
        example = next(word for word in words if " " in word)
        phrases = "1 word" if count == 1 else f"{count} words"
        message = f"{path}: the spaces of {phrases} such as {example!r} are written as '_'"
        warnings.warn(message, RenamedWordsWarning, stacklevel=4)
    return renamed


def _write_text(words: Sequence[str], vectors: WordVectors, file: BinaryIO, *, header: bool) -> None:
    import polars as pl  # loaded late, as in reading

    if header:
        file.write(f"{len(vectors)} {vectors.dimensions}\n".encode())
    elif words[0].encode().startswith(BOM):
        file.write(BOM)  # reading takes one off
    names = [f"{number}" for number in range(vectors.dimensions)]
    for start in range(0, len(vectors), BLOCK_ROWS):
        stop = start + BLOCK_ROWS
        numbers = pl.from_numpy(np.asfortranarray(vectors.vectors[start:stop]), schema=names, orient="row")
        frame = numbers.insert_column(0, pl.Series("word", words[start:stop], dtype=pl.String))
        frame.write_csv(file, include_header=False, separator=" ", quote_style="never")


def _write_binary(words: Sequence[str], vectors: WordVectors, file: BinaryIO) -> None:
    file.write(f"{len(vectors)} {vectors.dimensions}\n".encode())
    for start in range(0, len(vectors), BLOCK_ROWS):
        rows = vectors.vectors[start : start + BLOCK_ROWS].astype("<f4", copy=False)
        block = zip(words[start : start + BLOCK_ROWS], rows, strict=True)
        file.write(b"".join(word.encode() + b" " + row.tobytes() + b"\n" for word, row in block))


def _replacing(path: Path) -> AbstractContextManager[Path]:
    """Let the old file stay until the new one, written to the path that this gives, is complete."""
    with storing(path):
        is_folder = path.absolute().parent.is_dir()
    if not is_folder:
        raise StorageError(f"{path} cannot be written: the folder {path.parent} does not exist")
    return replacing(path)

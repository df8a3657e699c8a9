"""Word vectors written to files that other tools read."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

import numpy as np
import polars as pl

from embstore.corpus.sentence import is_encodable
from embstore.errors import InvalidValueError, RenamedWordsWarning, StorageError
from embstore.vectors.reading import Format, check_format, vocabulary_path
from embstore.vectors.word_vectors import WordVectors, first_repeated

BLOCK_ROWS = 2**12
FORMAT_OF_SUFFIX: dict[str, Format] = {".bin": "binary", ".npy": "npy"}
_UNWRITABLE = "\n\r\0"


def write_vectors(vectors: WordVectors, path: str | Path, *, format: Format = "auto") -> None:
    """Write word vectors to a file as `text`, `glove`, `binary` or `npy` (see `read_vectors`), atomically.

    `auto` chooses by the suffix: binary for .bin, npy for .npy, else text. Numbers in text are the shortest that read
    back as the same float32. A space ends a word in text and binary files, so the spaces of phrases are written as "_"
    with a RenamedWordsWarning; npy keeps them.

    Raises InvalidValueError for words that no file can hold and for two words that would be written the same,
    StorageError if the file cannot be written.
    """
    path = Path(path)
    check_format(format)
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
        try:
            path.unlink()  # so that an array never has the words of another
        except FileNotFoundError:
            pass
        except OSError as error:
            raise StorageError(f"{path} cannot be written: {error.strerror or error}") from error
        _replace(vocabulary_path(path), lambda file: file.write(vocabulary))
        _replace(path, lambda file: np.save(file, vectors.vectors))
        return
    words = _without_spaces(vectors.words, path)
    if format == "binary":
        _replace(path, lambda file: _write_binary(words, vectors, file))
    else:
        _replace(path, lambda file: _write_text(words, vectors, file, header=format == "text"))


def _without_spaces(words: tuple[str, ...], path: Path) -> Sequence[str]:
    renamed = [word.replace(" ", "_") for word in words]
    if (pair := first_repeated(renamed)) is not None:
        first, second = (words[row] for row in pair)
        raise InvalidValueError(f"{first!r} and {second!r} would both be {renamed[pair[0]]!r} in {path}: write .npy")
    if (count := sum(" " in word for word in words)) > 0:
        example = next(word for word in words if " " in word)
        phrases = "1 word" if count == 1 else f"{count} words"
        message = f"{path}: the spaces of {phrases} such as {example!r} are written as '_'"
        warnings.warn(message, RenamedWordsWarning, stacklevel=3)
    return renamed


def _write_text(words: Sequence[str], vectors: WordVectors, file: BinaryIO, *, header: bool) -> None:
    if header:
        file.write(f"{len(vectors)} {vectors.dimensions}\n".encode())
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


def _replace(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """Write a file under a temporary name and rename it, so that the old file stays until the new one is complete."""
    partial = path.with_name(f".{path.name}.{os.getpid()}.new")
    try:
        with partial.open("wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    except FileNotFoundError as error:
        raise StorageError(f"{path} cannot be written: the folder {path.parent} does not exist") from error
    except OSError as error:
        raise StorageError(f"{path} cannot be written: {error.strerror or error}") from error
    finally:
        with suppress(OSError):
            partial.unlink(missing_ok=True)

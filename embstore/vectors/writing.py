"""Word vectors written to the files that other tools read."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

import numpy as np
import polars as pl

from embstore.errors import InvalidValueError, RenamedWordsWarning, StorageError
from embstore.vectors.reading import Format, check_format, vocabulary_path
from embstore.vectors.vectors import WordVectors, first_repeated

BLOCK_ROWS = 2**12
BY_SUFFIX: dict[str, Format] = {".bin": "binary", ".npy": "npy"}


def write_word_vectors(vectors: WordVectors, path: str | Path, *, format: Format = "auto") -> None:
    """Write word vectors, whole or not at all, as `text`, `glove`, `binary` or `npy` (see read_word_vectors).

    `auto` goes by the suffix: .bin is binary, .npy is npy, all else text. Numbers in text are the shortest that
    read back as the same float32. A space ends a word in text and binary files, so the spaces of phrases are
    written as "_" there, with a RenamedWordsWarning; npy keeps them.

    Raises InvalidValueError for words that no file can hold and for two that would be spelled the same,
    StorageError where the file cannot be written.
    """
    path = Path(path)
    check_format(format)
    if path.suffix in (".gz", ".zst"):
        raise InvalidValueError(f"{path}: word vectors are written uncompressed: leave {path.suffix} out of the name")
    if format == "auto":
        format = BY_SUFFIX.get(path.suffix, "text")
    if format == "npy" and path.suffix != ".npy":
        raise InvalidValueError(f"{path}: the format npy needs a name that ends in .npy")
    _check_words(vectors.words)
    if format == "npy":
        _write_npy(vectors, path)
        return
    words = _without_spaces(vectors.words, path)
    if format == "binary":
        _replace(path, lambda file: _write_binary(words, vectors, file))
    else:
        _replace(path, lambda file: _write_text(words, vectors, file, header=format == "text"))


def _check_words(words: Sequence[str]) -> None:
    joined = " ".join(words)
    if not any(sign in joined for sign in "\n\r\0"):
        try:
            joined.encode()
            return
        except UnicodeEncodeError:
            pass
    for word in words:
        if any(sign in word for sign in "\n\r\0") or word != word.encode(errors="ignore").decode():
            raise InvalidValueError(f"the word {word!r} cannot be written: a line break, NUL or half a surrogate pair")


def _without_spaces(words: tuple[str, ...], path: Path) -> Sequence[str]:
    renamed = [word.replace(" ", "_") for word in words]
    if (twice := first_repeated(renamed)) is not None:
        first, second = (words[place] for place in twice)
        raise InvalidValueError(f"{first!r} and {second!r} would both be {renamed[twice[0]]!r} in {path}: write .npy")
    if (count := sum(" " in word for word in words)) > 0:
        example = next(word for word in words if " " in word)
        told = "1 word" if count == 1 else f"{count} words"
        warnings.warn(
            f"{path}: the spaces of {told} such as {example!r} are written as '_'", RenamedWordsWarning, stacklevel=3
        )
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


def _write_npy(vectors: WordVectors, path: Path) -> None:
    words = "".join(f"{word}\n" for word in vectors.words).encode()
    vocabulary = vocabulary_path(path)
    with suppress(FileNotFoundError):
        # Words of one writing must never stand beside vectors of another: no array while the words change.
        _storing(path, path.unlink)
    _replace(vocabulary, lambda file: file.write(words))
    _replace(path, lambda file: np.save(file, vectors.vectors))


def _replace(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """Let `write` fill a file under another name, then give it its own."""
    partial = path.with_name(f".{path.name}.{os.getpid()}.new")

    def fill() -> None:
        with partial.open("wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)

    try:
        _storing(path, fill)
    finally:
        with suppress(OSError):
            partial.unlink(missing_ok=True)


def _storing(path: Path, act: Callable[[], None]) -> None:
    try:
        act()
    except FileNotFoundError as error:
        if path.parent.is_dir():
            raise
        raise StorageError(f"{path} cannot be written: the folder {path.parent} does not exist") from error
    except OSError as error:
        raise StorageError(f"{path} cannot be written: {error.strerror or error}") from error

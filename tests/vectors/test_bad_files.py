"""Bad files and arguments are refused in one line that names the position and what is allowed."""

from __future__ import annotations

import gzip
import io
import os
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from embstore.errors import BenchmarkError, InvalidValueError, StorageError, WordVectorsError, WordVectorsNotFoundError
from embstore.vectors import WordVectors, open_vector_table, read_vectors, write_vectors
from embstore_studies.evaluation.evaluate import read_benchmarks


def entry(word: bytes, *numbers: float) -> bytes:
    return word + b" " + struct.pack(f"<{len(numbers)}f", *numbers) + b"\n"


def npy(array: np.ndarray) -> bytes:
    stream = io.BytesIO()
    np.save(stream, array)
    return stream.getvalue()


LATER = b"".join(b"w%d 1 2\n" % number for number in range(100))

TEXT = {
    "empty": (b"", r"v: is empty: a line is a word and its numbers"),
    "word alone": (b"word\n", r"v:1: 'word': a line is a word and its numbers"),
    "header alone": (b"2 3\n", r"v: no word in it"),
    "header of nothing": (b"0 3\n", r"v:1: the header has 0 words of 3 dimensions: give 1 or more"),
    "too few words": (b"3 2\na 1 2\nb 3 4\n", r"v:1: the header says 3 words, 2 follow"),
    "short row": (b"2 2\na 1 2\nb 3\n", r"v:3: 'b' has 1 number, not 2 as the header says"),
    "long row": (b"2 2\na 1 2\nb 3 4 5\n", r"v:3: 'b' has 3 numbers, not 2 as the header says"),
    "short and long rows": (b"a 1 2\nb 3\nc 4 5 6\n", r"v:2: 'b' has 1 number, not 2 as the first line has"),
    "wrong dimensions": (b"2 3\na 1 2\nb 3 4\n", r"v:2: 'a' has 2 numbers, not 3 as the header says"),
    "enormous dimensions": (b"1 99999999999\na 1 2\n", r"v:2: 'a' has 2 numbers, not 99999999999"),
    "no number": (b"a 1 2\nb 3 x\n", r"v:2: 'x' in the vector of 'b' is not a number"),
    "thousands": (b"a 1 2\nb 3 1_000\n", r"v:2: '1_000' in the vector of 'b' is not a number"),
    "NaN": (b"a 1 2\nb 3 nan\n", r"v:2: the vector of 'b' has NaN or infinity in it"),
    "infinity": (b"2 2\na 1 2\nb 3 -inf\n", r"v:3: the vector of 'b' has NaN or infinity in it"),
    "beyond float32": (b"a 1 2\nb 3 1e39\n", r"v:2: the vector of 'b' has NaN or infinity in it"),
    "twice": (b"3 2\na 1 2\nb 3 4\na 5 6\n", r"v:4: the word 'a' is in line 2 too: a word has one vector"),
    "empty line": (b"a 1 2\n\nb 3 4\n", r"v:3: an empty line before it"),
    "no word": (b"a 1 2\n 3 4\n", r"v:2: '3' has 1 number, not 2"),
    "not UTF-8": (b"a 1 2\n\xe9t\xe9 3 4\n", r"v:2: the word '.t.' is not UTF-8"),
    "later short row": (LATER + b"x 1\n", r"v:101: 'x' has 1 number, not 2"),
    "later NaN": (LATER + b"x 1 nan\n", r"v:101: the vector of 'x' has NaN"),
}
BINARY = {
    "empty": (b"", r"v: is empty: word vectors begin with a line of the counts"),
    "no header": (entry(b"a", 1, 2), r"v:1: .* is not a header"),
    "cut in a vector": (b"2 2\n" + entry(b"a", 1, 2) + b"b " + b"123", r"v: ends in word 2 of the 2 .* cut off"),
    "cut after a word": (b"2 2\n" + entry(b"a", 1, 2), r"v: ends in word 2 of the 2"),
    "promises too few": (b"1 2\n" + entry(b"a", 1, 2) + entry(b"b", 3, 4), r"v: has data after the 1 words"),
    "NaN": (b"1 2\n" + entry(b"a", 1, float("nan")), r"v: the vector of 'a' \(word 1\) has NaN"),
    "twice": (b"2 1\n" + entry(b"a", 1) + entry(b"a", 2), r"v: the word 'a' is both word 1 and word 2"),
    "enormous": (
        b"99999999999999 99999999999999\n" + entry(b"a", 1),
        r"v: ends in word 1 of the 99999999999999 .* cut off",
    ),
    "not UTF-8": (b"1 1\n" + entry(b"\xe9", 1), r"v: word 1, '\\\\xe9', is not UTF-8"),
    "empty word": (b"1 1\n" + entry(b"", 1), r"v: word 1 is empty"),
    "no space": (b"1 1\n" + b"x" * 70000, r"v: no space within 65536 bytes after word 0"),
}


@pytest.mark.parametrize(
    ("format", "content", "message"),
    [("auto", *case) for case in TEXT.values()] + [("binary", *case) for case in BINARY.values()],
    ids=[*TEXT, *(f"binary, {name}" for name in BINARY)],
)
def test_text_and_binary(format: str, content: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / "v").write_bytes(content)
    with pytest.raises(WordVectorsError, match=message):
        read_vectors(tmp_path / "v", format=format)


def test_every_cut_of_a_binary_file_is_refused(tmp_path: Path) -> None:
    whole = b"2 2\n" + entry(b"a", 1, 2) + entry(b"bc", 3, 4)
    for end in range(len(whole) - 1):  # the last newline may be missing
        (tmp_path / "v").write_bytes(whole[:end])
        with pytest.raises(WordVectorsError):
            read_vectors(tmp_path / "v", format="binary")


NPY: dict[str, tuple[np.ndarray | bytes, bytes | None, str]] = {
    "no vocabulary": (
        np.ones((2, 2)),
        None,
        r"no words at .*v\.vocab: this file must hold the words of v",
    ),
    "other count": (np.ones((2, 2)), b"a\n", r"v\.vocab: 1 words for the 2 vectors of v\.npy"),
    "vector": (np.ones(2), b"a\nb\n", r"v\.npy: the array is \(2,\): it must hold floats \[words, dimensions\]"),
    "integers": (np.ones((2, 2), int), b"a\nb\n", r"v\.npy: the array is .* it must hold floats"),
    "twice": (np.ones((2, 2)), b"a\na\n", r"v\.vocab:2: the word 'a' is in line 1 too"),
    "empty word": (np.ones((2, 2)), b"a\n\n", r"v\.vocab:2: is empty"),
    "not UTF-8": (np.ones((2, 2)), b"a\n\xff\n", r"v\.vocab:2: byte 0xff is not UTF-8"),
    "NaN": (np.full((2, 2), np.nan), b"a\nb\n", r"v\.npy: the vector of 'a' \(row 0\) has NaN"),
    "beyond float32": (np.full((2, 2), 1e39), b"a\nb\n", r"v\.npy: the vector of 'a' \(row 0\) has NaN or infinity"),
    "cut off": (npy(np.ones((2, 2)))[:-3], b"a\nb\n", r"v\.npy: cannot be read as \.npy"),
    "pickle": (np.array([["a", {}]], object), b"a\n", r"v\.npy: cannot be read as \.npy"),
}


@pytest.mark.parametrize(("array", "words", "message"), NPY.values(), ids=NPY)
def test_npy(array: np.ndarray | bytes, words: bytes | None, message: str, tmp_path: Path) -> None:
    (tmp_path / "v.npy").write_bytes(array if isinstance(array, bytes) else npy(array))
    if words is not None:
        (tmp_path / "v.vocab").write_bytes(words)
    with pytest.raises(WordVectorsError, match=message):
        read_vectors(tmp_path / "v.npy")


def test_paths(tmp_path: Path) -> None:
    with pytest.raises(WordVectorsNotFoundError, match=r"no word vectors at .*gone"):
        read_vectors(tmp_path / "gone")
    with pytest.raises(WordVectorsError, match="is a folder"):
        read_vectors(tmp_path)
    (tmp_path / "v.gz").write_bytes(gzip.compress(LATER)[:-20])
    with pytest.raises(WordVectorsError, match=r"v\.gz: the gzip data end too early"):
        read_vectors(tmp_path / "v.gz")
    with pytest.raises(StorageError, match=r"the folder .*none does not exist"):
        write_vectors(WordVectors(("a",), np.ones((1, 1))), tmp_path / "none" / "v.txt")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
def test_pipes_are_not_waited_for(tmp_path: Path) -> None:
    for name in ("v.txt", "v.npy", "similarity.txt"):
        os.mkfifo(tmp_path / name)
    for call in (
        lambda: read_vectors(tmp_path / "v.txt"),
        lambda: read_vectors(tmp_path / "v.npy", format="npy"),
        lambda: open_vector_table(tmp_path / "v.txt"),
        lambda: read_benchmarks(tmp_path / "similarity.txt"),
    ):
        with pytest.raises((WordVectorsError, BenchmarkError), match=r"a pipe or device|no benchmark in it"):
            call()


@pytest.mark.slow
def test_a_benchmark_that_decompresses_to_gigabytes_is_refused(tmp_path: Path) -> None:
    (tmp_path / "similarity").mkdir()
    (tmp_path / "similarity" / "s.gz").write_bytes(gzip.compress(b"a b 1\n" * 2**24, 1))
    with pytest.raises(BenchmarkError, match=r"s\.gz: more than 67,108,864 bytes, too many for a benchmark"):
        read_benchmarks(tmp_path)


ONE = WordVectors(("a",), np.ones((1, 1)))


def two(word: str) -> WordVectors:
    return WordVectors(("a", word), np.ones((2, 1)))


OPTIONS: dict[str, tuple[Callable[[Path], object], str]] = {
    "format": (lambda path: read_vectors(path, format="csv"), "unknown format 'csv'; allowed are auto, text"),
    "limit": (lambda path: read_vectors(path, limit=0), "limit 0 is not allowed: give 1 or more"),
    "compressed": (lambda path: write_vectors(ONE, path.with_suffix(".gz")), r"leave \.gz out"),
    "npy suffix": (lambda path: write_vectors(ONE, path, format="npy"), r"ends in \.npy"),
    "newline": (lambda path: write_vectors(two("b\nc"), path), r"'b\\nc' cannot be written"),
    "surrogate": (lambda path: write_vectors(two("\ud800"), path), r"'\\ud800' cannot be written"),
    "counts": (lambda path: WordVectors(("a",), np.ones((2, 1))), "1 words and 2 vectors"),
    "shape": (lambda path: WordVectors(("a",), np.ones(1)), r"shape \(1,\)"),
    "twice": (lambda path: two("a"), "'a' is given twice, at 0 and at 1"),
    "NaN": (lambda path: WordVectors(("a",), np.full((1, 1), np.nan)), r"'a' \(row 0\) has NaN"),
    "empty word": (lambda path: WordVectors(("",), np.ones((1, 1))), "word 0 is ''"),
    "nothing": (lambda path: WordVectors((), np.ones((0, 3))), r"shape \(0, 3\)"),
}


@pytest.mark.parametrize(("act", "message"), OPTIONS.values(), ids=OPTIONS)
def test_arguments(act: Callable[[Path], object], message: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidValueError, match=message):
        act(tmp_path / "v")
    assert list(tmp_path.iterdir()) == []

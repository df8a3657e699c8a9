"""What a corpus holds cannot steer the terminal."""

from __future__ import annotations

import json
import re

import pytest

from tests.cli.conftest import Work

STEERING = ["\x1b]0;pwned\x07", "b\x9b31mad", "\u202etxet", "\x1b[2J"]
CONTROL = re.compile("[\0-\x09\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")


@pytest.mark.parametrize(
    "command",
    [
        "extract a.jsonl hostile.zarr --model random:4 --dry-run",
        "extract a.jsonl hostile.zarr --model random:4 --json",
        "info hostile.zarr",
        "info hostile.zarr --json",
        "lookup hostile.zarr bank",
        "lookup hostile.zarr bank --json",
        "neighbors hostile.zarr --row 0 --layers 0",
        "neighbors hostile.zarr bank --layers 0",
        "senses hostile.zarr bank --label tag",
        "sql hostile.zarr select\u00a0*\u00a0from\u00a0occurrences",
        "info \x1b]0;gone\x07.zarr",
        "lookup hostile.zarr \x1b[2J",
        "info --\x1b[2J",
    ],
)
def test_nothing_that_is_printed_steers_the_terminal(work: Work, command: str) -> None:
    words = ["the", "bank", *STEERING]
    row = {"text": words, "tag": [word[::-1] for word in words], "au\x1bthor": STEERING[0]}
    work.write("a.jsonl", "".join(json.dumps(row) + "\n" for _ in range(30)))
    made = work.run(*["extract", "a.jsonl", "hostile.zarr", "--model", "random:4"])
    assert (made.status, "\\x1b]0;pwned\\x07" in made.out) == (0, True), made.err
    ran = work.run(*(part.replace("\u00a0", " ") for part in command.split(" ")))
    for printed in (made.out, made.err, ran.out, ran.err):
        assert not CONTROL.search(printed), printed
    if not CONTROL.search(command):
        assert ran.status == 0, ran.err
    if command == "lookup hostile.zarr bank --json":
        assert json.loads(ran.out)[0]["text"] == " ".join(words)

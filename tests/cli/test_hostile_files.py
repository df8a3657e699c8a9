"""Commands that are given files that would run code: none runs, and an error is one line."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import Work
from tests.test_hostile_readers import HOSTILE, MARKER


@pytest.mark.parametrize(
    "command",
    [
        "neighbors store.zarr --batch FILE.npy",
        "neighbors store.zarr --batch FILE.txt",
        "neighbors FILE.bin bank",
        "evaluate FILE.txt --benchmarks .",
        "train-vectors corpus.txt out.txt --config FILE.toml",
        "label store.zarr --label upos --test FILE.txt",
        "plan corpus.txt --model FILE.kv",
        "plan FILE.txt --model random:4",
        "lookup FILE.h5 bank",
        "verify FILE.h5",
    ],
)
def test_no_command_runs_the_code_of_a_file(command: str, work: Work) -> None:
    for number, content in enumerate(HOSTILE.values()):
        arguments = command.replace("FILE", f"f{number}").split()
        work.write(next(name for name in arguments if name.startswith(f"f{number}.")), content)
        ran = work.run(*arguments)
        assert "Traceback" not in ran.err
        assert "EMBSTORE_DEBUG" not in ran.err, "an error that was not foreseen"
        assert ran.err.count("\n") <= 1, ran.err
        assert not Path(MARKER).exists()

"""How what is typed becomes values: layers, seeds, windows, and the files of settings."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest

import embstore as es
from embstore.arguments import Range, checked
from embstore.errors import InvalidValueError
from embstore_cli.config import Config
from embstore_cli.options import layers_of, seeds_of
from tests.cli.conftest import Work, settings


@checked
def measure(
    data: str,
    *,
    n: Annotated[int, Range(1, 9)] = 2,
    rate: float = 0.5,
    windows: tuple[int | None, ...] = (0, None),
    kind: Literal["a", "b"] = "a",
    most: int | None = None,
    file: Path | None = None,
) -> None:
    """Measure something.

    Parameters
    ----------
    data : str
        What is measured.
    n, most : int
        How many are taken,
        and how many at most.

    Returns
    -------
    None
    """


@dataclass(frozen=True)
class Other:
    """Settings of something else; `n` of this is hidden by that of `measure`."""

    n: str = ""
    deep: bool = False


CONFIG = Config(lambda: [measure, Other, {"own": str}], "n", "rate", "windows", "kind", "most", "file", "deep")


def read(folder: Path, text: str) -> dict[str, Any]:
    (folder / "a.toml").write_text(text)
    return CONFIG.read(folder / "a.toml")


def test_layers_are_numbers_ranges_and_the_last() -> None:
    assert layers_of("all") is None
    for text in ("0,3,6-8,last", "-1, 0", "0-999999999"):
        assert layers_of(text) == text
    assert seeds_of("0, 2,1") == (0, 2, 1)
    for text in ("3-1", "first", "", "1-", "--1", "1" * 5000, "٣"):
        with pytest.raises(InvalidValueError, match="--layers"):
            layers_of(text)


def test_a_file_sets_values_of_the_types_of_arguments(tmp_path: Path) -> None:
    assert CONFIG.read(None) == {}
    found = read(tmp_path, 'n = 3\nrate = 1\nwindows = [4, "none"]\nkind = "b"\nmost = "none"\nfile = "x"\ndeep = true')
    assert found == {
        "n": 3,
        "rate": 1.0,
        "windows": (4, None),
        "kind": "b",
        "most": None,
        "file": Path("x"),
        "deep": True,
    }
    assert type(found["rate"]) is float


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("n = 1.5", "n 1.5 is not allowed: give a whole number"),
        ("n = 10", "n 10 is not allowed: give 1 to 9"),
        ('kind = "c"', "unknown kind 'c'; allowed are a, b"),
        ("data = 1", "data is not a setting: choose n, rate"),
        ("n = ", "is not TOML"),
        ("n = 1" + "0" * 5000, "is not"),
    ],
)
def test_a_wrong_file_is_refused_in_one_line(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidValueError, match=message) as refused:
        read(tmp_path, text)
    assert str(refused.value).startswith(f"--config {tmp_path / 'a.toml'}")


def test_the_file_that_is_written_explains_each_setting() -> None:
    assert CONFIG.toml() == (
        "# How many are taken, and how many at most.\nn = 2\nrate = 0.5\n"
        'windows = [0, "none"]\nkind = "a"\n'
        '# How many are taken, and how many at most.\n# most =  # integer or "none"\n'
        '# file =  # string or "none"\ndeep = false\n# own =  # string\n'
    )


def test_a_command_writes_its_settings_and_reads_them_back(work: Work) -> None:
    ran = work.does("extract", "--write-config")
    work.write("a.toml", ran.out)
    dry = work.run("extract", "corpus.txt", "x.zarr", "--model", "model", "--config", "a.toml", "--dry-run")
    assert dry.status == 0
    work.refuses("extract corpus.txt x.zarr -m model --config none.toml", "--config none.toml cannot be read")
    work.refuses(" ".join(("extract corpus.txt x.zarr -m model", *settings(unit="page"))), "unknown unit 'page'")


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        ("lookup store.zarr bank --threads 2", "--threads goes before the command: embstore --threads 4 lookup"),
        ("info store.zarr --memory 1GiB", "--memory goes before the command"),
        ("extract corpus.txt x.zarr -m model --seed 2", "--seed is a setting: write seed = VALUE (text in quotes)"),
        ("--memory much info store.zarr", "memory 'much'"),
    ],
)
def test_an_option_at_a_wrong_place_is_named_with_its_place(typed: str, message: str, work: Work) -> None:
    work.refuses(typed, message)


def test_what_is_exported_is_checked_whatever_its_form(work: Work) -> None:
    shard = work / "store.zarr" / "hidden_states" / "c" / "0" / "0" / "0"
    data = shard.read_bytes()
    shard.write_bytes(bytes([data[0] ^ 1]) + data[1:])
    work.refuses("export store.zarr new.parquet", "the rows of partition 0 of store.zarr were changed", status=1)


@pytest.mark.parametrize("kind", ["context", "attention"])
def test_a_window_is_recorded_and_named_in_the_plan(work: Work, kind: str) -> None:
    ran = work.run(*f"extract corpus.txt y.h5 --model model --layers 1 --verbose --{kind}-window 3".split())
    assert re.search(rf"{kind} window +3\n", ran.out)
    assert es.open(work / "y.h5").metadata.extraction[f"{kind}_window"] == 3

"""Any value for any argument of a public function or a command works, or ends in one line of embstore."""

from __future__ import annotations

import contextlib
import inspect
import io
import itertools
import os
import shutil
import sys
import traceback
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import embstore as es
from embstore.errors import EmbstoreError, InvalidValueError
from tests.documents import commands
from tests.hostile.defects import limited
from tests.models import tiny
from tests.resilience.conftest import campaign
from tests.store_making import make_store

TEXTS = [
    "", " ", "\x00", "\udcff", "\ud800", "x" * 5000, "../..", "a\nb", "%s{}", "nan", "=", ",", "１", "0x1", "1e400",
]  # fmt: skip
NUMBERS = [-1, 0, 10**20, -(10**20), float("nan"), float("inf"), 1.5, int("9" * 4000)]
PATHS = ["gone/none", "folder", "corpus.txt", "loop", "empty", "store.zarr/zarr.json"]
VALUES: list[Any] = [
    *TEXTS, *NUMBERS, *PATHS, b"x", True, None, [], [None], {}, {"a": 1}, object(), object, len, {1, "a"},
    Path("folder"),
    np.zeros((2, 2)), np.array("x"), [10**20], [[1, 2], [3]], [float("nan")], (3, 1), "0-99999999999", "word == 'the'",
]  # fmt: skip
WORDS = [*map(str, NUMBERS), *TEXTS, *PATHS, "tpu", "cuda:99", "first", "3-1", "0,,1", "--1"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the calls read; those of one test are in a copy of it."""
    folder = tmp_path_factory.mktemp("files")
    make_store(folder / "store.zarr", sentences=12)
    tiny.save("bert", folder / "model")
    (folder / "corpus.txt").write_text("the old bank lends money\na man sat on the bank\n")
    (folder / "vectors.txt").write_text("bank 1 2\nriver 3 4\n")
    (folder / "empty").write_text("")
    (folder / "folder").mkdir()
    (folder / "loop").symlink_to("loop")
    return folder


def opened() -> es.Store:
    return es.open("store.zarr")


NUMBER = itertools.count()
# What makes what fits the required arguments of public functions, by their names.
POOL: dict[str, Callable[[], Any]] = {
    **dict.fromkeys(("data", "store"), opened),
    **dict.fromkeys(("path", "source", "corpus"), lambda: "corpus.txt"),
    **dict.fromkeys(("word", "query"), lambda: "bank"),
    "stores": lambda: ["store.zarr"], "model": lambda: es.load_encoder("random:4"), "out": lambda: f"new{next(NUMBER)}",
    "words": lambda: ("a", "b"), "vectors": lambda: np.eye(2), "label": lambda: "upos", "reducers": dict,
    "selection": lambda: opened().select(layers=0), "sentence": lambda: 0, "k": lambda: 2, "n_dimensions": lambda: 4,
    "frame": lambda: opened().table(), "name": lambda: "x",
}  # fmt: skip


def functions() -> dict[str, Callable[..., Any]]:
    """Every public function and class that is `checked`, by its name, but those that serve or compute for long."""
    found: dict[str, Callable[..., Any]] = {}
    for name in es.__all__:
        value = getattr(es, name)
        listed = getattr(value, "__all__", ()) if isinstance(value, ModuleType) else ()
        found |= {f"{name}.{inner}": getattr(value, inner) for inner in listed} or {name: value}
    skipped = ("explore", "errors.", "executors.", "config", "demo")
    return {name: value for name, value in found.items() if is_checked(value) and not name.startswith(skipped)}


def is_checked(value: Any) -> bool:
    return hasattr(value.__init__ if isinstance(value, type) else value, "__wrapped__")


NOT_CALLED = {"self", "args", "options", "progress", "kwargs", "changes"}


@pytest.mark.parametrize("name", functions())
def test_functions(name: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    function, rng = functions()[name], np.random.default_rng(len(name))
    parameters = {key: each for key, each in inspect.signature(function).parameters.items() if key not in NOT_CALLED}
    needed = {key for key, each in parameters.items() if each.default is inspect._empty}
    monkeypatch.chdir(shutil.copytree(folder, tmp_path / "files", symlinks=True))
    wrong = []
    for parameter in parameters:
        if not needed <= {*POOL, parameter}:
            continue
        for value in rng.permutation(len(VALUES))[: campaign(len(VALUES), 4)].tolist():
            try:
                given = {key: POOL[key]() for key in needed - {parameter}}
                with limited(), es.config(progress=False, device="cpu"):
                    function(**given, **{parameter: VALUES[value]})
            except EmbstoreError as error:
                if "\n" in str(error):
                    wrong.append(f"{parameter}={VALUES[value]!r:.60}: {error}")
            except Exception:
                wrong.append(f"{parameter}={VALUES[value]!r:.60}: {traceback.format_exc()[-700:]}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    "call",
    [
        lambda store: store.site([0]),
        lambda store: es.open("store.zarr", site=np.zeros(2)),  # type: ignore[arg-type]
        lambda store: store.select().to_arrow(columns=1),
        lambda store: store.select().vectors(dtype=np.int8),
        lambda store: es.static_vectors(store).rows_of("bank"),
        lambda store: es.static_vectors(store).row_of([]),
        lambda store: es.static_vectors(store).take([0.5]),
        lambda store: es.static_vectors(store).take(0),  # type: ignore[arg-type]
        lambda store: es.senses(store, "bank", n_clusters=2).save([0]),  # type: ignore[arg-type]
        lambda store: es.senses(store, "bank", n_clusters=2).nearest(-1),
        lambda store: es.analysis.encode_word(store, str, layers=[0]),  # type: ignore[arg-type]
        lambda store: es.models.find_model([store]),  # type: ignore[arg-type]
        lambda store: es.probes.summary("x"),  # type: ignore[arg-type]
        lambda store: es.plot.colormap("rainbows"),
        lambda store: es.plot.geometry_figure({}, published={"a": store.table()}),
    ],
)
def test_values_of_wrong_types(call: Any, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    with pytest.raises(InvalidValueError, match=r"^[^\n]+$"):
        list(call(es.open("store.zarr")))


@pytest.mark.parametrize("suffix", [".zarr", ".h5"])
def test_stores_have_names_of_any_bytes(suffix: str, folder: Path, tmp_path: Path) -> None:
    path = str(tmp_path / os.fsdecode(b"caf\xe9")) + suffix
    es.export(str(folder / "store.zarr"), path)
    assert es.open(path).n_rows == es.open(Path(path)).n_rows == es.open(folder / "store.zarr").n_rows


@cache
def leaves() -> dict[str, Any]:
    """Every command by its words, but those that serve, measure or download."""
    skipped = ("demo", "explore", "reproduce", "publish")
    found = {name.removeprefix("embstore "): each for name, each in commands().items() if not hasattr(each, "commands")}
    return {name: each for name, each in found.items() if not name.startswith(skipped)}


ARGUMENTS = {"corpus": "corpus.txt", "data": "store.zarr", "vectors": "vectors.txt", "out": "new.zarr", "word": "bank"}
REQUIRED = {
    "--model": "model", "--label": "upos", "--train": "corpus.txt", "--test": "corpus.txt", "--dev": "corpus.txt",
}  # fmt: skip


def run(words: list[str], monkeypatch: pytest.MonkeyPatch) -> tuple[int, str]:
    """Run `embstore` in this process; returns its exit status and all that it printed."""
    from embstore_cli.main import run

    monkeypatch.setattr(sys, "argv", ["embstore", *words])
    printed = io.TextIOWrapper(io.BytesIO(), "utf-8", errors="backslashreplace")
    status: Any = 0
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed), limited():
        try:
            run()
        except SystemExit as ended:
            status = ended.code or 0
    printed.flush()
    return int(status), printed.buffer.getvalue().decode("utf-8", "replace")  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", leaves())
@pytest.mark.quick(8)
def test_commands(name: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    command, rng, wrong = leaves()[name], np.random.default_rng(len(name)), []
    arguments = [each for each in command.params if each.param_type_name == "argument"]
    plain = [ARGUMENTS.get(each.name, "store.zarr") for each in arguments]
    options = [each for each in command.params if each.param_type_name == "option" and not each.is_flag]
    plain += [f"{each.opts[-1]}={REQUIRED.get(each.opts[-1], 'x')}" for each in options if each.required]
    lines = [[*plain[:place], word, *plain[place + 1 :]] for place in range(len(arguments)) for word in WORDS]
    lines += [[*plain, f"{max(each.opts, key=len)}={word}"] for each in options for word in WORDS]
    for number in rng.permutation(len(lines))[: campaign(len(lines), 6)].tolist():
        work = tmp_path / str(number)
        shutil.copytree(folder, work, symlinks=True)
        monkeypatch.chdir(work)
        status, printed = run([*name.split(), *lines[number]], monkeypatch)
        is_line = any(line.startswith("embstore: ") for line in printed.splitlines())
        if (
            status not in (0, 1, 2)
            or "Traceback" in printed
            or "EMBSTORE_DEBUG" in printed
            or (status == 2 and not is_line)
        ):
            wrong.append(f"{lines[number]!r:.200} ends with {status}: {printed[-500:]}")
    assert not wrong, "\n".join(wrong)

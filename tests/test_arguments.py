"""Arguments and settings that do not fit are refused in one line, before any work; the exit status of errors."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from threading import Event, Thread
from typing import Any, Literal

import numpy as np
import pytest
from numpy.typing import ArrayLike

import embstore as es
from embstore import errors
from embstore.arguments import Positive, Share, as_matrix, checked
from embstore.config import Settings, config, settings
from embstore.errors import InvalidValueError
from tests.store_making import make_store


@checked
def example(
    count: int = 1,
    share: float = 0.5,
    name: str | None = None,
    words: str | Sequence[str] = (),
    rows: int | Sequence[int] | None = None,
    labels: Mapping[str, str | Iterable[str]] | None = None,
    path: str | Path = "x",
    kind: Literal["a", "b"] = "a",
    deep: bool = False,
    vectors: ArrayLike | None = None,
    call: Callable[[int], int] | None = None,
    k: Positive = 1,
    part: Share = 0.5,
) -> str:
    """Nothing but arguments."""
    return "ran"


@pytest.mark.parametrize(
    "given",
    [
        {"count": np.int64(3), "share": 1, "deep": np.bool_(True)},
        {"words": ["a", "b"], "rows": np.arange(3), "labels": {"upos": ["NOUN"], "class": "x"}},
        {"words": np.array(["a"]), "rows": [1, 2], "path": Path("x"), "vectors": [[1, [2]]], "call": abs},
        {"rows": 2**63 - 1, "name": None, "kind": "b", "k": 3, "part": 0},
    ],
)
def test_what_fits_is_allowed(given: dict[str, Any]) -> None:
    assert example(**given) == "ran"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"count": "3"}, "count '3' is not allowed: give a whole number"),
        ({"count": True}, "count True is not allowed"),
        ({"count": 2.0}, "count 2.0 is not allowed"),
        ({"count": 2**63}, "count 9223372036854775808 is not allowed: give a number within 64 bits"),
        ({"count": -(2**64)}, "give a number within 64 bits"),
        ({"share": "half"}, "share 'half' is not allowed: give a number"),
        ({"name": b"x"}, "name b'x' is not allowed: give a text or None"),
        ({"name": "\ud800"}, "it holds half a surrogate pair"),
        ({"name": "Caf\udcc3\udca9"}, "it holds bytes beyond this locale: set PYTHONUTF8=1"),
        ({"words": 3}, "words 3 is not allowed: give a text or Sequence"),
        ({"words": ["a", 3]}, "a member of words 3 is not allowed: give a text"),
        ({"words": np.ones(2)}, "a member of words 1.0 is not allowed"),
        ({"words": np.array("a")}, "words array.* is not allowed"),
        ({"words": {"a": 1}}, "words .* is not allowed"),
        ({"rows": [0.5]}, "a member of rows 0.5 is not allowed: give a whole number"),
        ({"labels": "upos"}, "labels 'upos' is not allowed: give Mapping or None"),
        ({"labels": {"upos": 3}}, r"labels\['upos'\] 3 is not allowed"),
        ({"labels": {3: "x"}}, "a key of labels 3 is not allowed"),
        ({"path": "a\0b"}, "is not a path: it holds NUL"),
        ({"path": ""}, "is not a path: it is empty"),
        ({"path": None}, "path None is not allowed: give a text or a path"),
        ({"deep": 1}, "deep 1 is not allowed: give True or False"),
        ({"call": 3}, "call 3 is not allowed: give a function or None"),
        ({"k": 0}, "^k 0 is not allowed: give 1 or more$"),
        ({"k": "2"}, "^k '2' is not allowed: give a whole number$"),
        ({"part": 1.5}, "^part 1.5 is not allowed: give 0 to 1$"),
        ({"part": float("nan")}, "^part nan is not allowed: give 0 to 1$"),
        ({"kind": "c"}, "^unknown kind 'c'; allowed are a, b$"),
        ({"kind": 3}, "^kind 3 is not allowed: give 'a' or 'b'$"),
    ],
)
def test_what_does_not_fit_is_one_line(given: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidValueError, match=message):
        example(**given)


def test_the_function_stays_what_it_was() -> None:
    assert (example.__name__, example.__doc__) == ("example", "Nothing but arguments.")
    assert list(inspect.signature(example).parameters)[:2] == ["count", "share"]
    with pytest.raises(TypeError, match=r"example.*unexpected keyword argument 'cuont'"):
        example(cuont=3)  # type: ignore[call-arg]
    with pytest.raises(InvalidValueError, match=r"^plan 'a\.txt' is not allowed: give Plan, which es\.plan returns$"):
        es.extract("a.txt", "a.zarr")  # type: ignore[arg-type]


def test_matrices() -> None:
    assert as_matrix("x", [[1, 2]]).shape == as_matrix("x", [1, 2], single=True).shape == (1, 2)
    for bad in ([1, 2], [[1, 2], [3]], "x", None, [["a"]], np.ones((0, 3)), np.ones((1, 1, 1)), {}, object()):
        with pytest.raises(InvalidValueError, match=r"x of shape .* are not allowed: give numbers \[n, feature\]"):
            as_matrix("x", bad)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("function", "options"),
    [
        (es.geometry, {"metrics": "anisotropy"}),
        (es.analysis.knn_labels, {"label": "upos"}),
        (es.analysis.linear_cka, {}),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_list_of_layers_may_name_the_last(function: Any, options: dict[str, Any], tmp_path: Path) -> None:
    store = make_store(tmp_path / "s.zarr", sentences=12).store
    found = function(store, layers=[0, "last"], **options)
    layers = found.layers if hasattr(found, "layers") else getattr(found, "frame", found)["layer"].unique()
    assert set(layers) == {0, store.layers[-1]}


FAILURES = {"EmbstoreError", *(f"{name}Error" for name in ("DeviceMemory", "Executor", "MissingRows", "NonFinite"))}
FAILURES |= {"StorageError", "StoreBusyError", "StoreDamagedError"}


def test_each_exception_ends_the_command_with_its_status() -> None:
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, Exception)]
    ends = {kind.__name__: kind.exit_status for kind in kinds if issubclass(kind, errors.EmbstoreError)}
    assert {name for name, status in ends.items() if status == 1} == FAILURES
    assert set(ends.values()) == {1, 2}


def test_a_bool_is_no_whole_number() -> None:
    with pytest.raises(errors.InvalidValueError, match="x True is not allowed: give 0 or more"):
        errors.check_whole("x", True, 0)


def test_a_block_restores_what_held_before() -> None:
    assert settings() == Settings()
    with config(threads=2, memory="1GiB") as inside:
        assert inside == settings() == Settings(threads=2, memory="1GiB")
        assert inside.nbytes == 2**30
        with config(device="cpu"):
            assert settings() == Settings(device="cpu", threads=2, memory="1GiB")
        assert settings() == inside
    assert settings() == Settings()
    with config():  # without a block they stay
        config(threads=3)
        assert settings().threads == 3
    assert settings() == Settings()


def test_threads_do_not_change_the_settings_of_each_other() -> None:
    first, second = Event(), Event()
    seen = []

    def block(threads: int, mine: Event, other: Event) -> None:
        with config(threads=threads):
            mine.set()
            other.wait(10)
            seen.append((threads, settings().threads))

    workers = [Thread(target=block, args=(2, first, second)), Thread(target=block, args=(3, second, first))]
    with config(memory="1GiB"):
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        assert settings() == Settings(memory="1GiB")
    assert sorted(seen) == [(2, 2), (3, 3)]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"thread": 2}, "unknown setting 'thread'; allowed are device, threads, memory, progress"),
        ({"threads": 0}, "threads 0 is not allowed: give 1 to 1,024"),
        ({"memory": "much"}, "memory 'much' is not a size: give bytes, or a number with a unit such as 500MB or 2GiB"),
        ({"device": 1}, "device 1 is not allowed: give a name, such as cpu or cuda:0"),
        ({"progress": "yes"}, "progress 'yes' is not allowed: give True, False or a function"),
    ],
)
def test_a_wrong_setting_is_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidValueError) as caught:
        config(**changes)
    assert (str(caught.value), settings()) == (message, Settings())

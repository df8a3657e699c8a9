"""Values of wrong types within corpora and the options of extraction: one line of an error, or accepted."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import embstore as es
from embstore.errors import EmbstoreError
from embstore.extraction import plan_windows
from tests.extraction.fake import FakeEncoder

WRONG = {
    "none": None,
    "true": True,
    "-1": -1,
    "2.5": 2.5,
    "nan": float("nan"),
    "bytes": b"x",
    "nested list": [[3]],
    "list of none": [None],
    "dictionary": {"a": 1},
    "object": object(),
    "array": np.array([[1], [2]]),
    "surrogate": "\ud800",
    "nul": "a\0b",
    "huge": 10**30,
    "endless": 10**5000,
    "empty": (),
}
SENTENCES = [["a", "b"]]


def calls(value: Any, folder: Path) -> Iterator[tuple[str, Callable[[], object]]]:
    """Yield calls that take the value as one of their arguments."""

    def call(name: str, function: Callable[..., Any], *args: Any, **options: Any) -> tuple[str, Callable[[], object]]:
        return name, lambda: function(*args, **options)

    def read(*args: Any, **options: Any) -> object:
        return list(es.open_corpus(*args, **options))

    def planned(**options: Any) -> es.Plan:
        return es.plan(**{"corpus": SENTENCES, "model": FakeEncoder(), "calibrate": False, "progress": False} | options)

    def swept(**options: Any) -> object:
        return plan_windows(SENTENCES, model=FakeEncoder(), calibrate=False, progress=False, **options)

    (folder / "a.txt").write_text("a bank\n")
    (folder / "a.conll").write_text("a O\n")
    yield call("source", read, value)
    yield call("item", read, [value])
    for name in ("format", "split", "normalize", "columns", "encoding"):
        yield call(name, read, folder / ("a.conll" if name == "columns" else "a.txt"), **{name: value})
    for name, given in {
        "words": (value,),
        "labels": (["a", "b"], value),
        "a column": (["a", "b"], {"x": value}),
        "a label": (["a", "b"], {"x": [value, None]}),
        "targets": (["a", "b"], {}, value),
        "a target": (["a", "b"], {}, [value]),
        "a bound": (["a", "b"], {}, [(0, value)]),
    }.items():
        yield call(f"sentence: {name}", read, [es.corpus.Sentence(*given)])
    for name in ("words", "labelled", "min_contexts", "max_contexts", "seed"):
        yield call(f"keep: {name}", es.Keep, **{name: value})
    yield call("keep: per", es.Keep, max_contexts=3, per=value)
    for name in es.ExtractionOptions.__dataclass_fields__:
        yield f"options: {name}", lambda name=name: planned(options=es.ExtractionOptions(**{name: value}))  # type: ignore[misc]
    for name in ("corpus", "model", "options", "device", "compute_dtype", "store", "progress"):
        yield call(f"plan: {name}", planned, **{name: value})
    for name in ("context_windows", "attention_windows"):
        yield call(name, swept, **{name: value})
        yield call(f"one of {name}", swept, **{name: [value]})
    yield call("workers", es.executors.Processes, -1 if value is None else value)


@pytest.mark.parametrize("kind", WRONG)
def test_a_value_of_a_wrong_type_is_one_line(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    wrong = []
    for name, act in calls(WRONG[kind], tmp_path):
        try:
            act()
        except EmbstoreError as error:
            if "\n" in str(error) or len(str(error)) > 400:
                wrong.append(f"{name}: {error}")
        except Exception as error:
            wrong.append(f"{name}: {type(error).__name__}: {error}")
    assert not wrong, "\n".join(wrong)

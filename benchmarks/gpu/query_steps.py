"""Steps of run.py over the store that it has written: geometry, exact neighbours, the bank of probes."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from setting import Setting, SkipError

import embstore as es

TINY_BANK = ("--layers", "2", "--classes", "2", "--width", "8", "--hidden", "8", "--batch", "16", "--steps", "2",
             "--looped", "1", "--square", "64", "--repeats", "1")  # fmt: skip
RELATIVE_ALLOWED = 1e-3


def different(found: NDArray[np.float64], right: NDArray[np.float64]) -> float:
    """The largest difference, relative to the value or to a hundredth of the largest one; NaN must be NaN in both."""
    if not np.array_equal(np.isnan(found), np.isnan(right)):
        return float("inf")
    scale = np.maximum(np.abs(right), 0.01 * np.nanmax(np.abs(right)))
    return float(np.nanmax(np.abs(found - right) / np.where(scale > 0, scale, 1)))


def geometry(setting: Setting) -> dict[str, Any]:
    """The cosines and spectra of words and sentences in every layer, on the GPU and on the CPU."""
    store = es.open(setting.need("store"))
    found = setting.found
    found |= {"rows": store.n_rows, "layers": len(store.layers)}
    tables = {}
    for device in dict.fromkeys((str(setting.device), "cpu")):
        call = partial(_kept, tables, device, partial(es.geometry, store, device=device))
        call()  # compiles and warms
        found[f"{device}_s"] = setting.timed(call)
    mine, cpu = tables[str(setting.device)], tables["cpu"]
    found["largest_relative_difference"] = different(mine["value"].to_numpy(), cpu["value"].to_numpy())
    if not found["largest_relative_difference"] <= RELATIVE_ALLOWED:
        raise ValueError(f"geometry on {setting.device} differs from the CPU's: {found}")
    return found


def neighbors(setting: Setting) -> dict[str, Any]:
    """The ten nearest of some occurrences among all, found exactly, on the GPU and on the CPU."""
    store = es.open(setting.need("store"))
    rng = np.random.default_rng(setting.seed)
    asked = np.sort(rng.choice(store.n_rows, min(setting.size.queries, store.n_rows), replace=False)).tolist()
    found = setting.found
    found |= {"rows": store.n_rows, "queries": len(asked), "k": 10}
    tables = {}
    for device in dict.fromkeys((str(setting.device), "cpu")):
        ask = partial(es.neighbors, store, occurrence=asked, layer=store.layers[-1], k=10, device=device)
        found[f"{device}_s"] = setting.best(partial(_kept, tables, device, ask))
    mine, cpu = (table["score"].to_numpy() for table in (tables[str(setting.device)], tables["cpu"]))
    found["largest_relative_difference"] = different(mine, cpu)
    if not found["largest_relative_difference"] <= RELATIVE_ALLOWED:
        raise ValueError(f"scores on {setting.device} differ from the CPU's: {found}")
    return found


def _kept(tables: dict[str, Any], name: str, call: Any) -> None:
    tables[name] = call()


def bank(setting: Setting) -> dict[str, Any]:
    """bank.py in a process of its own, so that one that takes too long can be ended."""
    out = setting.folder / "bank.json"
    options = TINY_BANK if setting.size.square < 1024 else ("--repeats", "2")
    command = [sys.executable, str(Path(__file__).with_name("bank.py")), "--device", str(setting.device),
               "--out", str(out), *options]  # fmt: skip
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=max(5.0, setting.left))
    except subprocess.TimeoutExpired:
        raise SkipError("the bank took longer than its share of the time") from None
    if done.returncode != 0:
        raise RuntimeError((done.stderr.strip().splitlines() or ["bank.py failed"])[-1])
    result: dict[str, Any] = json.loads(out.read_text())
    return {"found": result["found"], "targets": result["targets"]}

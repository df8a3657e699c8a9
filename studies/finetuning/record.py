"""The folder of a fine-tuned model: its record, and whether its training is finished or can be resumed."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import safe_open

from embstore.errors import InvalidValueError
from embstore.models.checkpoint import WEIGHTS, make_durable
from embstore.store.storage.files import fsync_folder, make_folders, read_json, replacing, storing
from embstore.store.storage.lock import ProcessLock

RECORD = "finetuning.json"
TRAINING = "training"  # the folder of an unfinished training, removed at its end
PLAN = "plan.json"
COMPARED = ("task", "weights", "tokenizer", "data", "settings")

Stage = Literal["new", "begun", "finished"]


def stage_of(out: Path) -> Stage:
    """Return how far the training in a folder is; raises InvalidValueError if the folder contains anything else."""
    if (out / RECORD).is_file():
        return "finished"
    if (out / TRAINING / PLAN).is_file():
        return "begun"
    if out.exists() and not out.is_dir():
        raise InvalidValueError(f"{out} is a file: give the folder that the model is to be written to")
    if out.is_dir() and any(path.name != TRAINING for path in out.iterdir()):
        raise InvalidValueError(
            f"the folder {out} contains something other than a fine-tuned model: choose another --out"
        )
    if not out.absolute().parent.is_dir():
        raise InvalidValueError(f"cannot make {out}: there is no folder {out.absolute().parent}")
    return "new"


def read_record(path: Path) -> dict[str, Any]:
    """Read a record or a plan; raises InvalidValueError for any other file."""
    try:
        record = read_json(path)
    except (OSError, ValueError) as error:
        raise InvalidValueError(f"{path} cannot be read ({error}): choose another --out") from None
    if not isinstance(record, dict) or any(name not in record for name in COMPARED):
        raise InvalidValueError(f"{path} is not a record of fine-tuning: choose another --out")
    return record


def require_same(out: Path, recorded: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    """Raise InvalidValueError, with the first difference, if a folder was made with other inputs or settings."""
    first, second = dict(_compared(recorded)), dict(_compared(wanted))
    for name in [*second, *first]:
        if first.get(name) != second.get(name):
            raise InvalidValueError(
                f"{out} was fine-tuned with {name} {_short(first.get(name))}, this command has "
                f"{_short(second.get(name))}: choose another --out, or use the recorded value"
            )


def _compared(plan: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield what must be the same, with its name: everything but paths and names of files and models."""
    yield "task", plan["task"]
    yield "the weights", plan["weights"]
    yield "the tokenizer", plan["tokenizer"]
    for split, data in plan["data"].items():
        yield f"{split} data", data["sha256"]
    for name, value in plan["settings"].items():
        yield name.replace("_", " "), value


def _short(value: object) -> str:
    text = "none" if value is None else str(value)
    return f"{text[:12]}..." if len(text) == 64 else text


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Write a file atomically and durably."""
    with replacing(path) as partial:
        partial.write_text(json.dumps(value, ensure_ascii=False, indent=2) + "\n", "utf-8")


def begin(out: Path, plan: Mapping[str, Any]) -> None:
    """Make the folder of a training that can be resumed after an interruption."""
    with storing(out):
        make_folders(out / TRAINING)
    write_json(out / TRAINING / PLAN, plan)


def lock_of(out: Path) -> ProcessLock:
    """Return the lock next to the folder, which one process that trains in it holds."""
    busy = f"another process is training {out}; wait until it ends, or stop it"
    return ProcessLock(out.absolute().with_name(f"{out.absolute().name}.lock"), busy)


def finish(out: Path, model: Path, record: Mapping[str, Any]) -> None:
    """Move the files of the folder `model` into `out`, then write the record, then remove the training."""
    with storing(out):
        make_durable(model)
        for path in sorted(model.iterdir()):
            os.replace(path, out / path.name)
        fsync_folder(out)
        write_json(out / RECORD, record)
        shutil.rmtree(out / TRAINING)


def last_checkpoint(training: Path) -> Path | None:
    """Return the newest complete checkpoint of an unfinished training; incomplete and damaged ones are removed."""
    found = sorted(training.glob("checkpoint-*"), key=lambda path: (len(path.name), path.name))
    while found and not _is_complete(found[-1]):
        shutil.rmtree(found.pop())
    return found[-1] if found else None


def _is_complete(checkpoint: Path) -> bool:
    """Return whether the files of a checkpoint can be read; a crash of the machine may have cut them short."""
    try:
        read_json(checkpoint / "trainer_state.json")
        with safe_open(checkpoint / WEIGHTS, "pt"):
            pass
        for name in ("optimizer.pt", "scheduler.pt"):
            torch.load(checkpoint / name, weights_only=True, mmap=True)
    except Exception:
        return False
    return True

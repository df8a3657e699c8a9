"""The performance of embstore on a GPU, measured in one call of under ten minutes; see README.md in this folder.

python benchmarks/gpu/run.py --out benchmarks/results/h100.json
python benchmarks/gpu/run.py --device cpu --tiny
"""

from __future__ import annotations

import argparse
import faulthandler
import gc
import json
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))
sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parent))

import torch
from extraction_steps import baselines, correctness, forward, means, rates, storing
from measure import Target, machine, table, targets_table, write_json
from model_steps import busy, decoder, devices, halving, lengths, probes, sanitizer, trace, zhao
from query_steps import bank, geometry, neighbors
from setting import ON_GPU, TINY, OverTimeError, Setting, SkipError, one_line

SECONDS = 540.0  # for the whole; with more, each step may take as many times longer
MIN_SECONDS = 5.0  # with less time left a step is not begun
GRACE, STUCK = 1.5, 30.0  # a step is stopped after 1.5 times its seconds, its process 30 s later
BROKEN = 4  # the exit status of a process that cannot go on


@dataclass(frozen=True)
class Step:
    """A measurement, and the seconds that it should take on a GPU."""

    name: str
    seconds: float
    run: Callable[[Setting], dict[str, Any]]


STEPS = (  # the first ones say most; later ones use what these have found
    Step("rates", 25, rates),
    Step("forward, base", 80, lambda setting: forward(setting, setting.base)),
    Step("storing, base", 60, lambda setting: storing(setting, setting.base)),
    Step("zhao", 5, zhao),
    Step("correctness", 60, correctness),
    Step("baselines", 50, lambda setting: baselines(setting, setting.base)),
    Step("sanitizer", 40, sanitizer),
    Step("busy", 20, busy),
    Step("lengths", 30, lengths),
    Step("decoder", 40, decoder),
    Step("forward, large", 40, lambda setting: forward(setting, setting.large)),
    Step("storing, large", 40, lambda setting: storing(setting, setting.large)),
    Step("means", 25, means),
    Step("trace", 20, trace),
    Step("bank", 60, bank),
    Step("neighbors", 30, neighbors),
    Step("geometry", 50, geometry),
    Step("halving", 20, halving),
    Step("probes", 40, probes),
    Step("devices", 60, devices),
)


class Broken(Exception):
    """The GPU answers no more in this process: the steps that are left need another one."""


def run_steps(setting: Setting, arguments: argparse.Namespace, result: dict[str, Any]) -> None:
    """Run the steps that have no result yet, in order, each within its own time; results are written as they come.

    Raises Broken after a step that has left the GPU unusable.
    """
    ends, scale = time.perf_counter() + arguments.seconds, max(1.0, arguments.seconds / SECONDS)
    for step in STEPS:
        if (arguments.steps and step.name not in arguments.steps) or step.name in result["steps"]:
            continue
        began = time.perf_counter()
        setting.deadline = min(began + scale * step.seconds, ends)
        setting.found, setting.save = {}, partial(written, arguments.out, result, setting)
        result["steps"][step.name] = entry = {"status": "running", "seconds": 0.0, "figures": setting.found}
        setting.save()
        try:
            outcome = done(step, setting, ends - began)
        except BaseException as error:
            outcome = {"status": "failed", "reason": f"ended by {one_line(error)}"}
            raise
        finally:
            entry.update({**entry, **outcome}, seconds=time.perf_counter() - began)
            if not entry["figures"]:
                del entry["figures"]
            print(f"{step.name}: {entry['status']}, {entry['seconds']:.1f} s", file=sys.stderr, flush=True)
            setting.save()
        free(setting.device, entry)


def free(device: torch.device, entry: dict[str, Any]) -> None:
    """Note the most memory of a step, and free all of it. Raises Broken where the GPU answers no more."""
    gc.collect()
    if device.type == "cuda":
        try:
            torch.cuda.synchronize(device)
            torch.cuda.empty_cache()
        except RuntimeError as error:
            raise Broken(one_line(error)) from error
        entry["peak_nbytes"] = torch.cuda.max_memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)


def done(step: Step, setting: Setting, left: float) -> dict[str, Any]:
    """Return the outcome of a step: "done" with its figures, "skipped" with the reason, or "failed" with a traceback.

    A package that is missing is a failure: the step was to be measured. A step that takes too long is stopped, and
    keeps what it has found.
    """
    if left < min(MIN_SECONDS, step.seconds):
        return {"status": "skipped", "reason": "the time of the whole run is over"}
    setting.failures, setting.left_out = [], []
    try:
        with stopped_after(min(GRACE * max(setting.left, step.seconds), left)):
            figures = step.run(setting)
        entry: dict[str, Any] = {"status": "done", "figures": {**setting.found, **figures}}
    except SkipError as error:
        return {"status": "skipped", "reason": one_line(error)}
    except OverTimeError as error:
        return {"status": "skipped", "reason": f"{error}; the figures are what it had found"}
    except Exception as error:
        return {"status": "failed", "reason": one_line(error), "traceback": traceback.format_exc()}
    if setting.failures:
        entry |= {"status": "failed", "reason": "some cases", "traceback": "\n".join(setting.failures)}
    elif setting.left_out:
        entry |= {"status": "skipped", "reason": "; ".join(setting.left_out)}
    return entry


@contextmanager
def stopped_after(seconds: float) -> Iterator[None]:
    """Raise OverTimeError in the block after some seconds, and end the process if even that does not help."""
    if threading.current_thread() is not threading.main_thread() or not hasattr(signal, "setitimer"):
        yield
        return

    def stop(*_: object) -> None:
        raise OverTimeError(f"stopped after {seconds:.0f} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    faulthandler.dump_traceback_later(seconds + STUCK, exit=True)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def exit_status(steps: dict[str, Any]) -> int:
    """Return 1 if a step failed, 3 if one was skipped, else 0, and name these steps."""
    for status, number in (("failed", 1), ("skipped", 3)):
        if named := [name for name, entry in steps.items() if entry["status"] == status]:
            print(f"{status}: {'; '.join(named)}", file=sys.stderr)
            return number
    return 0


def written(out: str, result: dict[str, Any], setting: Setting) -> None:
    """Write what was found so far; `known` is what later steps need of it."""
    result["targets"] = setting.targets
    figures = {name: str(each) if isinstance(each, Path) else each for name, each in setting.figures.items()}
    result["known"] = {"figures": figures, "targets": [vars(target) for target in setting.targets]}
    write_json(out, result, tell=False)
    Path(out).with_suffix(".md").write_text(markdown(result), encoding="utf-8")


def markdown(result: dict[str, Any]) -> str:
    """Return the results as Markdown: the targets, then a table for each step."""
    targets = [Target(**each) for each in result["known"]["targets"]]
    lines = [f"# {result['gpu']}", "", "```", targets_table(targets) if targets else "no target was measured", "```"]
    for name, entry in result["steps"].items():
        lines += ["", f"## {name}: {entry['status']}, {entry['seconds']:.1f} s", ""]
        lines += [entry["reason"]] if "reason" in entry else []
        lines += ["```", *figure_lines(entry["figures"]), "```"] if "figures" in entry else []
        lines += ["", "```", entry["traceback"], "```"] if "traceback" in entry else []
    return "\n".join(lines) + "\n"


def figure_lines(figures: dict[str, Any], name: str = "") -> list[str]:
    """Return plain figures as lines, lists of cases as tables, and nested figures under their names."""
    lines = []
    plain = [(key, value) for key, value in figures.items() if not isinstance(value, dict | list)]
    if plain:
        lines.append(table([name or "figure", "value"], plain))
    for key, value in figures.items():
        if isinstance(value, dict):
            lines += ["", *figure_lines(value, f"{name} {key}".strip())]
        elif isinstance(value, list) and value and isinstance(value[0], dict):
            head = list(dict.fromkeys(column for case in value for column in case))
            lines += ["", table(head, [[case.get(column) for column in head] for case in value])]
    return lines


def device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else machine()["cpu"]


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tiny", action="store_true", help="tiny models and few words: does every line run?")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="for the whole; what does not fit is skipped")
    parser.add_argument("--steps", nargs="*", choices=[step.name for step in STEPS], help="run only these")
    parser.add_argument("--data", help="a corpus whose sentence lengths are used instead of those of EWT")
    parser.add_argument("--tmp", help="folder for models and stores (default: the system's)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", help="JSON file to write after every step, with a Markdown file next to it")
    return parser.parse_args()


def run_here(arguments: argparse.Namespace, folder: Path) -> None:
    """Run the steps without a result in this process; the exit status is BROKEN where others must run in another."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    device = torch.device(arguments.device)
    if device.type == "cuda" and not torch.cuda.is_available():
        raise SystemExit("torch sees no GPU: --device cpu --tiny runs the script without one")
    settings = {name: value for name, value in vars(arguments).items() if name not in ("out", "tmp")}
    result: dict[str, Any] = {"benchmark": "gpu", "gpu": device_name(device), "machine": machine()}
    result |= {"settings": settings, "steps": {}}
    known: dict[str, Any] = {"figures": {}, "targets": []}
    if Path(arguments.out).is_file() and (before := json.loads(Path(arguments.out).read_text())).get("steps"):
        result["steps"], known = before["steps"], before["known"]
    size = TINY if arguments.tiny else ON_GPU
    trace = Path(arguments.out).with_suffix(".trace") if device.type == "cuda" else None
    setting = Setting(device, folder, size, arguments.seed, arguments.data, trace=trace)
    setting.figures, setting.targets = known["figures"], [Target(**each) for each in known["targets"]]
    try:
        run_steps(setting, arguments, result)
    except Broken as error:
        print(f"the GPU answers no more, another process goes on: {error}", file=sys.stderr)
        sys.exit(BROKEN)


def run_all(arguments: argparse.Namespace, folder: Path, run: Callable[..., None] = run_here) -> dict[str, Any]:
    """Run all steps in a process, and those that are left in another one where it broke, crashed or was stuck."""
    ends, out = time.perf_counter() + arguments.seconds, Path(arguments.out)
    while True:
        before = names_in(out)
        given = argparse.Namespace(**{**vars(arguments), "seconds": ends - time.perf_counter()})
        child = get_context("fork").Process(target=run, args=(given, folder))  # nothing has used the GPU or Polars
        child.start()
        try:
            child.join()
        except BaseException:
            child.terminate()
            child.join(STUCK)
            raise
        result = json.loads(out.read_text()) if out.is_file() else {"steps": {}}
        for entry in result["steps"].values():
            if entry["status"] == "running":
                entry |= {"status": "failed", "reason": f"its process ended with status {child.exitcode}"}
        out.write_text(json.dumps(result, indent=1) + "\n")
        if child.exitcode == 0 or names_in(out) == before:
            return result


def names_in(out: Path) -> set[str]:
    return set(json.loads(out.read_text())["steps"]) if out.is_file() else set()


def main() -> None:
    arguments = parse()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # ends the process of the steps too
    with tempfile.TemporaryDirectory(prefix="embstore-bench-", dir=arguments.tmp) as folder:
        arguments.out = arguments.out or str(Path(folder) / "result.json")
        Path(arguments.out).unlink(missing_ok=True)
        result = run_all(arguments, Path(folder))
    if not result["steps"]:
        raise SystemExit(1)
    print(markdown(result))
    raise SystemExit(exit_status(result["steps"]))


if __name__ == "__main__":
    main()

"""The performance of embstore on a GPU, measured in one call of under ten minutes; see README.md in this folder.

python benchmarks/gpu/run.py --out benchmarks/results/h100.json
python benchmarks/gpu/run.py --device cpu --tiny
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))
sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parent))

import torch
from extraction_steps import baselines, correctness, forward, rates, storing
from measure import Target, machine, table, targets_table, write_json
from model_steps import busy, decoder, devices, halving, lengths, probes, sanitizer, trace, zhao
from query_steps import bank, geometry, neighbors
from setting import ON_GPU, TINY, Setting, SkipError, one_line

MIN_SECONDS = 5.0  # with less time left a step is not begun


@dataclass(frozen=True)
class Step:
    """A measurement, and the seconds that it should take on a GPU."""

    name: str
    seconds: float
    run: Callable[[Setting], dict[str, Any]]


STEPS = (
    Step("rates", 25, rates),
    Step("correctness", 70, correctness),
    Step("forward, base", 80, lambda setting: forward(setting, setting.base)),
    Step("storing, base", 60, lambda setting: storing(setting, setting.base)),
    Step("zhao", 5, zhao),
    Step("trace", 20, trace),
    Step("busy", 20, busy),
    Step("lengths", 40, lengths),
    Step("sanitizer", 40, sanitizer),
    Step("halving", 20, halving),
    Step("baselines", 60, lambda setting: baselines(setting, setting.base)),
    Step("geometry", 50, geometry),
    Step("neighbors", 30, neighbors),
    Step("bank", 60, bank),
    Step("probes", 40, probes),
    Step("decoder", 60, decoder),
    Step("devices", 60, devices),
    Step("forward, large", 50, lambda setting: forward(setting, setting.large)),
    Step("storing, large", 50, lambda setting: storing(setting, setting.large)),
)


def run_steps(setting: Setting, arguments: argparse.Namespace, result: dict[str, Any]) -> None:
    """Run the steps in order, each within its own time, and write the results after each."""
    ends = time.perf_counter() + arguments.seconds
    for step in STEPS:
        if arguments.steps and step.name not in arguments.steps:
            continue
        began = time.perf_counter()
        setting.deadline = min(began + step.seconds, ends)
        result["steps"][step.name] = entry = done(step, setting, ends - began)
        entry["seconds"] = time.perf_counter() - began
        result["targets"] = [target.as_json() for target in setting.targets]
        print(f"{step.name}: {entry['status']}, {entry['seconds']:.1f} s", file=sys.stderr, flush=True)
        written(arguments.out, result, setting.targets)
        if setting.device.type == "cuda":
            torch.cuda.empty_cache()


def done(step: Step, setting: Setting, left: float) -> dict[str, Any]:
    """Return the outcome of a step: "done" with its figures, "skipped" with the reason, or "failed" with a traceback.

    A package that is missing is a failure: the step was to be measured.
    """
    if left < min(MIN_SECONDS, step.seconds):
        return {"status": "skipped", "reason": "the time of the whole run is over"}
    setting.failures, setting.left_out = [], []
    try:
        entry: dict[str, Any] = {"status": "done", "figures": step.run(setting)}
        if setting.failures:
            entry |= {"status": "failed", "reason": "some cases", "traceback": "\n".join(setting.failures)}
        elif setting.left_out:
            entry |= {"status": "skipped", "reason": "; ".join(setting.left_out)}
        return entry
    except SkipError as error:
        return {"status": "skipped", "reason": one_line(error)}
    except Exception as error:
        return {"status": "failed", "reason": one_line(error), "traceback": traceback.format_exc()}


def exit_status(steps: dict[str, Any]) -> int:
    """Return 1 if a step failed, 3 if one was skipped, else 0, and name these steps."""
    for status, number in (("failed", 1), ("skipped", 3)):
        if named := [name for name, entry in steps.items() if entry["status"] == status]:
            print(f"{status}: {'; '.join(named)}", file=sys.stderr)
            return number
    return 0


def written(out: str | None, result: dict[str, Any], targets: list[Target]) -> None:
    if out is not None:
        write_json(out, result)
        Path(out).with_suffix(".md").write_text(markdown(result, targets), encoding="utf-8")


def markdown(result: dict[str, Any], targets: list[Target]) -> str:
    """Return the results as Markdown: the targets, then a table for each step."""
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
    parser.add_argument("--seconds", type=float, default=540.0, help="for the whole; what does not fit is skipped")
    parser.add_argument("--steps", nargs="*", choices=[step.name for step in STEPS], help="run only these")
    parser.add_argument("--data", help="a corpus whose sentence lengths are used instead of those of EWT")
    parser.add_argument("--tmp", help="folder for models and stores (default: the system's)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", help="JSON file to write after every step, with a Markdown file next to it")
    return parser.parse_args()


def main() -> None:
    arguments = parse()
    device = torch.device(arguments.device)
    if device.type == "cuda" and not torch.cuda.is_available():
        raise SystemExit("torch sees no GPU: --device cpu --tiny runs the script without one")
    settings = {name: value for name, value in vars(arguments).items() if name not in ("out", "tmp")}
    result: dict[str, Any] = {"benchmark": "gpu", "gpu": device_name(device), "machine": machine()}
    result |= {"settings": settings, "steps": {}, "targets": []}
    with tempfile.TemporaryDirectory(prefix="embstore-bench-", dir=arguments.tmp) as folder:
        size = TINY if arguments.tiny else ON_GPU
        trace = None if arguments.out is None or device.type != "cuda" else Path(arguments.out).with_suffix(".trace")
        setting = Setting(device, Path(folder), size, arguments.seed, arguments.data, trace=trace)
        run_steps(setting, arguments, result)
    print(markdown(result, setting.targets))
    raise SystemExit(exit_status(result["steps"]))


if __name__ == "__main__":
    main()

"""What comes of reading a file that has a defect, in a process of its own.

`python -m tests.hostile_files.reading [PART ...]` judges the defects whose names have one of the parts, and prints an
`Outcome` a line, as JSON.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from embstore.errors import EmbstoreError
from tests.hostile import run_command
from tests.hostile_files.defects import Defect
from tests.privileges import NOBODY

SECONDS = 600  # limit of one defect, against hanging
NBYTES = 8 * 2**30  # limit of the addresses of a process beyond those at its start


@dataclass(frozen=True)
class Kind:
    """A kind of file: `prepare(folder)` writes a good one, and what is read with it, and returns its path.

    `read`: returns something that tells what the file holds. `checks`: functions that compare all checksums, by name.
    `command`: words of a command line that reads the file, FILE for its name.
    """

    prepare: Callable[[Path], Path]
    read: Callable[[Path], str]
    checks: dict[str, Callable[[Path], str]] = field(default_factory=dict)
    command: str = ""


@dataclass
class Outcome:
    """What came of a defect, by call: "refused", "same", "other", or what nobody foresaw; and the messages.

    `seconds`: of processor time of the slowest call; `nbytes`: memory that all of them took.
    """

    defect: str
    calls: dict[str, str] = field(default_factory=dict)
    messages: dict[str, str] = field(default_factory=dict)
    seconds: float = 0
    nbytes: int = 0

    def note(self, name: str, run: Callable[[], tuple[str, str]]) -> None:
        began = time.process_time()
        self.calls[name], self.messages[name] = run()
        self.seconds = max(self.seconds, time.process_time() - began)


def called(read: Callable[[], str], good: str) -> tuple[str, str]:
    """Return what came of a function and its message; `good`: what it returns for the good file."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = read()
    except EmbstoreError as error:
        return "refused", f"{type(error).__name__}: {error}"
    except BaseException:
        return "an unforeseen error", traceback.format_exc()
    return ("same" if found == good else "other"), ""


def commanded(command: str, name: str) -> tuple[str, str]:
    """Return what came of a command and its last line."""
    status, out, err = run_command([name if word == "FILE" else word for word in command.split()])
    if status not in (0, 1, 2) or "Traceback" in err or "EMBSTORE_DEBUG" in err:
        return f"an unforeseen error, status {status}", err
    lines = [line for line in err.splitlines() if line.startswith("embstore: ")]
    if status and not lines and not out:
        return f"status {status} without a line", err
    return ("refused" if status else "same"), (lines or out.splitlines() or [""])[-1]


def judge(defect: Defect, kind: Kind, good: Path, expected: dict[str, str], folder: Path) -> Outcome:
    """Copy a good file to a folder, give it the defect, and read it in every way."""
    outcome = Outcome(str(defect))
    shutil.copytree(good.parent, folder, symlinks=True)
    path = folder / good.name
    defect.make(path)
    if os.geteuid() == 0 and "without permission" in defect.name:  # nothing is denied to root
        os.seteuid(NOBODY)
    os.chdir(folder)
    for name, read in {"read": kind.read, **kind.checks}.items():
        outcome.note(name, lambda read=read, name=name: called(lambda: read(path), expected[name]))
    if kind.command:
        outcome.note("command", lambda: commanded(kind.command, good.name))
    return outcome


def in_child(work: Callable[[], Any]) -> tuple[int, Any]:
    """Run `work` in a forked process with limits; returns its exit status, and what it returned if that is 0."""
    with tempfile.TemporaryFile() as answer:
        child = os.fork()
        if child == 0:
            signal.alarm(SECONDS)
            used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
            resource.setrlimit(resource.RLIMIT_AS, (used + NBYTES, resource.RLIM_INFINITY))
            os.dup2(os.open(os.devnull, os.O_RDWR), 0)
            try:
                os.write(answer.fileno(), json.dumps(work()).encode("utf-8", "backslashreplace"))
                os._exit(0)
            except BaseException:
                traceback.print_exc()
                os._exit(1)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        answer.seek(0)
        return status, json.loads(answer.read()) if status == 0 else None


def _measured(work: Callable[[], Outcome]) -> dict[str, Any]:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    outcome = work()
    outcome.nbytes = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
    return asdict(outcome)


def prepared(kind: Kind, folder: Path) -> tuple[str, dict[str, str]]:
    """Write the good file of a kind; returns its path and what each call returns for it."""
    folder.mkdir()
    path = kind.prepare(folder)
    os.chdir(folder)
    expected = {name: read(path) for name, read in {"read": kind.read, **kind.checks}.items()}
    if kind.command:
        assert commanded(kind.command, path.name)[0] == "same", commanded(kind.command, path.name)
    return str(path), expected


def outcomes(defects: list[Defect], kinds: dict[str, Kind]) -> Iterator[Outcome]:
    """Judge defects, each in a process of its own, which does not wait for anything to be loaded."""
    with tempfile.TemporaryDirectory() as top:
        Path(top).chmod(0o755)
        goods: dict[str, tuple[str, dict[str, str]]] = {}
        for number, defect in enumerate(defects):
            kind = kinds[defect.kind]
            if defect.kind not in goods:
                status, found = in_child(lambda kind=kind, each=defect.kind: prepared(kind, Path(top, each)))
                assert status == 0, f"the good file of {defect.kind}"
                goods[defect.kind] = found
            good, expected = goods[defect.kind]
            folder = Path(top, f"{number}")
            status, found = in_child(
                lambda d=defect, k=kind, g=good, e=expected, f=folder: _measured(lambda: judge(d, k, Path(g), e, f))
            )
            shutil.rmtree(folder, ignore_errors=True)
            ended = {"process": "it hangs" if status == -signal.SIGALRM else f"it ends with {status}"}
            yield Outcome(**found) if status == 0 else Outcome(str(defect), ended)


def main() -> None:
    from tests.hostile import load_everything
    from tests.hostile_files.table import KINDS, defects

    load_everything()
    chosen = [each for each in defects() if not sys.argv[1:] or any(part in str(each) for part in sys.argv[1:])]
    for outcome in outcomes(chosen, KINDS):
        print(json.dumps(asdict(outcome)), flush=True)


if __name__ == "__main__":
    main()

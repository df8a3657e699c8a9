"""What the command is as a process: exit status, signals, pipes, start-up, threads; no corpus steers a terminal."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import shlex
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import embstore as es
from embstore_cli.main import Application
from tests.cli.conftest import COMMAND, Ran, Work, environment, run_process, settings
from tests.models import tiny

HELD = (  # the command, which waits for long once the first words are encoded
    "import time, embstore.extraction.extract as e; add = e.Counter.add\n"
    "e.Counter.add = lambda self, count: (add(self, count), time.sleep(3600))\n"
    "from embstore_cli.main import run; run()"
)


@pytest.fixture(scope="module")
def long_corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("corpora") / "long.txt"
    path.write_text("".join(" ".join(words) + "\n" for words in tiny.random_sentences(400, seed=1)))
    return path


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_the_installed_command_and_the_module_are_one(tmp_path: Path) -> None:
    installed = Path(sys.executable).with_name("embstore")
    if not installed.exists():
        pytest.skip("embstore is not installed as a command with this Python")
    shown = subprocess.run([installed, "--version"], capture_output=True, text=True, check=True)
    assert shown.stdout == run_process("--version", cwd=tmp_path).out == f"embstore {es.__version__}\n"


def test_debug_shows_the_traceback(tmp_path: Path) -> None:
    ran = run_process("info", "gone.zarr", cwd=tmp_path, env=environment(EMBSTORE_DEBUG="1"))
    assert ran.status == 1
    assert "Traceback" in ran.err
    assert "StoreNotFoundError: there is no store at gone.zarr" in ran.err


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_in_one_line_and_the_store_is_resumed(
    number: signal.Signals, long_corpus: Path, tmp_path: Path, run: Callable[..., Ran], monkeypatch: pytest.MonkeyPatch
) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    folder = tmp_path / "here"
    folder.mkdir()
    command = ["extract", str(long_corpus), "new.zarr", "--model", "random:4", *settings(batch_subwords=64)]
    env = environment(TMPDIR=str(temporary), TORCHINDUCTOR_CACHE_DIR=str(tmp_path / "torch"))
    process = subprocess.Popen(
        [sys.executable, "-c", HELD, *command], cwd=folder, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    while not (folder / "new.zarr").exists():
        assert process.poll() is None, process.communicate()
        time.sleep(0.02)
    process.send_signal(number)
    try:
        _, err = process.communicate(timeout=600)
    except subprocess.TimeoutExpired:  # it came while Python could not raise an exception
        process.send_signal(number)
        _, err = process.communicate(timeout=600)
    word = "interrupted" if number == signal.SIGINT else "terminated by a signal"
    assert re.fullmatch(
        rf"embstore: {word}; [\d,]+ of [\d,]+ occurrences are stored: run the same command again to resume\n",
        err.decode(),
    ), err.decode()
    assert (process.returncode, names(folder)) == (128 + number, {"new.zarr"})
    assert names(temporary) == set()
    monkeypatch.chdir(folder)
    resumed = run(*command)
    assert (resumed.status, resumed.err) == (0, "")
    assert es.open(folder / "new.zarr").finished


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_before_the_command_begins(
    number: signal.Signals, run: Callable[..., Ran], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Application, "parse_args", lambda *_: signal.raise_signal(number))
    ran = run("info", "gone.zarr")
    assert ran.status == 128 + number
    assert ran.err == f"embstore: {'interrupted' if number == signal.SIGINT else 'terminated by a signal'}\n"


def test_ctrl_c_while_the_modules_load_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "typer.py").write_text("import signal; signal.raise_signal(signal.SIGINT)\n")
    ran = run_process("info", "gone.zarr", cwd=tmp_path, env=environment(PYTHONPATH=str(tmp_path)))
    assert (ran.status, ran.err) == (130, "embstore: interrupted\n")


def test_a_deleted_working_directory_is_one_line(
    run: Callable[..., Ran], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    tmp_path.rmdir()
    assert run("demo").err == "embstore: the working directory was deleted: change to another one (cd)\n"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_that_a_package_turns_into_an_error(
    number: signal.Signals, run: Callable[..., Ran], monkeypatch: pytest.MonkeyPatch
) -> None:
    def query(*_: object) -> None:
        try:
            signal.raise_signal(number)
        except KeyboardInterrupt:
            raise RuntimeError("Query interrupted") from None

    monkeypatch.setattr(Application, "parse_args", query)
    ran = run("info", "gone.zarr")
    assert (ran.status, ran.err) == (128 + number, "embstore: interrupted by a signal\n")


def test_a_closed_pipe_ends_quietly(made: Path) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    process = subprocess.Popen([*COMMAND, "info", "store.zarr"], cwd=made, stdout=writing, stderr=subprocess.PIPE)
    os.close(writing)
    _, err = process.communicate(timeout=600)
    assert (process.returncode, err) == (1, b"")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full on this system")
def test_output_to_a_full_disk_is_a_failure_in_one_line(made: Path) -> None:
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [*COMMAND, "info", "store.zarr"], cwd=made, stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert (done.returncode, done.stderr) == (1, "embstore: the output: No space left on device\n")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["lookup", "store.zarr", b"\xed\xa0\x80"], "is not text"),
        (["info", b"\xff.zarr"], "there is no store at"),
        (["extract", b"\xff.txt", "new.zarr", "-m", "random:4"], "no corpus at"),
        (["geometry", "store.zarr", "--metrics", b"\xff"], "metric"),
        (["extract", "corpus.txt", "new.zarr", "-m", "random:4", "--context-window", "9" * 20], "--context-window 9"),
    ],
)  # fmt: skip
def test_arguments_that_are_no_text_or_too_large_end_in_one_line(
    arguments: list[str | bytes], says: str, made: Path, run: Callable[..., Ran], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(made)
    ran = run(*map(os.fsdecode, arguments))
    assert (ran.status, ran.out, ran.err.count("\n")) == (2, "", 1), ran.err
    assert ran.err.startswith("embstore: "), ran.err
    assert says in ran.err
    assert "EMBSTORE_DEBUG" not in ran.err


@pytest.mark.slow
def test_a_reader_that_stops_early_and_a_closed_output_end_quietly(made: Path) -> None:
    command = shlex.join([*COMMAND, "geometry", "store.zarr", "--min-contexts", "1", "--json"])
    piped = subprocess.run(f"{command} | head -n 1", shell=True, cwd=made, env=environment(), capture_output=True)
    assert (piped.stdout, piped.stderr) == (b"[\n", b"")
    closed = subprocess.run(f"{command} >&-", shell=True, cwd=made, env=environment(), capture_output=True)
    assert (closed.returncode, closed.stderr) == (0, b"")
    closed = subprocess.run(f"{command} >&- 2>&-", shell=True, cwd=made, env=environment())
    assert closed.returncode == 0


@pytest.mark.slow
def test_words_beyond_the_output_s_encoding_are_escaped(made: Path) -> None:
    ran = run_process("lookup", "store.zarr", "Café", cwd=made, env=environment(PYTHONIOENCODING="ascii"))
    assert (ran.status, ran.err) == (0, "")
    assert "Caf\\xe9: 1 occurrence" in ran.out


def on_a_terminal(arguments: list[str], cwd: Path, *, stderr: bool = False, **variables: str) -> bytes:
    """Run the command with its output, or its standard error, on a terminal of 100 columns; returns what it showed."""
    mine, its = pty.openpty()
    fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 100, 0, 0))
    streams = {"stdout": subprocess.DEVNULL, "stderr": its} if stderr else {"stdout": its, "stderr": subprocess.DEVNULL}
    env = {name: value for name, value in environment(TERM="xterm", **variables).items() if name != "COLUMNS"}
    process = subprocess.Popen([*COMMAND, *arguments], cwd=cwd, env=env, **streams)
    os.close(its)
    shown = b""
    while True:
        try:
            part = os.read(mine, 65536)
        except OSError:  # how Linux reports that the other end is closed
            break
        if not part:
            break
        shown += part
    os.close(mine)
    assert process.wait(timeout=600) == 0, shown
    return shown


@pytest.mark.slow
def test_progress_shows_on_a_terminal_with_rate_and_time_left(
    made: Path, long_corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = ["extract", str(long_corpus), "new.zarr", "--model", str(made / "model"), *settings(batch_subwords=64)]
    at_once = "import embstore.progress as p; p.DELAY_SECONDS = 0; from embstore_cli.main import run; run()"
    monkeypatch.setattr("tests.cli.test_process.COMMAND", [sys.executable, "-c", at_once])
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", on_a_terminal(arguments, tmp_path, stderr=True).decode())
    assert re.search(r"extract.*\d+%.*\d+:\d\d<.*words/s", plain), plain[-2000:]


@pytest.mark.slow
def test_no_color_sends_no_escapes(made: Path, tmp_path: Path) -> None:
    arguments = ["geometry", str(made / "store.zarr"), "--min-contexts", "2"]
    assert b"\x1b[" in on_a_terminal(arguments, tmp_path)
    assert b"\x1b" not in on_a_terminal(arguments, tmp_path, NO_COLOR="1")


def test_bad_usage_is_reported_without_loading_anything_heavy(tmp_path: Path) -> None:
    code = (
        "import sys; sys.argv = ['embstore', 'info', 'gone.zarr']\n"
        "import atexit; atexit.register(lambda: print(*[n for n in "
        "('torch', 'transformers', 'zarr', 'h5py', 'polars', 'rich', 'jsonschema') if n in sys.modules]))\n"
        "from embstore_cli.main import run; run()"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.strip()) == (2, "")


VARIABLES = ("OMP_NUM_THREADS", "OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")


@pytest.mark.parametrize("name", ["OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME"])
def test_idle_threads_sleep_but_where_the_user_has_set_that(
    run: Callable[..., Ran], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    for each in VARIABLES:
        monkeypatch.setenv(each, "")  # restored at the end
        monkeypatch.delenv(each)
    assert run("--version").status == 0
    found = {each: os.environ.pop(each) for each in VARIABLES if each in os.environ}
    assert found == {"GOMP_SPINCOUNT": "1000", "KMP_BLOCKTIME": "1"}
    monkeypatch.setenv(name, "7")
    assert run("--version").status == 0
    assert {each: os.environ[each] for each in VARIABLES if each in os.environ} == {name: "7"}


def test_bad_numbers_of_threads_and_devices(work: Work) -> None:
    for threads in ("0", "1025", "many"):
        work.refuses(f"--threads {threads} extract corpus.txt x.zarr --model random:8", "threads", threads)
    unknown = "unknown device 'x': give numbers of GPUs such as 0,1, or cpu\n"
    work.refuses("extract corpus.txt x.zarr --model random:8 --devices x", unknown)


STEERING = ["\x1b]0;pwned\x07", "b\x9b31mad", "\u202etxet", "\x1b[2J"]
CONTROL = re.compile("[\0-\x09\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")


PRINTING = [
    "extract a.jsonl hostile.zarr --model random:4 --dry-run",
    "extract a.jsonl hostile.zarr --model random:4 --json",
    "info hostile.zarr",
    "info hostile.zarr --json",
    "lookup hostile.zarr bank",
    "lookup hostile.zarr bank --json",
    "neighbors hostile.zarr --row 0 --layers 0",
    "neighbors hostile.zarr bank --layers 0",
    "senses hostile.zarr bank --label tag",
    "sql hostile.zarr select\u00a0*\u00a0from\u00a0occurrences",
    "info \x1b]0;gone\x07.zarr",
    "lookup hostile.zarr \x1b[2J",
    "info --\x1b[2J",
]


def test_nothing_that_is_printed_steers_the_terminal(work: Work) -> None:
    words = ["the", "bank", *STEERING]
    row = {"text": words, "tag": [word[::-1] for word in words], "au\x1bthor": STEERING[0]}
    work.write("a.jsonl", "".join(json.dumps(row) + "\n" for _ in range(30)))
    made = work.run(*["extract", "a.jsonl", "hostile.zarr", "--model", "random:4"])
    assert (made.status, "\\x1b]0;pwned\\x07" in made.out) == (0, True), made.err
    for command in PRINTING:
        ran = work.run(*(part.replace("\u00a0", " ") for part in command.split(" ")))
        for printed in (made.out, made.err, ran.out, ran.err):
            assert not CONTROL.search(printed), printed
        assert ran.status == 0 or CONTROL.search(command), ran.err
        if command == "lookup hostile.zarr bank --json":
            assert json.loads(ran.out)[0]["text"] == " ".join(words)

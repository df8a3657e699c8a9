"""The command in processes forked from one that has all loaded, where it is not the start of Python that is tested."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import traceback
from pathlib import Path
from typing import Any, NoReturn

ROOT = Path(__file__).parents[1]


class ForkedCommand:
    """A process that has imported what `embstore extract` imports, and forks once for each command."""

    def __init__(self) -> None:
        self._server = subprocess.Popen(
            [sys.executable, "-m", "tests.forked_command"],
            cwd=ROOT,
            env={**os.environ, "HF_HUB_OFFLINE": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __call__(self, *arguments: object, shard_nbytes: int | None = None) -> subprocess.CompletedProcess[str]:
        """Run `embstore` with arguments, its shards of at most `shard_nbytes`, in a process of its own."""
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        with tempfile.TemporaryDirectory() as folder:
            asked = {"arguments": list(map(str, arguments)), "shard_nbytes": shard_nbytes, "folder": folder}
            print(json.dumps(asked), file=self._server.stdin, flush=True)
            status = int(self._server.stdout.readline())
            out, err = (Path(folder, name).read_text() for name in ("out", "err"))
        return subprocess.CompletedProcess(asked["arguments"], status, out, err)

    def close(self) -> None:
        """End the process; what it forked has ended by then."""
        self._server.communicate(timeout=600)


def serve() -> None:
    """Fork for each line of standard input and answer with the exit status."""
    import transformers.models.bert.modeling_bert  # noqa: F401

    import embstore.extraction.extract
    import embstore.models.transformer.encoder
    import embstore.store.hdf5.writer  # noqa: F401

    for line in sys.stdin:
        asked = json.loads(line)
        child = os.fork()
        if child == 0:
            _run(**asked)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


def _run(arguments: list[str], shard_nbytes: int | None, folder: str) -> NoReturn:
    from embstore.store import layout
    from embstore_cli.main import run

    for number, name in ((1, "out"), (2, "err")):
        os.dup2(os.open(Path(folder, name), os.O_WRONLY | os.O_CREAT), number)
    if shard_nbytes is not None:
        layout.SHARD_NBYTES = shard_nbytes
    sys.argv = ["embstore", *arguments]
    status: Any = 1
    try:
        run()
    except SystemExit as ended:
        status = ended.code or 0
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


if __name__ == "__main__":
    serve()

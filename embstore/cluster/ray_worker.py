"""A worker as a Ray actor; it travels by value, so that a machine with another embstore, or none, can say so.

Nothing but the standard library is imported before that is known.
"""

from __future__ import annotations

import os
import socket
from importlib.metadata import PackageNotFoundError, version
from typing import Any

Said = tuple[bytes | None, bytes | None, tuple[str, ...]]  # an Answer's fields


class RayWorker:
    """One worker; `embstore`: the version that it must have, `gpu`: whether it is given one."""

    def __init__(self, embstore: str, gpu: bool) -> None:
        self._embstore = embstore
        self._gpu = gpu
        self._hands: Any = None

    def name(self) -> str:
        return f"the worker on {socket.gethostname()} (process {os.getpid()})"

    def begin(self, job: bytes) -> str | Said:
        """Make ready; returns what Hands.begin says, or a line where embstore is not the same here."""
        try:
            found = version("embstore")
        except PackageNotFoundError:
            return f"embstore is not installed there: pip install 'embstore[ray]=={self._embstore}'"
        if found != self._embstore:
            return f"embstore {found} is installed there, here it is {self._embstore}: install the same"
        from embstore.cluster.hands import Hands

        self._hands = Hands(gpu=self._gpu)
        said = self._hands.begin(job)
        return said.result, said.error, said.notes

    def do(self, piece: bytes) -> Said:
        said = self._hands.do(piece)
        return said.result, said.error, said.notes

"""The exit status of each exception: 2 for input that the user can correct, 1 for a failure."""

from __future__ import annotations

import pytest

from embstore import errors

FAILURES = {
    "EmbstoreError",
    "DeviceMemoryError",
    "ExecutorError",
    "MissingRowsError",
    "NonFiniteError",
    "StorageError",
    "StoreBusyError",
    "StoreDamagedError",
}


def test_each_exception_ends_the_command_with_its_status() -> None:
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, Exception)]
    ends = {kind.__name__: kind.exit_status for kind in kinds if issubclass(kind, errors.EmbstoreError)}
    assert {name for name, status in ends.items() if status == 1} == FAILURES
    assert set(ends.values()) == {1, 2}


def test_a_bool_is_no_whole_number() -> None:
    with pytest.raises(errors.InvalidValueError, match="x True is not allowed: give 0 or more"):
        errors.check_whole("x", True, 0)

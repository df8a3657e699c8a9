"""What can go wrong, said in one line: every error of embstore, each also the builtin that fits it.

A message names the value, what is allowed and what to do. `exit_status` is what the command line ends with:
2 for input that the user can correct, 1 for a failure.
"""

from __future__ import annotations


class EmbstoreError(Exception):
    """The base of every error that embstore raises on purpose."""

    exit_status = 1


class InvalidValueError(EmbstoreError, ValueError):
    """An option or argument has a value that is not allowed."""

    exit_status = 2


class CorpusError(EmbstoreError, ValueError):
    """A corpus cannot be read; the message names file and line."""

    exit_status = 2


class CorpusNotFoundError(CorpusError, FileNotFoundError):
    """There is no corpus at the path."""


class ModelError(EmbstoreError, ValueError):
    """A model cannot be loaded or cannot do what is asked of it."""

    exit_status = 2


class WordVectorsError(EmbstoreError, ValueError):
    """A file of word vectors cannot be read or written; the message names file and line."""

    exit_status = 2


class WordVectorsNotFoundError(WordVectorsError, FileNotFoundError):
    """There are no word vectors at the path."""


class BenchmarkError(EmbstoreError, ValueError):
    """A word benchmark cannot be read; the message names file and line."""

    exit_status = 2


class DeviceMemoryError(EmbstoreError, MemoryError):
    """A model, or one sentence alone, does not fit into the memory of a device."""


class NonFiniteError(EmbstoreError, ArithmeticError):
    """A hidden state is NaN, infinite, or beyond what the store's dtype can hold."""


class StoreNotFoundError(EmbstoreError, FileNotFoundError):
    """There is no store at the path."""

    exit_status = 2


class StoreFormatError(EmbstoreError, ValueError):
    """What stands at the path is not a store that this version can read."""

    exit_status = 2


class StoreMismatchError(EmbstoreError, ValueError):
    """The store at the path was made by another plan; the message names the difference."""

    exit_status = 2


class StoreBusyError(EmbstoreError, RuntimeError):
    """Another process is writing the store."""


class StoreDamagedError(EmbstoreError, RuntimeError):
    """The store's bytes are not what was committed."""


class SearchIndexError(EmbstoreError, ValueError):
    """An index is stale, damaged or of another store; the message says how to build it again."""

    exit_status = 2


class SearchIndexNotFoundError(SearchIndexError, FileNotFoundError):
    """The store has no such index."""


class ProbeBankError(EmbstoreError, ValueError):
    """Saved probes are damaged or of a newer format; the message says what to do."""

    exit_status = 2


class ProbeBankNotFoundError(ProbeBankError, FileNotFoundError):
    """There are no saved probes at the path."""


class MissingRowsError(EmbstoreError, LookupError):
    """Rows were asked for that have not been written yet."""


class StorageError(EmbstoreError, OSError):
    """The disk is full, or a path cannot be read or written."""


class ClusterError(EmbstoreError, RuntimeError):
    """The machines that work is sent to cannot be reached, are gone, or cannot do it."""


class MissingPackageError(EmbstoreError, ImportError):
    """An optional package is not installed; the message names the extra that brings it."""

    exit_status = 2


class EmbstoreWarning(UserWarning):
    """The base of what embstore warns of."""


class RenamedWordsWarning(EmbstoreWarning):
    """Words had to be spelled otherwise in the file that they were written to."""


class SurplusWordsWarning(EmbstoreWarning):
    """A file of word vectors holds more words than its header promises."""


class IgnoredFilesWarning(EmbstoreWarning):
    """Files among the benchmarks are none that embstore knows."""


class WorkerWarning(EmbstoreWarning):
    """A worker cannot begin, differs from the others, or failed at work that another has done since."""


class SmallerBatchesWarning(EmbstoreWarning):
    """A batch did not fit into the memory of a device, and is run in parts, as are those after it."""


class UnfinishedStoreWarning(EmbstoreWarning):
    """A store was opened of which some partitions are not written yet."""

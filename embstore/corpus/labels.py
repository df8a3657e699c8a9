"""What may be the name of a label column."""

from __future__ import annotations

import re

from embstore.corpus.messages import shown
from embstore.errors import InvalidValueError

_COLUMN = re.compile(r"\w[\w.-]*")


def check_column(name: object) -> None:
    """Raise InvalidValueError for a name that could not stand in a path of the store."""
    if not isinstance(name, str) or not _COLUMN.fullmatch(name):
        raise InvalidValueError(
            f"label column {shown(name)}: a name is made of letters, digits, '_', '-' and '.', "
            f"and begins with a letter, a digit or '_'"
        )

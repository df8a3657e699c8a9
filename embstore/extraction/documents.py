"""The documents of a corpus and their fields, as columns of the spool, numbered while the sentences stream by."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count
from math import isnan
from typing import Any

import numpy as np

from embstore.corpus import Document
from embstore.corpus.keep import blocks_of
from embstore.corpus.sentence import is_encodable
from embstore.errors import CorpusError, InvalidValueError, check_column_name, quoted
from embstore.extraction.spool import BLOCK, Spool
from embstore.store.index import KINDS, Strings, field_text


@dataclass
class Documents:
    """Numbers the documents of sentences, and the distinct values of each field.

    `n`: the documents so far. `numbers`: field -> its distinct values, of each type, and their numbers. `kinds` and
    `values`, after `finish`: the kind of each field, and its distinct values as text in ascending order.
    """

    n: int = 0
    any_given: bool = False
    numbers: dict[str, defaultdict[Any, int]] = field(default_factory=dict)
    kinds: dict[str, str] = field(default_factory=dict)
    values: dict[str, Strings] = field(default_factory=dict)
    _last: Document | None = None

    def add(self, documents: Sequence[Document | None], spool: Spool) -> None:
        """Add the documents of consecutive sentences."""
        numbers = np.empty(len(documents), np.int64)
        codes: dict[str, list[int]] = {}
        first = self.n
        for at, document in enumerate(documents):
            if document is None or document is not self._last:
                self.n += 1
                for name, value in (document.fields if document is not None else {}).items():
                    if name not in self.numbers:
                        self._begin(name, first, spool)
                    own = codes.setdefault(name, [])
                    own.extend([-1] * (self.n - 1 - first - len(own)))
                    own.append(self._number(name, value))
            self._last = document
            numbers[at] = self.n - 1
        self.any_given = self.any_given or any(document is not None for document in documents)
        spool.append("document", numbers)
        for name in self.numbers:
            new = np.full(self.n - first, -1, np.int32)
            new[: len(codes.get(name, ()))] = codes.get(name, ())
            spool.append(f"field/{name}", new)

    def _begin(self, name: str, n_before: int, spool: Spool) -> None:
        try:
            check_column_name(name)
        except InvalidValueError as error:
            raise CorpusError(str(error).replace("label column", "field of documents", 1)) from None
        self.numbers[name] = defaultdict(count().__next__)
        for block in blocks_of(n_before, BLOCK):
            spool.append(f"field/{name}", np.full(block.stop - block.start, -1, np.int32))

    def _number(self, name: str, value: Any) -> int:
        if isinstance(value, np.generic):
            value = value.item()
        if value is None or (isinstance(value, float) and isnan(value)):
            return -1
        if isinstance(value, str) and is_encodable(value):
            return self.numbers[name][value]
        if isinstance(value, (bool, int, float)):
            return self.numbers[name][type(value), value]  # 1, 1.0 and True are equal
        raise CorpusError(
            f"document {self.n - 1} has the field {name!r} {quoted(value)}: a value is text, a number, true, false or "
            "None"
        )

    def finish(self, spool: Spool, digest: Any) -> None:
        """Sort the values of each field, renumber its codes, and add all to the digest of the corpus."""
        if not self.any_given:
            return
        for block in blocks_of(spool.length("document"), BLOCK):
            digest.update(spool.read("document", np.int64)[block].tobytes())
        for name, numbers in self.numbers.items():
            self.kinds[name] = kind = _kind(list(numbers))
            texts = [_text(key, kind) for key in numbers]
            ascending = sorted(set(texts), key=KINDS[kind])
            places = {text: place for place, text in enumerate(ascending)}
            new = np.array([*(places[text] for text in texts), -1], np.int32)
            codes = spool.read(f"field/{name}", np.int32)
            for block in blocks_of(len(codes), BLOCK):
                spool.append(f"new/{name}", new[codes[block]])
            spool.rename(f"new/{name}", f"field/{name}")
            self.values[name] = Strings.of(ascending)
            digest.update(f"\0{name}\0{kind}\0".encode() + self.values[name].offsets.tobytes())
            digest.update(self.values[name].data)
            codes = spool.read(f"field/{name}", np.int32)
            for block in blocks_of(len(codes), BLOCK):
                digest.update(codes[block].tobytes())
            numbers.clear()


def _kind(keys: list[Any]) -> str:
    """Return the kind of values: that of all, float for numbers of both types, else str."""
    types = {str if isinstance(key, str) else key[0] for key in keys}
    if types == {int} and all(-(2**63) <= key[1] < 2**63 for key in keys):
        return "int"
    if types and types <= {int, float} and all(abs(key[1]) < 2**1023 or key[0] is float for key in keys):
        return "float"
    return "bool" if types == {bool} else "str"


def _text(key: Any, kind: str) -> str:
    if isinstance(key, str):
        return key
    return field_text(float(key[1]) + 0.0 if kind == "float" else key[1])  # no -0.0

"""The queries by name, and `answer`, by which everything that shows stores asks them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from inspect import Parameter, signature
from typing import Any, get_type_hints

from embstore.errors import InvalidValueError, quoted
from embstore_explorer.parameters import parse
from embstore_explorer.stores import Explored

_MODULES = {  # imported when one of their queries is first asked
    "stores": ("stores", "model", "reopen"),
    "words": ("complete", "occurrences", "summary", "word"),
    "senses": ("senses",),
    "neighbors": ("neighbors",),
    "layers": ("geometry", "cka", "probes"),
    "map": ("map",),
    "sentence": ("sentence", "search", "similarity", "parse", "traces", "attention"),
}
QUERIES = {name: module for module, names in _MODULES.items() for name in names}
CHANGES = {"model", "reopen"}  # queries that change what others answer
Report = Callable[[int, int | None], object]


class NotFoundError(InvalidValueError):
    """There is no query, word or row of this name; `words`: others like it that are there, None for no word."""

    words: list[str] | None = None


class CancelledQueryError(Exception):
    """Nobody waits for the answer any more."""


@dataclass(frozen=True)
class Asked:
    """What a query is given besides its parameters: the stores, and whom to tell how far it is."""

    stores: list[Explored]
    progress: Report
    cancelled: Callable[[], bool]

    def report(self, done: int, total: int | None = None) -> None:
        """Report progress; raises CancelledQueryError where nobody waits. Call it, or pass it on as `progress`."""
        if self.cancelled():
            raise CancelledQueryError
        self.progress(done, total)

    def store(self, number: int) -> Explored:
        """Return a store by its position in the list. Raises InvalidValueError."""
        if not 0 <= number < len(self.stores):
            raise InvalidValueError(f"there is no store {number}: the stores are 0 to {len(self.stores) - 1}")
        return self.stores[number]


def answer(
    stores: list[Explored],
    name: str,
    params: Mapping[str, object],
    *,
    progress: Report | None = None,
    cancelled: Callable[[], bool] | None = None,
    whole: bool = False,
) -> Any:
    """Answer a query: a value that JSON can hold, or `Arrays`; with `whole` a frame of all rows, of queries by pages.

    `params`: texts, as in a URL, or values as JSON has them; None leaves one out. `progress(done, total)` is called as
    the work advances. `cancelled` is asked then, and ends the work by CancelledQueryError once it is true.

    Raises NotFoundError, InvalidValueError for a parameter that is unknown, missing or out of bounds, and what the
    functions of embstore raise.
    """
    function = query(name)
    function = getattr(import_module(function.__module__), f"whole_{name}", function) if whole else function
    asked = Asked(stores, progress or (lambda done, total: None), cancelled or (lambda: False))
    return function(asked, **parse(parameters(name), {key: each for key, each in params.items() if each is not None}))


def query(name: str) -> Callable[..., Any]:
    """Return the function of a query. Raises NotFoundError."""
    if name not in QUERIES:
        raise NotFoundError(f"there is no query {quoted(name)}: choose one of {', '.join(QUERIES)}")
    function: Callable[..., Any] = getattr(import_module(f"{__package__}.{QUERIES[name]}"), name)
    return function


@lru_cache(None)
def parameters(name: str) -> dict[str, tuple[Any, Any]]:
    """Return the parameters of a query: name -> (type, default); `Parameter.empty` for one that must be given."""
    function = query(name)
    hints = get_type_hints(function, include_extras=True)
    return {
        each.name: (hints[each.name], each.default)
        for each in signature(function).parameters.values()
        if each.kind is Parameter.KEYWORD_ONLY
    }

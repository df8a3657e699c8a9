"""Arguments of public functions, checked against their annotations: a value of a wrong type is refused in one line."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, wraps
from itertools import islice
from numbers import Integral, Real
from os import PathLike
from pathlib import Path
from types import NoneType, SimpleNamespace, UnionType
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Literal,
    ParamSpec,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from embstore.errors import InvalidValueError, quoted

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

MAX_WHOLE = 2**63 - 1  # as arrays and tables hold it
_CHECKED_MEMBERS = 1000  # of a list; the function itself checks the rest, and what is in a list of lists
P = ParamSpec("P")
Result = TypeVar("Result")
_TEXTS: dict[Any, str] = {
    int: "a whole number",
    float: "a number",
    str: "a text",
    bool: "True or False",
    Path: "a path",
    NoneType: "None",
    Callable: "a function",
}
_MAKERS = {"Store": "open", "Plan": "plan"}  # class -> the function of embstore that returns one
_LISTED = (Iterable, Sequence, Collection)
# Classes that annotations name without loading them; an argument must be an instance of a class of this name.
_BY_NAME = {
    name: type(name, (), {})
    for name in ("Corpus", "DataFrame", "Executor", "Figure", "Plan", "Selection", "Store", "WordVectors")
}


@dataclass(frozen=True)
class Range:
    """The values that a number may have, as `Annotated[int, Range(1)]`; `unit`: what is counted, for the message."""

    least: float
    most: float = float("inf")
    unit: str = ""

    def check(self, name: str, value: float) -> None:
        if not self.least <= value <= self.most:
            allowed = f"{self.least} or more" if self.most == float("inf") else f"{self.least} to {self.most:,}"
            raise InvalidValueError(f"{name} {quoted(value)} is not allowed: give {allowed} {self.unit}".rstrip())


Positive = Annotated[int, Range(1)]
Count = Annotated[int, Range(0)]
Share = Annotated[float, Range(0, 1)]


def checked(function: Callable[P, Result]) -> Callable[P, Result]:
    """Decorate a function or a class to raise InvalidValueError for an argument that does not fit its annotation.

    A whole number may be any integer but a bool, within 64 bits and in the `Range` of its annotation; a `Literal` takes
    its values only; text must be valid Unicode, and a path must not hold NUL. An annotation that is more than a type, a
    union or a container of types, such as `ArrayLike`, allows anything.
    """
    if isinstance(function, type):
        made: Any = function
        made.__init__.__checked_class__ = made
        made.__init__ = checked(made.__init__)
        return function
    signature = inspect.signature(function)

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> Result:
        try:
            given = signature.bind(*args, **kwargs).arguments
        except TypeError:
            return function(*args, **kwargs)  # raises it with the name of the function
        hints = hints_of(function)
        for name, value in given.items():
            if name in hints:
                check_value(name, value, hints[name])
        return function(*args, **kwargs)

    return call


@lru_cache(None)
def hints_of(function: Callable[..., Any]) -> dict[str, Any]:
    """The annotations that can be evaluated: those of packages that are not loaded yet cannot."""
    hints: dict[str, Any] = {}
    checked_class: Any = getattr(function, "__checked_class__", object)
    modules = [each.__module__ for each in reversed(checked_class.__mro__)] + [function.__module__]
    polars = SimpleNamespace(DataFrame=_BY_NAME["DataFrame"])
    known = (
        {"pl": polars}
        | _BY_NAME
        | {name: value for module in modules for name, value in vars(sys.modules[module]).items()}
    )
    for name, parameter in inspect.signature(function).parameters.items():
        variable = parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        if variable or parameter.annotation is parameter.empty:
            continue
        try:
            alone = type("_", (), {"__annotations__": {name: parameter.annotation}})
            hints |= get_type_hints(alone, known, include_extras=True)
        except (NameError, AttributeError):
            continue
    return hints


def check_value(name: str, value: object, hint: Any) -> None:
    arms = _arms(hint)
    if arms is None:
        return
    for arm in arms:
        kind, *ranges = get_args(arm) if get_origin(arm) is Annotated else [arm]
        if _fits(value, kind):
            _check_content(name, value, kind, arms)
            for each in ranges:
                each.check(name, value)
            return
    choices = [choice for arm in arms if get_origin(arm) is Literal for choice in get_args(arm)]
    if choices and isinstance(value, type(choices[0])):
        allowed = ", ".join(map(str, choices))
        raise InvalidValueError(f"unknown {name.removeprefix('a ')} {quoted(value)}; allowed are {allowed}")
    texts = dict.fromkeys(_text_of(arm) for arm in arms)
    advice = next((f", which es.{maker} returns" for kind, maker in _MAKERS.items() if kind in texts), "")
    raise InvalidValueError(f"{name} {quoted(value)} is not allowed: give {' or '.join(texts)}{advice}")


def _text_of(arm: Any) -> str:
    """What a type is called in a message."""
    if get_origin(arm) is Annotated:
        arm = get_args(arm)[0]
    if get_origin(arm) is Literal:
        return " or ".join(map(repr, get_args(arm)))
    kind = get_origin(arm) or arm
    return _TEXTS.get(kind, getattr(kind, "__name__", ""))


def _arms(hint: Any) -> list[Any] | None:
    """The types of a union, or the one type; None if there is one that cannot be checked."""
    if hint is None or hint is NoneType:
        return [NoneType]
    if hint is Any:
        return None
    origin = get_origin(hint)
    if origin in (Union, UnionType):
        parts = [_arms(arm) for arm in get_args(hint)]
        return None if None in parts else [arm for part in parts if part is not None for arm in part]
    return [hint] if origin in (Literal, Annotated) or isinstance(origin or hint, type) else None


def _fits(value: object, hint: Any) -> bool:
    if get_origin(hint) is Literal:
        return any(type(value) is type(choice) and value == choice for choice in get_args(hint))
    kind = get_origin(hint) or hint
    name = getattr(kind, "__name__", "")
    if kind is _BY_NAME.get(name):
        return any(base.__name__ == name for base in type(value).__mro__)
    if getattr(kind, "_is_protocol", False):
        return all(hasattr(value, name) for name in dir(kind) if not name.startswith("_"))
    if kind in (int, float):
        return isinstance(value, Integral if kind is int else Real) and not isinstance(value, bool)
    if kind is bool:
        return isinstance(value, bool) or type(value).__name__ == "bool"  # numpy's
    if issubclass(kind, Path):
        return isinstance(value, PathLike)
    if kind in _LISTED:
        is_listed = isinstance(value, Iterable) and not isinstance(value, str | bytes | Mapping)
        return is_listed and getattr(value, "ndim", 1) > 0
    return isinstance(value, kind)


def _check_content(name: str, value: object, arm: Any, arms: list[Any]) -> None:
    """Check the size of a number, the characters of a text, and the first members of a list or all of a mapping."""
    if isinstance(value, Integral) and abs(int(value)) > MAX_WHOLE:
        raise InvalidValueError(f"{name} {quoted(value)} is not allowed: give a number within 64 bits")
    if isinstance(value, str):
        kinds = [get_origin(each) or each for each in arms]
        is_path = any(isinstance(kind, type) and issubclass(kind, PathLike) for kind in kinds)
        try:
            value.encode("utf-8", "surrogateescape" if is_path else "strict")  # paths may hold any byte
        except UnicodeEncodeError:
            is_bytes = any("\udc80" <= each <= "\udcff" for each in value)  # of the command line, as Python reads it
            why = "bytes beyond this locale: set PYTHONUTF8=1" if is_bytes else "half a surrogate pair"
            raise InvalidValueError(f"{name} {quoted(value)} is not text: it holds {why}") from None
        if is_path and ("\0" in value or not value):
            raise InvalidValueError(f"{name} {quoted(value)} is not a path: it {'holds NUL' if value else 'is empty'}")
    hints = get_args(arm)
    if isinstance(value, Mapping) and len(hints) == 2:
        for key, member in value.items():
            check_value(f"a key of {name}", key, hints[0])
            check_value(f"{name}[{quoted(key)}]", member, hints[1])
    elif hints and get_origin(arm) in _LISTED and get_origin(hints[0]) not in _LISTED:
        first = value.ravel()[:1].tolist() if hasattr(value, "ravel") else ()  # of an array
        for member in islice(value, _CHECKED_MEMBERS) if isinstance(value, list | tuple | set | frozenset) else first:
            check_value(f"a member of {name}", member, hints[0])


def require_utf8(path: Path) -> None:
    """Raise InvalidValueError for a path that is not UTF-8, which Polars cannot read or write."""
    try:
        str(path).encode()
    except UnicodeEncodeError:
        raise InvalidValueError(f"{quoted(str(path))} is not text: a table needs a name in UTF-8") from None


def as_matrix(name: str, values: ArrayLike, *, single: bool = False) -> NDArray[Any]:
    """Return numbers [n, feature] as an array; with `single` also one vector, as [1, feature].

    Raises InvalidValueError for anything else, and for no number at all.
    """
    import numpy as np

    try:
        array = np.asarray(values)
    except ValueError:
        array = np.empty(0, object)
    if array.ndim == 1 and single:
        array = array[None]
    if array.dtype.kind not in "fiu" or array.ndim != 2 or not array.size:
        raise InvalidValueError(
            f"{name} of shape {array.shape} and dtype {array.dtype} are not allowed: give numbers [n, feature]"
        )
    return array

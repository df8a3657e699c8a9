"""The long settings of a command: what `--config FILE.toml` may hold, and the file that `--write-config` prints."""

from __future__ import annotations

import inspect
import json
import re
import textwrap
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from embstore.arguments import check_value, hints_of
from embstore.errors import InvalidValueError

MAX_COMMENT = 110  # columns of a comment, which terminals show in one line
_TYPES = {int: "integer", float: "number", str: "string", bool: "boolean", NoneType: '"none"'}
_TYPES |= dict.fromkeys((Path, PathLike), "string")


@dataclass(frozen=True)
class Setting:
    """A key of a file of settings: its type, its default, and what the documentation of its function says of it."""

    kind: Any
    default: Any = inspect.Parameter.empty
    text: str = ""

    @property
    def help(self) -> str:
        """What it is, with its default in brackets."""
        shown = [] if self.default is inspect.Parameter.empty else [f"[default: {_shown(self.default)}]"]
        return " ".join([*([self.text] if self.text else []), *shown])


class Config:
    """The settings of a command beside its options: the arguments `names` of functions and dataclasses.

    `sources` returns them when they are needed, as they import what a command runs on: functions and dataclasses, the
    first that has a name gives its type and its default; or a mapping of names to types. With `by`, the name of an
    argument of the command, it returns a dataclass for each value of that argument, and all of its fields are settings.
    """

    def __init__(self, sources: Callable[[], Any], *names: str, by: str = "") -> None:
        self._sources, self._names, self.by = sources, names, by

    def settings(self, choice: str = "") -> dict[str, Setting]:
        """Return the settings by name; `choice`: the value of the argument `by`."""
        sources = self._sources()
        if self.by:
            sources = [sources[choice]]
        found: dict[str, Setting] = {}
        for source in sources if isinstance(sources, Sequence) else [sources]:
            for name, setting in _settings_of(source).items():
                if not self._names or name in self._names or isinstance(source, Mapping):
                    found.setdefault(name, setting)
        return found

    def choices(self) -> list[str]:
        """Return the values of the argument `by`, each of which has settings of its own; one empty one without it."""
        return list(self._sources()) if self.by else [""]

    def read(self, path: Path | None, choice: str = "") -> dict[str, Any]:
        """Return what a file sets, each value as its type has it. Raises InvalidValueError."""
        if path is None or choice not in self.choices():
            return {}
        import tomllib

        try:
            written = tomllib.loads(path.read_text("utf-8-sig"))
        except OSError as error:
            raise InvalidValueError(f"--config {path} cannot be read: {error.strerror or error}") from None
        except ValueError as error:  # TOMLDecodeError, UnicodeDecodeError, or a number of too many digits
            raise InvalidValueError(f"--config {path} is not TOML, where texts are in quotes: {error}") from None
        allowed, values = self.settings(choice), {}
        for key, value in written.items():
            if key not in allowed:
                known = f"choose {', '.join(allowed)}; options of the command are typed after it"
                raise InvalidValueError(f"--config {path}: {key} is not a setting: {known}")
            values[key] = _converted(value, allowed[key].kind)
            try:
                check_value(key, values[key], allowed[key].kind)
            except InvalidValueError as error:
                raise InvalidValueError(f"--config {path}: {error}") from None
        return values

    def toml(self, arguments: Iterable[str] = ()) -> str:
        """Return a file with all settings and their defaults; `arguments`: what is typed after the command."""
        choices = self.choices()
        choice = next((each for each in arguments if each in choices), choices[0])
        return "".join(_line(name, setting) for name, setting in self.settings(choice).items())


def _settings_of(source: Any) -> dict[str, Setting]:
    if isinstance(source, Mapping):
        return {name: Setting(kind) for name, kind in source.items()}
    call = source.__init__ if isinstance(source, type) else source  # type: ignore[misc]
    hints, texts = hints_of(call), _texts(inspect.getdoc(source) or "")
    parameters = inspect.signature(source).parameters
    return {
        name: Setting(hints[name], parameter.default, texts.get(name, ""))
        for name, parameter in parameters.items()
        if name in hints
    }


def _texts(doc: str) -> dict[str, str]:
    """Return what the section Parameters of a documentation says of each, up to the first empty line."""
    _, _, section = doc.partition("Parameters\n----------\n")
    section = re.split(r"\n\w+\n-+\n", section)[0]
    return {
        name: " ".join(text.split())
        for names, text in re.findall(r"^(\w[\w, ]*) :[^\n]*\n((?:    [^\n]*\n?|\n(?=    ))*)", section, re.M)
        for name in names.split(", ")
    }


def _kinds(kind: Any) -> list[Any]:
    """Return the types of a union, or the one type, each without its range."""
    arms = get_args(kind) if get_origin(kind) in (Union, types.UnionType) else (kind,)
    return [get_args(arm)[0] if get_origin(arm) is Annotated else arm for arm in arms]


def _converted(value: Any, kind: Any) -> Any:
    """Return a value of TOML as its type has it: None for "none", tuples for lists, paths for text."""
    kinds = _kinds(kind)
    if value == "none" and NoneType in kinds:
        return None
    tuples = [arm for arm in kinds if get_origin(arm) is tuple]
    if isinstance(value, list):
        return tuple(_converted(each, get_args(tuples[0])[0]) for each in value) if tuples else value
    if isinstance(value, str) and Path in kinds and str not in kinds:
        return Path(value)
    return float(value) if type(value) is int and float in kinds and int not in kinds else value


def _line(name: str, setting: Setting) -> str:
    """Return a setting as a line of TOML with its comment, commented out where its default is no value of TOML."""
    comment = "".join(f"# {line}\n" for line in textwrap.wrap(setting.text, MAX_COMMENT))
    default = setting.default
    if isinstance(default, str | int | float | tuple | frozenset | set | list):
        return f"{comment}{name} = {_shown(default)}\n"
    return f"{comment}# {name} =  # {_named(setting.kind)}\n"


def _shown(default: Any) -> str:
    """Return a default as TOML has it; "none" for None, and for what TOML cannot hold."""
    if isinstance(default, tuple | frozenset | set | list):
        return f"[{', '.join(map(_shown, default))}]"
    return json.dumps(default if isinstance(default, str | int | float) else "none", ensure_ascii=False)


def _named(kind: Any) -> str:
    """Return what a type is called in a comment."""
    names: list[str] = []
    for each in _kinds(kind):
        names += map(json.dumps, get_args(each)) if get_origin(each) is Literal else [_TYPES.get(each, "array")]
    return " or ".join(dict.fromkeys(names))

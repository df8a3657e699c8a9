"""The commands by name: each one's module is imported when it is first needed, and its help page made from it."""

from __future__ import annotations

import ast
import re
from collections import UserDict
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, is_dataclass
from functools import wraps
from importlib import import_module
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

import typer
from typer.core import TyperCommand, TyperGroup

from embstore.errors import EmbstoreError, InvalidValueError
from embstore_cli.config import Config
from embstore_cli.options import ConfigFile


@dataclass(frozen=True)
class Entry:
    """A command: `function` is its module and name, such as "store.info"; `example` follows "embstore"."""

    name: str
    function: str
    heading: str
    example: str

    def short_help(self, limit: int) -> str:
        """Return the first sentence of the command's help, which is read in its module: an import may take seconds."""
        module, _, name = self.function.partition(".")
        tree = ast.parse((Path(__file__).parent / f"{module}.py").read_text("utf-8"))
        (function,) = (each for each in tree.body if isinstance(each, ast.FunctionDef) and each.name == name)
        return TyperCommand(name, help=ast.get_docstring(function)).get_short_help_str(limit)

    def load(self) -> Any:
        """Import the module and return the command."""
        module, _, name = self.function.partition(".")
        function = grouped(getattr(import_module(f"embstore_cli.{module}"), name))
        made = typer.Typer(add_completion=False, rich_markup_mode=None)
        decorate = made.command(
            self.name, cls=Command, rich_help_panel=self.heading, epilog=f"Example: embstore {self.example}"
        )
        decorate(function)
        loaded: Any = typer.main.get_command(made)
        loaded.config = function.config
        return loaded


class Commands(UserDict[str, Any]):
    """Commands and groups by name; an Entry is loaded when it is looked up."""

    def __init__(self, commands: Iterable[Entry | TyperGroup]) -> None:
        super().__init__({str(command.name): command for command in commands})

    def __getitem__(self, name: str) -> Any:
        command = self.data[name]
        if isinstance(command, Entry):
            command = self.data[name] = command.load()
        return command


def grouped(command: Any) -> Any:
    """Return a command whose parameters are options only.

    A parameter that is a dataclass of options is replaced by these; `settings`, of a `Config`, by --config FILE.
    """
    hints = get_type_hints(command, include_extras=True)
    groups: dict[str, Any] = {name: hint for name, hint in hints.items() if is_dataclass(hint)}
    options: dict[str, Any] = {}  # name: (type, default)
    for name, parameter in signature(command).parameters.items():
        if name in groups:
            inner = get_type_hints(groups[name], include_extras=True)
            options |= {each.name: (inner[each.name], each.default) for each in fields(groups[name])}
        else:
            options[name] = (hints[name], parameter.default)
    marks = getattr(options.get("settings", (None,))[0], "__metadata__", ())
    config = next((each for each in marks if isinstance(each, Config)), None)
    if config is not None:
        del options["settings"]
        options["config"] = (ConfigFile, None)

    @wraps(command)
    def call(**given: Any) -> None:
        if config is not None:
            given["settings"] = config.read(given.pop("config"), given.get(config.by, ""))
        for name, group in groups.items():
            given[name] = group(**{each.name: given.pop(each.name) for each in fields(group)})
        command(**given)

    call.__dict__["config"] = config
    call.__annotations__ = {name: hint for name, (hint, _) in options.items()}
    parameters = [
        Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=hint)
        for name, (hint, default) in options.items()
    ]
    call.__dict__["__signature__"] = Signature(parameters)
    return call


def write_sections(formatter: Any, records: Iterable[tuple[str, str, str]], **widths: int) -> None:
    """Write the headings of a help page, and under each the names with their texts."""
    sections: dict[str, list[tuple[str, str]]] = {}
    for heading, name, text in records:
        sections.setdefault(heading, []).append((name, text))
    for heading, rows in sections.items():
        with formatter.section(heading):
            formatter.write_dl(rows, **widths)


class Command(TyperCommand):
    """A command whose `--help` lists its options under the headings that they name (`rich_help_panel`)."""

    config: Config | None = None
    typed: Sequence[str] = ()  # after the name of the command

    def get_params(self, ctx: Any) -> Any:
        return _Value.of(super().get_params(ctx))

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        return [piece.replace("{", "").replace("}", "") for piece in super().collect_usage_pieces(ctx)]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        rows = []
        for parameter in self.get_params(ctx):
            name, text = parameter.get_help_record(ctx)
            text = re.sub(r"(; )?(\d+<=x<=\d+|x>=\d+)", "", text).replace("  [", " [").removesuffix(" []")
            if parameter.param_type_name == "argument":
                rows.append(("Arguments", name.split(" <")[0], text.removesuffix(" [required]")))
            else:
                rows.append((getattr(parameter, "rich_help_panel", None) or "Options", name, text))
        choice = next((each for each in self.typed if self.config and each in self.config.choices()), "")
        if self.config is not None and choice:
            heading = f"Settings of {choice}, in a file for --config"
            rows += [(heading, name, setting.help) for name, setting in self.config.settings(choice).items()]
        write_sections(formatter, rows, col_max=24)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        self.typed = tuple(args)
        if self.config is not None and "--write-config" in args:
            print(self.config.toml(args), end="")
            raise typer.Exit
        return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        """Run the command; an error that names an argument of a Python function names the option instead."""
        try:
            return super().invoke(ctx)
        except EmbstoreError as error:
            options = {parameter.name: max(parameter.opts, key=len) for parameter in self.params if parameter.opts}
            names = {name: option for name, option in options.items() if "_" in name and option.startswith("--")}
            words = r"(?<![\w./-])[a-z]+(_[a-z]+)+(?![\w./(])"
            if not str(error).startswith("--config"):
                error.args = (re.sub(words, lambda word: names.get(word[0], word[0]), str(error)), *error.args[1:])
            raise


class _Value:
    """How what is typed for a parameter becomes its value, as typer would import pydantic for it."""

    def __init__(self, parameter: Any) -> None:
        kind = parameter.type_descriptor.annotation
        self._kind = get_args(kind)[0] if get_origin(kind) is list else kind
        self._least = parameter.type_descriptor.parameter_info.min

    @classmethod
    def of(cls, parameters: list[Any]) -> list[Any]:
        """Return parameters with such values."""
        for parameter in parameters:
            parameter._runtime_param = cls(parameter)
        return parameters

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        if param.multiple or param.nargs == -1:
            return [self._converted(each, param, ctx) for each in value or ()]
        return None if value is None else self._converted(value, param, ctx)

    def _converted(self, value: Any, param: Any, ctx: Any) -> Any:
        if self._kind in (bool, str, Path):
            return self._kind(value)
        if get_origin(self._kind) is Literal:
            choices = get_args(self._kind)
            if value in choices:
                return value
            shown, allowed = repr(value), ", ".join(map(str, choices))
        else:
            with suppress(ValueError):
                number = self._kind(value)
                if self._least is None or number >= self._least:
                    return number
            shown, allowed = value, "a whole number" if self._kind is int else "a number"
            allowed = allowed if self._least is None else f"{self._least} or more"
        name = max(param.opts, key=len) if param.param_type_name == "option" else param.metavar
        raise InvalidValueError(f"{name} {shown} is not allowed: give {allowed}; see {ctx.command_path} --help")


class Group(TyperGroup):
    """Commands whose `--help` lists them under the headings that they name (`rich_help_panel`)."""

    def get_params(self, ctx: Any) -> Any:
        return _Value.of(super().get_params(ctx))

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        rows, limit = [], formatter.width - 6 - max(map(len, self.commands))
        loaded: Any = self.commands
        for name, command in loaded.data.items():
            if isinstance(command, Entry):
                rows.append((command.heading, name, command.short_help(limit)))
            else:
                rows.append((command.rich_help_panel, name, command.get_short_help_str(limit)))
        write_sections(formatter, rows)

"""The help pages: options and commands under headings, in plain text that fits any terminal."""

from __future__ import annotations

import re
from typing import Any

from typer.core import TyperCommand, TyperGroup

from embstore.errors import EmbstoreError

SETTINGS: set[str] = set()  # the keys that --set takes in any command
RENAMED = {"test_words": "--test", "train_words": "--train"}  # arguments of functions


class Command(TyperCommand):
    """A command whose `--help` lists its options under the headings that they name (`rich_help_panel`)."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        return [piece.replace("{", "").replace("}", "") for piece in super().collect_usage_pieces(ctx)]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        sections: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is None:
                continue
            name, text = record[0], re.sub(r"(; )?\bx>=\d+\b", "", record[1]).replace("  [", " [").removesuffix(" []")
            heading = getattr(parameter, "rich_help_panel", None) or "Options"
            if parameter.param_type_name == "argument":
                heading, name, text = "Arguments", name.split(" <")[0], text.removesuffix(" [required]")
            sections.setdefault(heading, []).append((name, text))
        for heading, records in sections.items():
            with formatter.section(heading):
                formatter.write_dl(records, col_max=24)

    def invoke(self, ctx: Any) -> Any:
        """Run the command; an error that names an argument of a Python function names the option instead."""
        try:
            return super().invoke(ctx)
        except EmbstoreError as error:
            options = {parameter.name: max(parameter.opts, key=len) for parameter in self.params if parameter.opts}
            names = {name: option for name, option in options.items() if "_" in name and option.startswith("--")}
            error.args = (_in_options(str(error), names), *error.args[1:])
            raise


def _in_options(message: str, names: dict[str, str]) -> str:
    """Return a message with the options of the command in place of the names of Python arguments."""
    if message.startswith(("--set", "--config")):
        return message
    names = {**{key: f"--set {key}" for key in SETTINGS if "_" in key}, **RENAMED, **names}
    return re.sub(r"(?<![\w./-])[a-z]+(_[a-z]+)+(?![\w./(])", lambda found: names.get(found[0], found[0]), message)


class Group(TyperGroup):
    """Commands whose `--help` lists them under the headings that they name (`rich_help_panel`)."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        sections: dict[str, list[tuple[str, str]]] = {}
        for name in self.list_commands(ctx):
            command = self.commands[name]
            heading = getattr(command, "rich_help_panel", None)
            heading = heading if isinstance(heading, str) else "Commands"
            text = command.get_short_help_str(formatter.width - 6 - max(map(len, self.commands)))
            sections.setdefault(heading, []).append((name, text))
        for heading, records in sections.items():
            with formatter.section(heading):
                formatter.write_dl(records)

"""How commands describe themselves: options under headings, in plain text that fits any terminal."""

from __future__ import annotations

from typing import Any

from typer.core import TyperCommand


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
            name, text = record[0], record[1].replace("  [", " [")
            heading = getattr(parameter, "rich_help_panel", None) or "Options"
            if parameter.param_type_name == "argument":
                heading, name, text = "Arguments", name.split(" <")[0], text.removesuffix(" [required]")
            sections.setdefault(heading, []).append((name, text))
        for heading, records in sections.items():
            with formatter.section(heading):
                formatter.write_dl(records, col_max=24)

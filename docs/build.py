"""Build the documentation site into `site/`: python docs/build.py. Any warning or broken link is an error.

Pages that the code itself determines are written first: the API from the stubs of the public packages, the CLI from the
help of each command, the schemas, and the changelog.
"""

from __future__ import annotations

import ast
import json
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from latex2mathml.converter import convert

from embstore_studies import STUDIES

ROOT = Path(__file__).resolve().parents[1]
DOCS, SITE = ROOT / "docs", ROOT / "site"
EQUATION = re.compile(r'<(?:span|div) class="arithmatex">\\([(\[])(.*?)\\[)\]]</(?:span|div)>', re.S)
WHOLE = ("embstore.corpus", "embstore.errors", "embstore.executors")  # without a stub


def names_of(stub: Path) -> list[str]:
    """Return the names that a stub makes public, packages excluded."""
    imports = [node for node in ast.parse(stub.read_text()).body if isinstance(node, ast.ImportFrom)]
    return [str(name.asname) for node in imports if node.module for name in node.names]


def write_api(folder: Path) -> None:
    """Write a page for each public package: its names in the order of its stub."""
    stubs = {
        ".".join(stub.parent.relative_to(ROOT).parts): stub
        for stub in (ROOT / "embstore" / "__init__.pyi", *sorted((ROOT / "embstore").glob("*/__init__.pyi")))
    }
    for module, stub in {**stubs, "embstore_explorer": ROOT / "explorer" / "__init__.pyi"}.items():
        entries = [f"::: {module}.{name}" for name in sorted(names_of(stub), key=str.lower)]
        about = ast.get_docstring(ast.parse(stub.with_suffix(".py").read_text()))
        (folder / f"{module}.md").write_text("\n\n".join([f"# {module}", str(about), *entries]) + "\n")
    for module in WHOLE:
        (folder / f"{module}.md").write_text(f"::: {module}\n    options:\n      heading_level: 1\n")


def write_commands(folder: Path) -> None:
    """Write a page for each heading of `embstore --help`: the help of its commands as it is printed."""
    import click
    import typer

    from embstore_cli.main import app

    root = typer.main.get_command(app)
    pages: dict[str, list[str]] = {}

    def add(command: Any, parent: click.Context, heading: str) -> None:
        context = click.Context(
            command, info_name=command.name, parent=parent, terminal_width=100, max_content_width=100
        )
        pages.setdefault(heading, []).append(f"## {context.command_path}\n\n```text\n{command.get_help(context)}\n```")
        for name in getattr(command, "commands", {}):
            add(command.commands[name], context, heading)

    context = click.Context(root, info_name="embstore")
    for name in root.list_commands(context):
        command = root.get_command(context, name)
        add(command, context, command.rich_help_panel or "Commands")
    for heading, sections in pages.items():
        name = heading.lower().replace(" ", "-")
        (folder / f"{name}.md").write_text("\n\n".join([f"# {heading}", *sections]) + "\n")


def write_schemas(path: Path) -> None:
    """Write a page of all JSON schemas: what each describes, and its properties."""
    parts = ["# Schemas", "JSON Schema files of what embstore writes; in the package, `embstore.schemas` holds them."]
    for file in sorted((ROOT / "schemas").glob("*.json")):
        schema = json.loads(file.read_text())
        rows = [
            f"| `{name}` | {kind_of(about)} | {'yes' if name in schema.get('required', ()) else ''} | "
            f"{about.get('description', '')} |".replace("\n", " ")
            for name, about in schema.get("properties", {}).items()
        ]
        table = "\n".join(["| property | type | required | |", "| --- | --- | --- | --- |", *rows]) if rows else ""
        parts += [f"## {file.name}", str(schema.get("description") or schema.get("title", "")), table]
    path.write_text("\n\n".join(filter(None, parts)) + "\n")


def kind_of(about: dict[str, Any]) -> str:
    """Return the type of a property in words."""
    kind = about.get("type") or about.get("$ref", "").rpartition("/")[2] or ("one of" if "enum" in about else "")
    return " or ".join(kind) if isinstance(kind, list) else str(kind)


def write_citations(path: Path) -> None:
    """Write a page of the papers of all studies, as BibTeX."""
    found = [STUDIES[name].citation.strip() for name in sorted(STUDIES)]
    path.write_text("# The papers of the studies\n\n```bibtex\n" + "\n".join(found) + "\n```\n")


def draw_equations(site: Path) -> None:
    """Write the equations of all built pages as MathML, which browsers draw without a script."""
    for page in sorted(site.rglob("*.html")):
        text = page.read_text()
        drawn = EQUATION.sub(
            lambda found: convert(unescape(found[2]), display="block" if found[1] == "[" else "inline"), text
        )
        if drawn != text:
            page.write_text(drawn)


class Links(HTMLParser):
    """The links and the anchors of a built page."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.links: list[tuple[str, str]] = []
        self.anchors: set[str] = set()
        self.feed(page.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name in ("href", "src") and value:
                self.links.append((f"{tag} {name}", value))
            elif name in ("id", "name") and value:
                self.anchors.add(value)


def broken(site: Path) -> Iterator[str]:
    """Yield what is wrong with the links of a built site: missing files and anchors, and anything that is loaded."""
    pages = {page: Links(page) for page in sorted(site.rglob("*.html"))}
    for page, found in pages.items():
        for where, link in found.links:
            parts = urlsplit(link)
            target = (page.parent / unquote(parts.path)).resolve() if parts.path else page
            if parts.scheme or parts.netloc:
                if where != "a href" or parts.scheme not in ("https", "mailto") or " " in link:
                    yield f"{page.relative_to(site)}: {where} {link}: a page loads nothing remote and links by https"
            elif page.name != "404.html" and not target.is_file():
                yield f"{page.relative_to(site)}: {where} {link}: no such file"
            elif parts.fragment and target in pages and unquote(parts.fragment) not in pages[target].anchors:
                yield f"{page.relative_to(site)}: {where} {link}: no such anchor"


def left_out() -> Iterator[str]:
    """Yield the pages that the navigation does not name."""
    named = json.dumps(tomllib.loads((ROOT / "zensical.toml").read_text())["project"]["nav"])
    for page in sorted(DOCS.rglob("*.md")):
        name = page.relative_to(DOCS).as_posix()
        if f'"{name}"' not in named:
            yield f"{name}: not in the navigation; add it to zensical.toml"


def main() -> None:
    """Write the pages, build the site, check its links."""
    for name, write in {"api": write_api, "cli": write_commands}.items():
        folder = DOCS / "reference" / name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        write(folder)
    write_schemas(DOCS / "reference" / "schemas.md")
    shutil.copy(ROOT / "CHANGELOG.md", DOCS / "about" / "changelog.md")
    write_citations(DOCS / "about" / "studies.md")
    built = subprocess.run([sys.executable, "-m", "zensical", "build", "--strict", "--clean"], cwd=ROOT)
    draw_equations(SITE)
    faults = [*left_out(), *broken(SITE)]
    print(*faults, sep="\n", file=sys.stderr)
    sys.exit(1 if faults or built.returncode else 0)


if __name__ == "__main__":
    main()

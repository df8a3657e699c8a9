"""The command line, the documents and the examples use public names and existing options only."""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import embstore
from tests.documents import PAGES, ROOT, blocks, check_command, commands, commands_of

MAX_KNOBS = 239  # options and keys of --config on all pages of --help together, without what prints a page
MAX_KNOBS_OF_A_COMMAND = 54
FOLDERS = ("cli", "examples", "explorer", "studies")
SCRIPTS = [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))]
MODULES = {"errors", "executors"}  # public, and imported by their names: `from embstore.errors import ...`


def is_public(name: str) -> bool:
    """Return whether a dotted name starting with `embstore` is a top-level name or listed in a namespace."""
    holder: Any = embstore
    parts = name.split(".")[1:]
    if parts and parts[0] in MODULES:
        module = importlib.import_module(f"embstore.{parts[0]}")
        return len(parts) == 1 or (not parts[1].startswith("_") and hasattr(module, parts[1]))
    for part in parts:
        if not isinstance(holder, ModuleType):
            return True  # an attribute of a public object
        listed = getattr(holder, "__all__", None)
        if listed is None:
            listed = [key for key in vars(holder) if not key.startswith("_")]
        if part not in listed and part != "__version__":
            return False
        holder = getattr(holder, part)
    return True


def names_used(code: str) -> Iterator[str]:
    """Yield the dotted names of `embstore` that code imports or reads as attributes of an imported module."""
    tree = ast.parse(code)
    aliases: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for each in node.names:
                if each.name.split(".")[0] == "embstore":
                    yield each.name
                    aliases[each.asname or "embstore"] = each.name if each.asname else "embstore"
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "embstore":
            yield from (f"{node.module}.{each.name}" for each in node.names)
    for node in ast.walk(tree):
        parts: list[str] = []
        while isinstance(node, ast.Attribute):
            parts.append(node.attr)
            node = node.value
        if parts and isinstance(node, ast.Name) and node.id in aliases:
            yield ".".join([aliases[node.id], *reversed(parts)])


def private_names(code: str) -> list[str]:
    return sorted({name for name in names_used(code) if not is_public(name)})


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_what_stands_beside_the_engine_uses_public_names(path: Path) -> None:
    allowed = {
        "config.py": ("embstore.arguments.",),
        "__init__.py": ("embstore.lazy.",),
        "study.py": ("embstore.intervals.",),
    }  # how values are checked, names loaded, intervals computed
    checked = allowed.get(path.name, ())
    assert not [name for name in private_names(path.read_text("utf-8")) if not name.startswith(checked)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_documents_use_public_names(page: Path) -> None:
    wrong = {
        f"{page.name}:{block.line}": names
        for block in blocks(page)
        if block.language == "python" and (names := private_names(block.code))
    }
    assert not wrong


def test_private_names_are_found() -> None:
    code = "import embstore as es\nfrom embstore.store import zarr\nes.open('x').rows\nes.store.layout\nes.plan"
    assert private_names(code) == ["embstore.store.layout", "embstore.store.zarr"]


def test_every_name_in_a_namespace_resolves() -> None:
    for name in embstore.__all__:
        value = getattr(embstore, name)
        for inner in getattr(value, "__all__", ()) if isinstance(value, ModuleType) else ():
            assert getattr(value, inner) is not None, f"{name}.{inner}"


def knobs() -> dict[str, tuple[int, int]]:
    """Return the number of options of each command, and of the keys of its --config file."""
    counts = {}
    for name, command in commands().items():
        config = getattr(command, "config", None)
        keys = {key for choice in config.choices() for key in config.settings(choice)} if config else ()
        counts[name] = sum(each.param_type_name == "option" for each in command.params), len(keys)
    return counts


def test_the_number_of_options_and_settings() -> None:
    counts = knobs()
    assert sum(map(sum, counts.values())) <= MAX_KNOBS, counts
    assert max(map(sum, counts.values())) <= MAX_KNOBS_OF_A_COMMAND, counts


@pytest.mark.parametrize("name", [name for name, command in commands().items() if getattr(command, "config", None)])
def test_the_file_that_a_command_writes_has_its_settings(name: str, tmp_path: Path) -> None:
    config, path = commands()[name].config, tmp_path / "a.toml"
    for choice in config.choices():
        path.write_text(config.toml([choice]), "utf-8")
        keys = re.findall(r"^(?:# )?(\w+) =", path.read_text("utf-8"), re.M)
        assert keys == list(config.settings(choice))
        config.read(path, choice)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_in_documents_exist(page: Path) -> None:
    for block in blocks(page):
        if block.language == "bash":
            for _, words in commands_of(block):
                if words[0] == "embstore":
                    check_command(words)


if __name__ == "__main__":  # prints the options and settings of each command
    for command, (options, settings) in knobs().items():
        print(f"{command:30} {options:3} {settings:3}")
    print("in all", sum(map(sum, knobs().values())))

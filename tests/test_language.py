"""Words and sizes that keep the code readable: no private English, no function over a screen."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from tests.test_imports import statements

ROOT = Path(__file__).parents[1]
FOLDERS = ("embstore", "cli", "tests", "benchmarks", "examples", "docs", "schemas")
SUFFIXES = {".py", ".pyi", ".md", ".json"}
MAX_FUNCTION_LINES = 60

# Pattern -> what to write.
BANNED = {
    r"\btold\b": "reports, is given",
    r"\btells? (apart|by|whether)\b": "distinguish, determine",
    r"\bstands?\b|\bstanding\b": "exists, is stored",
    r"\banew\b": "again",
    r"\bmend(s|ed|ing)?\b": "repair, fix",
    r"\black(s|ed|ing)?\b": "has no, is missing",
    r"\bslopes?\b": "gradient",
    r"\bso many\b": "N at a time",
    r"\bgo(es|ne)? on with\b": "resume",
    r"\b(lest|unsaid|foreman|crew|gone by)\b": "plain English",
    r"\bby lot\b": "at random",
    r"\b(graphics )?cards?\b": "GPU",
    r"\brooms?\b": "buffer, space",
    r"\bfar rows\b": "remote rows",
    r"\bbeside\b": "next to, compared with",
    r"\bplace_of\b": "parse, index, position",
    r"\bsettle[sd]?\b": "is finalized, choose",
    r"\bhands? over\b": "passes",
    r"\bwhoever\b|\bwherein\b|\bthereof\b|\bwhence\b": "plain English",
    r"\bis none of\b|\bare none of\b|\bis no part\b": "is not one of",
}


def texts() -> list[Path]:
    found = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")]
    for folder in FOLDERS:
        found += [path for path in (ROOT / folder).rglob("*") if path.suffix in SUFFIXES]
    return [path for path in found if path != Path(__file__) and "results" not in path.parts]


def test_plain_words() -> None:
    any_of_them = re.compile("|".join(BANNED))
    found = []
    for path in texts():
        text = path.read_text().replace("_", " ").lower()
        for word, better in BANNED.items() if any_of_them.search(text) else ():  # all at once take a tenth of the time
            for match in re.finditer(word, text):
                line = text.count("\n", 0, match.start()) + 1
                found.append(f"{path.relative_to(ROOT)}:{line}: {match[0]}; write: {better}")
    assert not found, "\n".join(found[:20]) + f"\n{len(found)} in all"


def test_a_function_fits_a_screen() -> None:
    long = []
    for folder in ("embstore", "cli"):
        for path in (ROOT / folder).rglob("*.py"):
            for node in statements(ast.parse(path.read_text())):
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                    lines = (node.end_lineno or 0) - node.lineno + 1
                    if lines > MAX_FUNCTION_LINES:
                        long.append(f"{path.relative_to(ROOT)}:{node.lineno} {node.name}: {lines} lines")
    assert not long, "\n".join(long)

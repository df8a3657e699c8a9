"""`embstore reproduce`: the study of a paper, from extraction to report."""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from inspect import getdoc
from pathlib import Path
from typing import Annotated, Any

import typer

import embstore_cli.options as opt
import embstore_studies as studies
from embstore.errors import InvalidValueError
from embstore_cli.output import print_table
from embstore_studies import STUDIES

ABOUT = "\n\n".join(f"{study}: {kind.about}; DATA: {kind.data}." for study, kind in STUDIES.items())


def reproduce(
    study: Annotated[str, opt.argument("STUDY", f"The paper: {', '.join(STUDIES)}.")],
    data: Annotated[Path, opt.argument("DATA", "What the study needs; see above.")],
    model: Annotated[list[str], opt.option("[NAME=]MODEL", "Model folder or hub name.", "--model", "-m")],
    out: Annotated[Path, opt.option("FOLDER", "Folder of stores, tables, figures and the report.")],
    *,
    small: Annotated[bool, typer.Option("--small", help="A size for two CPU cores (zhao2020).")] = False,
    settings: Annotated[dict[str, Any], opt.Config(lambda: STUDIES, by="study")],
) -> None:
    """Reproduce the study of a paper; rerun to resume.

    All write tables, figures and report.md to --out. `reproduce STUDY --help` lists the settings of a study.
    """
    if study not in STUDIES:
        raise InvalidValueError(f"unknown study {study!r}: choose {', '.join(STUDIES)}")
    kind: Any = STUDIES[study]
    if small and not hasattr(kind, "small"):
        raise InvalidValueError(f"--small: {study} has one size: leave it out")
    chosen = (kind.small if small else kind)(**settings)
    steps, handler = logging.getLogger("embstore_studies"), logging.StreamHandler()
    handler.setFormatter(logging.Formatter("... %(message)s"))
    steps.addHandler(handler)
    steps.setLevel(logging.INFO)
    try:
        result = studies.reproduce(chosen, data, model=named_models(model), out=out)
    finally:
        steps.removeHandler(handler)
    print(result.scale)
    for section in result.sections:
        print()
        print_table(section.rows, title=section.title)
        if section.note:
            print(section.note)
    print(f"\nReport, figures and tables: {result.report}")


reproduce.__doc__ = f"{getdoc(reproduce)}\n\n{ABOUT}"


def named_models(models: Sequence[str]) -> dict[str, str]:
    """Return the models by name: the text before the equals sign, or the last part of the path."""
    named: dict[str, str] = {}
    for each in models:
        before, sign, after = each.partition("=")
        name, model = (before, after) if sign and "/" not in before else (Path(each).name, each)
        if not re.fullmatch(r"[\w.+-]+", name) or not model or name in named:
            raise InvalidValueError(f"--model {each!r}: {name!r} cannot name a file of its own: give NAME=MODEL")
        named[name] = model
    return named

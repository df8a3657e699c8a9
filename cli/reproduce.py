"""`embstore reproduce`: the study of a paper, from extraction to report."""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any

import typer

import embstore_cli.options as opt
import embstore_studies as studies
from embstore.errors import InvalidValueError
from embstore_cli.output import print_json, print_table
from embstore_studies import STUDIES

OPTIONS = {"train": "--train", "test": "--test", "vectors": "--vectors", "tuning": "--tuning", "tasks": "--task"}
ALLOWED = {study: {field.name for field in fields(kind)} for study, kind in STUDIES.items()}


def having(setting: str) -> str:
    """Return the studies that have a setting."""
    return ", ".join(study for study, allowed in ALLOWED.items() if setting in allowed)


ABOUT = "\n\n".join(f"{study}: {kind.about}; DATA: {kind.data}." for study, kind in STUDIES.items())


def reproduce(
    study: Annotated[str, opt.argument("STUDY", f"The paper: {', '.join(STUDIES)}.")],
    data: Annotated[Path, opt.argument("DATA", "What the study needs; see above.")],
    model: Annotated[list[str], opt.option("[NAME=]MODEL", "Model folder or hub name.", "--model", "-m")],
    out: Annotated[Path, opt.option("FOLDER", "Folder of stores, tables, figures and the report.")],
    small: Annotated[bool, typer.Option("--small", help="A size for two CPU cores.")] = False,
    train: Annotated[Path | None, opt.option("TSV", f"{having('train')}: train words (DATA's train.tsv).")] = None,
    test: Annotated[Path | None, opt.option("TSV", f"{having('test')}: test words (DATA's test.tsv).")] = None,
    vectors: Annotated[
        list[str] | None, opt.option("NAME=FILE", f"{having('vectors')}: word vectors to compare, repeatable.")
    ] = None,
    tuning: Annotated[
        list[str] | None,
        opt.option("TASK=DATA", f"{having('tuning')}: fine-tune for pos, ner, classify or paraphrase, repeatable."),
    ] = None,
    *,
    task: Annotated[list[str] | None, opt.option("NAME", f"{having('tasks')}: a task, repeatable (all).")] = None,
    settings: Annotated[dict[str, Any], opt.Config(lambda: STUDIES, by="study")],
    device: opt.Device = "auto",
    as_json: opt.AsJson = False,
) -> None:
    if study not in STUDIES:
        raise InvalidValueError(f"unknown study {study!r}: choose {', '.join(STUDIES)}")
    own: dict[str, Any] = {
        "train": train,
        "test": test,
        "vectors": named_files(vectors, "--vectors"),
        "tuning": named_files(tuning, "--tuning"),
        "tasks": tuple(task or ()),
    }
    own = {key: value for key, value in own.items() if value}
    for key in own:
        if key not in ALLOWED[study]:
            raise InvalidValueError(f"{OPTIONS[key]} is not for {study}, but for {having(key)}: leave it out")
    kind: Any = STUDIES[study]
    if small and not hasattr(kind, "small"):
        raise InvalidValueError(f"--small: {study} has one size: leave it out")
    chosen = (kind.small if small else kind)(**settings, **own)
    logging.basicConfig(format="... %(message)s")
    logging.getLogger("embstore_studies").setLevel(logging.INFO)
    result = studies.reproduce(chosen, data, model=named_models(model), out=out, device=device)
    if as_json:
        print_json({section.title: list(section.rows) for section in result.sections})
        return
    print_report(result)


reproduce.__doc__ = f"""Reproduce the study of a paper; rerun to resume.

All write tables, figures, report.md and report.html to --out.

{ABOUT}
"""


def print_report(result: studies.StudyResult) -> None:
    """Print the tables of a study and where its report is."""
    print(result.scale)
    for section in result.sections:
        print()
        print_table(section.rows, title=section.title)
        if section.note:
            print(section.note)
    print(f"\nReport, figures and tables: {result.report}")


def named_files(given: Sequence[str] | None, option: str) -> dict[str, Path]:
    """Return the paths of a repeatable NAME=PATH option by name."""
    named: dict[str, Path] = {}
    for each in given or ():
        name, sign, file = each.partition("=")
        if not (name and sign and file):
            raise InvalidValueError(f"{option} {each!r} is not allowed: give NAME=PATH, such as GloVe=glove.txt")
        if not Path(file).exists():
            raise InvalidValueError(f"{option} {name}: there is no file or folder {file}")
        named[name] = Path(file)
    return named


def named_models(given: Sequence[str]) -> dict[str, str]:
    """Return the models by name: the text before the equals sign, or the last part of the path."""
    named: dict[str, str] = {}
    for each in given:
        name, sign, model = each.partition("=")
        if not sign or "/" in name:
            model = each
            name = Path(each).name or each
        if not name or not model:
            raise InvalidValueError(f"--model {each!r} is not allowed: give MODEL or NAME=MODEL")
        if not re.fullmatch(r"[\w.+-]+", name):
            raise InvalidValueError(f"--model {each!r}: {name!r} cannot be a file name: give NAME=MODEL")
        if name in named:
            raise InvalidValueError(f"--model: two models are named {name}: name them, as in first={named[name]}")
        named[name] = model
    return named

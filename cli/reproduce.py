"""`embstore reproduce`: the study of a paper, from extraction to report."""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, get_type_hints

import typer

import embstore as es
import embstore_cli.options as opt
from embstore.errors import InvalidValueError
from embstore_cli.output import print_json, print_table

OPTIONS = {"train", "test", "vectors", "tuning", "tasks"}  # the settings with options of their own
KEYS: dict[str, dict[str, Any]] = {
    study: {key: kind for key, kind in get_type_hints(settings).items() if key not in OPTIONS}
    for study, settings in es.studies.STUDIES.items()
}


def reproduce(
    study: Annotated[
        Literal["zhao2020", "tenney2019", "ethayarajh2019", "hewitt2019"], opt.argument("STUDY", "The paper.")
    ],
    data: Annotated[
        Path,
        opt.argument(
            "DATA",
            "zhao2020: a corpus in Wiki-PSE markup; tenney2019: a folder with a folder per task; ethayarajh2019: any "
            "corpus; hewitt2019: a folder of train, dev and test in CoNLL-U.",
        ),
    ],
    model: Annotated[list[str], opt.option("[NAME=]MODEL", "Model folder or hub name.", "--model", "-m")],
    out: Annotated[Path, opt.option("FOLDER", "Folder of stores, tables, figures and the report.")],
    small: Annotated[bool, typer.Option("--small", help="A size for one or two hours on two CPU cores.")] = False,
    train: Annotated[Path | None, opt.option("TSV", "zhao2020: train words (DATA's train.tsv).")] = None,
    test: Annotated[Path | None, opt.option("TSV", "zhao2020: test words (DATA's test.tsv).")] = None,
    vectors: Annotated[
        list[str] | None, opt.option("NAME=FILE", "zhao2020, ethayarajh2019: word vectors to compare, repeatable.")
    ] = None,
    tuning: Annotated[
        list[str] | None,
        opt.option("TASK=DATA", "zhao2020: fine-tune for pos, ner, classify or paraphrase, repeatable."),
    ] = None,
    task: Annotated[list[str] | None, opt.option("NAME", "tenney2019, hewitt2019: a task, repeatable (all).")] = None,
    config: opt.Config = None,
    settings: Annotated[
        list[str] | None, opt.set_option({key: kind for keys in KEYS.values() for key, kind in keys.items()})
    ] = None,
    device: opt.Device = "auto",
    as_json: opt.AsJson = False,
) -> None:
    """Reproduce the study of a paper; rerun to resume.

    zhao2020: semantic classes by layer, representation and context, before and after fine-tuning. tenney2019: in which
    layers the tasks of the NLP pipeline are solved. ethayarajh2019: how contextual the vectors of each layer are; --set
    benchmarks=FOLDER adds Table 1. hewitt2019: syntax trees by layer and rank, selectivity, code lengths. All write
    tables, figures, report.md and report.html to --out.
    """
    given = opt.read_settings(settings, KEYS[study], config)
    files: dict[str, Any] = {"vectors": named_files(vectors, "--vectors")}
    own: dict[str, dict[str, Any]] = {
        "zhao2020": {"train": train, "test": test, "tuning": named_files(tuning, "--tuning"), **files},
        "tenney2019": {"tasks": task},
        "ethayarajh2019": files,
        "hewitt2019": {"tasks": tuple(task)} if task else {},
    }
    kind: Any = es.studies.STUDIES[study]
    if small and not hasattr(kind, "small"):
        raise InvalidValueError(f"--small: {study} has one size: leave it out")
    chosen = (kind.small if small else kind)(**given, **own[study])
    logging.basicConfig(format="... %(message)s")
    logging.getLogger("embstore.studies").setLevel(logging.INFO)
    result = es.reproduce(chosen, data, model=named_models(model), out=out, device=device)
    if as_json:
        print_json({section.title: list(section.rows) for section in result.sections})
        return
    print_report(result)


def print_report(result: es.studies.StudyResult) -> None:
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
            name, model = Path(each).name or each, each
        if not name or not model:
            raise InvalidValueError(f"--model {each!r} is not allowed: give MODEL or NAME=MODEL")
        if not re.fullmatch(r"[\w.+-]+", name):
            raise InvalidValueError(f"--model {each!r}: {name!r} cannot be a file name: give NAME=MODEL")
        if name in named:
            raise InvalidValueError(f"--model: two models are named {name}: name them, as in first={named[name]}")
        named[name] = model
    return named

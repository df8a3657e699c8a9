"""`embstore recipe`: whole studies of the literature."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from embstore.errors import InvalidValueError
from embstore_cli.help import Command
from embstore_cli.options import AsJson, Device, Model
from embstore_cli.output import print_json, print_table

if TYPE_CHECKING:
    from embstore.studies.report import Shown

recipe = typer.Typer(help="Carry out a study of the literature, end to end.", no_args_is_help=True)
Data = Annotated[Path | None, typer.Option(metavar="DATA", help="Fine-tune on it: a folder with train and dev files.")]


def add_to(app: typer.Typer) -> None:
    recipe.command("zhao2020", cls=Command)(zhao2020)
    recipe.command("tenney2019", cls=Command)(tenney2019)
    app.add_typer(recipe, name="recipe")


def zhao2020(
    corpus: Annotated[
        Path, typer.Argument(metavar="CORPUS", help="A corpus in Wiki-PSE markup, with its targets labelled by class.")
    ],
    model: Model,
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="Where stores, tables, figures and the report go.")],
    train: Annotated[Path | None, typer.Option(metavar="TSV", help="Words to learn from (train.tsv there).")] = None,
    test: Annotated[Path | None, typer.Option(metavar="TSV", help="Words to be asked (test.tsv there).")] = None,
    vectors: Annotated[
        list[str] | None, typer.Option(metavar="NAME=FILE", help="Word vectors to compare, such as GloVe=glove.txt.")
    ] = None,
    pos: Data = None,
    ner: Data = None,
    classify: Data = None,
    paraphrase: Data = None,
    scale: Annotated[
        str, typer.Option(metavar="paper|cpu", help="The paper's figures, or small enough for an hour on two cores.")
    ] = "paper",
    kind: Annotated[str | None, typer.Option(metavar="mlp|linear", help="The kind of probe.")] = None,
    hidden: Annotated[int | None, typer.Option(metavar="N", help="Units of a probe's hidden layer.")] = None,
    max_contexts: Annotated[int | None, typer.Option(metavar="N", help="Contexts of a word-class pair.")] = None,
    epochs: Annotated[int | None, typer.Option(metavar="N", help="Epochs of a probe, at most.")] = None,
    seeds: Annotated[str, typer.Option(metavar="N,N", help="Seeds of the probes, one or several.")] = "0",
    context_windows: Annotated[str | None, typer.Option(metavar="K,K", help="Such as 0,2,4,8,16,32,full.")] = None,
    attention_windows: Annotated[str | None, typer.Option(metavar="K,K", help="Of POS tagging, alike.")] = None,
    tuning_epochs: Annotated[int | None, typer.Option(metavar="N", help="Epochs of fine-tuning.")] = None,
    tuning_sentences: Annotated[int | None, typer.Option(metavar="N", help="Sentences to fine-tune on.")] = None,
    seed: Annotated[int, typer.Option(metavar="N", help="Seed of samples, splits and fine-tuning.")] = 0,
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Probe semantic classes by layer, representation and context.

    Zhao et al. 2020: Tables 2, 3, 5, 6, 7 and Figures 3 to 7 with the numbers of your model and corpus. The same
    command goes on where an interrupted one ended.
    """
    from embstore.extraction.options import parse_windows
    from embstore.studies.zhao2020 import report
    from embstore.studies.zhao2020.study import Scale, cpu_scale
    from embstore.studies.zhao2020.study import zhao2020 as carry_out

    if scale not in ("paper", "cpu"):
        raise InvalidValueError(f"--scale {scale!r} is not known: choose paper or cpu")
    given: dict[str, Any] = {
        "kind": kind,
        "hidden_size": hidden,
        "max_contexts": max_contexts,
        "epochs": epochs,
        "context_windows": None if context_windows is None else parse_windows(context_windows, name="context"),
        "attention_windows": None if attention_windows is None else parse_windows(attention_windows, name="attention"),
        "tuning_epochs": tuning_epochs,
        "tuning_sentences": tuning_sentences,
    }
    chosen = {name: value for name, value in given.items() if value is not None}
    chosen |= {"seeds": _numbers(seeds), "seed": seed}
    tuning = {"pos": pos, "ner": ner, "classify": classify, "paraphrase": paraphrase}
    result = carry_out(
        corpus,
        model=model,
        out=out,
        train=train,
        test=test,
        vectors=_named(vectors or []),
        tuning={task: data for task, data in tuning.items() if data is not None},
        scale=Scale(**chosen) if scale == "paper" else cpu_scale(**chosen),
        device=device,
        tell=lambda text: typer.echo(f"... {text}", err=True),
    )
    tables = report.tables(result)
    if as_json:
        print_json({table.title: list(table.rows) for table in tables})
        return
    _print_study(report.scale_line(result), tables, result.folder)


def _numbers(text: str) -> tuple[int, ...]:
    for part in text.split(","):
        if not part.strip().isdecimal():
            raise InvalidValueError(f"--seeds {part.strip()!r} is no seed: give numbers like 0,1,2")
    return tuple(int(part) for part in text.split(","))


def _named(given: list[str]) -> dict[str, Path]:
    named: dict[str, Path] = {}
    for each in given:
        name, equals, file = each.partition("=")
        if not (name and equals and file):
            raise InvalidValueError(f"--vectors {each!r} cannot be read: give NAME=FILE, such as GloVe=glove.txt")
        if not Path(file).is_file():
            raise InvalidValueError(f"--vectors {name}: there is no file {file}")
        named[name] = Path(file)
    return named


def tenney2019(
    data: Annotated[
        Path,
        typer.Argument(metavar="DIR", help="A folder of tasks, each a folder with train.jsonl, dev.jsonl, test.jsonl."),
    ],
    model: Annotated[
        list[str],
        typer.Option(
            "--model",
            "-m",
            metavar="[NAME=]MODEL",
            help="A model, or several to stand side by side, as extract takes it.",
        ),
    ],
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="Where stores, tables, figures and the report go.")],
    task: Annotated[list[str] | None, typer.Option(metavar="NAME", help="Only these tasks of the folder.")] = None,
    scale: Annotated[
        str, typer.Option(metavar="paper|cpu", help="All sentences, or few enough for two hours on two cores.")
    ] = "paper",
    sentences: Annotated[
        int | None, typer.Option(metavar="N", min=0, help="Sentences of each split of a task at most; 0: all.")
    ] = None,
    unit: Annotated[str, typer.Option(metavar="subword|word", help="What has a row.")] = "subword",
    layerwise: Annotated[bool, typer.Option("--layerwise", help="Also a probe of each layer by itself.")] = False,
    control: Annotated[bool, typer.Option("--control", help="Also control tasks, for selectivity.")] = False,
    untrained: Annotated[bool, typer.Option(help="Also the model with random weights, as a baseline.")] = True,
    hidden: Annotated[int, typer.Option(metavar="N", help="Units of the projection and of the hidden layer.")] = 256,
    epochs: Annotated[int | None, typer.Option(metavar="N", help="Epochs of a probe, at most.")] = None,
    seeds: Annotated[str | None, typer.Option(metavar="N,N", help="Seeds of the probes, one or several.")] = None,
    seed: Annotated[int, typer.Option(metavar="N", help="Seed of samples and of random weights.")] = 0,
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Find in which layers the tasks of the NLP pipeline are solved.

    Tenney et al. 2019: scalar mixing, cumulative scores, center of gravity and expected layer of every task, as their
    Figures 1, 2 and A.1 to A.3 and one table of tasks by metrics. Sentences are extracted once for all tasks. The same
    command goes on where an interrupted one ended.
    """
    from embstore.studies.tenney2019 import report
    from embstore.studies.tenney2019.study import Scale, cpu_scale
    from embstore.studies.tenney2019.study import tenney2019 as carry_out

    if scale not in ("paper", "cpu"):
        raise InvalidValueError(f"--scale {scale!r} is not known: choose paper or cpu")
    given: dict[str, Any] = {"epochs": epochs, "seeds": None if seeds is None else _numbers(seeds)}
    chosen = {name: value for name, value in given.items() if value is not None}
    if sentences is not None:
        chosen["sentences"] = sentences or None
    chosen |= {
        "unit": unit,
        "layerwise": layerwise,
        "control": control,
        "untrained": untrained,
        "hidden_size": hidden,
        "seed": seed,
    }
    result = carry_out(
        data,
        models=_models(model),
        out=out,
        tasks=task,
        scale=Scale(**chosen) if scale == "paper" else cpu_scale(**chosen),
        device=device,
        tell=lambda text: typer.echo(f"... {text}", err=True),
    )
    tables = report.tables(result)
    if as_json:
        print_json(result.scores.to_dicts())
        return
    _print_study(report.scale_line(result), tables, result.folder)


def _models(given: list[str]) -> dict[str, str]:
    """The models by name: that before the equals sign, or the last part of the path."""
    named: dict[str, str] = {}
    for each in given:
        name, equals, model = each.partition("=")
        if not equals or "/" in name:
            name, model = Path(each).name or each, each
        if not name or not model:
            raise InvalidValueError(f"--model {each!r} cannot be read: give MODEL, or NAME=MODEL")
        if not re.fullmatch(r"[\w.+-]+", name):
            raise InvalidValueError(f"--model {each!r}: {name!r} is no name for files: give NAME=MODEL")
        if name in named:
            raise InvalidValueError(f"--model: two are called {name}: name them, as in first={named[name]}")
        named[name] = model
    return named


def _print_study(scale: str, tables: Sequence[Shown], folder: Path) -> None:
    print(scale)
    for table in tables:
        print()
        print_table(table.rows, title=table.title)
        if table.note:
            print(table.note)
    print(f"\nReport, figures and tables: {folder / 'report.md'}")

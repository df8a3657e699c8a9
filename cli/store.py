"""Commands on stores: info, verify, lookup, export, static, thin and label."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

import embstore as es
import embstore_cli.options as opt
from embstore.errors import InvalidValueError
from embstore_cli.output import Output, counted, print_concordance, print_json, require_folder_of

FORMATS = {".txt": "text", ".vec": "text", ".glove": "glove", ".bin": "binary", ".zarr": "store", ".h5": "store"}
SHOWN = 20  # occurrences that lookup prints by default
Dtype = Annotated[
    Literal["float32", "float16", "bfloat16", "int8"] | None, opt.option("DTYPE", "float16, float32, bfloat16 or int8.")
]


def info(store: opt.StorePath, verbose: opt.Verbose = False, as_json: opt.AsJson = False) -> None:
    """Describe a store: rows, layers, model, and how it was made.

    --json also prints checksums and the versions of the packages that made it.
    """
    opened = es.open(store)
    described = opened.describe()
    if as_json:
        print_json(described)
        return
    rows, written, mib = described["n_rows"], described["n_committed_rows"], described["nbytes"] / 2**20
    state = "finished" if opened.finished else f"not finished: {written:,} of {rows:,} rows are written"
    labels = [f"{name} ({count:,} labels)" for name, count in described["labels"].items()]
    fields = [f"{name} ({field['values']:,} values, {field['kind']})" for name, field in described["fields"].items()]
    dropped = [f"{each['count']:,} {each['reason']}" for each in described["dropped"]]
    model = described["model"]
    lines = {
        "store": f"{described['path']} ({state})",
        "vectors": f"{rows:,} rows x {described['hidden_size']} {described['dtype']}, {mib:,.1f} MiB",
        "layers": _plain(described["layers"]),
        "virtual": "yes, vectors are computed again when they are read" if "virtual" in described else "",
        "sites": _plain(described.get("sites", "")),
        "model": _plain(model if verbose else {name: model.get(name) for name in ("name", "architecture")}),
        "words": f"{described['n_types']:,} types in {described['n_sentences']:,} sentences",
        "labels": ", ".join([*labels, *fields]) or "none",
        "sinks": _sinks(described.get("sinks")),
    }
    if verbose:
        lines |= {
            "corpus": _plain(described["corpus"]),
            "documents": f"{described['n_documents']:,}",
            "extraction": _plain(described["extraction"]),
            "dropped": ", ".join(dropped) or "none",
            "partitions": f"{described['n_partitions']:,} of {described['partition_rows']:,} rows",
            "format": described["format_version"],
            "kernels": es.store.compiled_name() or "numpy, slower: embstore was installed without a C compiler",
        }
    for name, value in lines.items():
        if value:
            print(f"{name + ':':<12}{value}")


def _sinks(sinks: dict[str, Any] | None) -> str:
    """Format the attention sinks of a description as a line of `info`."""
    if sinks is None:
        return ""
    positions = " and ".join(map(str, sinks["positions"]))
    times = f"{sinks['ratio']:,.0f} times longer than others at layer {sinks['layer']} (medians)"
    return f"subword {positions} of each context, {times}; select(sinks=False) leaves them out"


def _plain(value: Any) -> str:
    """What people read of a part of a description: values without checksums, the name first."""
    if isinstance(value, dict):
        parts = {name: part for name, part in value.items() if "sha256" not in name and part not in (None, {}, [])}
        first = [_plain(parts.pop("name"))] if "name" in parts else []
        return ", ".join([*first, *(f"{name} {_plain(part)}" for name, part in parts.items())])
    if isinstance(value, list | tuple):
        return ", ".join(map(_plain, value))
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,}" if isinstance(value, int) else str(value)


def verify(store: opt.StorePath, as_json: opt.AsJson = False) -> None:
    """Check every byte of a store against its checksums.

    Names each fault and its partition, and ends with status 1 where there is one; `embstore extract --repair`
    repairs them.
    """
    report = es.verify(store)
    if as_json:
        print_json(asdict(report) | {"path": str(report.path), "ok": report.ok})
    else:
        left = len(report.missing)
        missing = f"; {left:,} of {report.n_partitions:,} partitions are not written yet" if left else ""
        faults = counted(len(report.faults), "fault") if report.faults else "no fault"
        summary = f"{report.checked_nbytes:,} bytes of {report.path} checked: {faults}"
        if report.ok:
            summary += missing
        elif all(fault.is_of_cache for fault in report.faults):
            summary += f" of the cache, none of the store{missing}; what was damaged is removed"
        else:
            summary += f"{missing}; repair it by the `embstore extract` command that made it, with --repair"
        print(*report.faults, summary, sep="\n")
    if not report.ok:
        raise typer.Exit(1)


def lookup(
    store: opt.StorePath,
    word: opt.Word,
    *,
    most: Annotated[
        int | None, opt.option("N", f"Print N occurrences at most ({SHOWN}; --json: all).", "--most", "-n", min=1)
    ] = None,
    where: opt.Where = None,
    output: Output,
) -> None:
    """Show a word's occurrences in their sentences."""
    opened = es.open(store)
    found = opened.select(words=word, where=where)
    if output.out is not None:
        Output(output.out).deliver(found.table())
    most = most or (len(found) if output.as_json else SHOWN)
    some = opened.select(rows=found.rows[:most])
    shown = some.to_dicts()
    if output.as_json:
        print_json(shown)
        return
    print_concordance(shown, some.concordance(), title=f"{word}: {counted(len(found), 'occurrence')}")
    if len(found) > len(shown):
        print(f"... {len(found) - len(shown):,} more: see --most")


def export(
    store: opt.StorePath,
    out: Annotated[str, opt.argument("OUT", "NAME.zarr, NAME.h5, s3://BUCKET/NAME.zarr or NAME.parquet, to write.")],
    layers: Annotated[str, opt.option("LIST", "Only these layers: last, -1 or numbers such as 0,6-12.")] = "all",
    word_list: Annotated[Path | None, opt.option("FILE", "Only the words of this file, one a line.")] = None,
    word: Annotated[str | None, opt.option("WORD", "Only the occurrences of this word.")] = None,
    dtype: Dtype = None,
) -> None:
    """Copy a store or a part of it to another form or place.

    Vectors are copied bit for bit unless --dtype converts them. Run the same command again to resume a store.
    """
    chosen = [word] if word is not None else None
    if word_list is not None:
        chosen = [*(chosen or ()), *opt.read_words(word_list, option="--word-list")]
    part = es.open(store, verify="lazy").select(words=chosen, layers=opt.layers_of(layers))
    if Path(out).suffix == ".parquet":
        if dtype is not None:
            raise InvalidValueError(f"--dtype {dtype} converts stores only: {out} keeps what is stored")
        es.store.write_table(part, out)
        print(f"{out} holds {counted(len(part), 'occurrence')} in {counted(len(part.layers), 'layer')}")
        return
    print(_written(es.export(part, out, dtype=dtype)))


def static(
    store: opt.StorePath,
    out: Annotated[Path, opt.argument("OUT", "To write: .txt, .vec, .bin, .zarr or .h5.")],
    layers: opt.Layer = "last",
    method: Annotated[
        Literal["pc1", "mean"], opt.option("NAME", "pc1, the first principal component of a word's vectors, or mean.")
    ] = "pc1",
    min_contexts: opt.MinContexts = 1,
    *,
    as_json: opt.AsJson = False,
) -> None:
    """Make static vectors: one for each word, from one layer.

    gensim and other tools read text and binary files; a store of static vectors has a row for each word.
    """
    form: Any = FORMATS.get(out.suffix)
    if form is None:
        raise InvalidValueError(f"{out} has no known suffix: choose {', '.join(FORMATS)}, uncompressed")
    if out.is_dir() and form != "store":
        raise InvalidValueError(f"{out} is a folder: give the name of a file")
    require_folder_of(out, option="OUT")
    opened = es.open(store)
    chosen: Any = opt.layers_of(layers)
    vectors: Any = es.static_vectors(opened, layers=chosen, method=method, min_contexts=min_contexts)
    (number,) = opened.select(layers=chosen).layers
    made: dict[str, Any] = {"method": method, "min_contexts": min_contexts}
    if form == "store":
        es.analysis.write_static_store({number: vectors}, out, source=opened, made=made)
    else:
        es.vectors.write_vectors(vectors, out, format=form)
    if as_json:
        summary = {"store": str(store), "layer": number, **made, "out": str(out), "format": form}
        print_json({**summary, "words": len(vectors), "dimensions": vectors.dimensions})
    else:
        words = counted(len(vectors), "word")
        print(f"{out} holds the vectors of {words}, {vectors.dimensions} numbers each ({method} of layer {number})")


def thin(
    store: opt.StorePath,
    model: Annotated[
        str | None, opt.option("MODEL", "The model of the store, if it is not found by its name.", "--model", "-m")
    ] = None,
) -> None:
    """Drop vectors that the model can compute again.

    The store then takes a hundredth of its space or less. What was dropped is computed again when it is read, compared
    with its checksum and cached in the folder EMBSTORE_CACHE. Before anything is dropped, all is computed again once to
    see that it agrees, which takes as long as the extraction. Rerun to resume.
    """
    before = sum(file.stat().st_size for file in Path(store).rglob("*") if file.is_file())
    thinned = es.store.thin(store, model=model)
    after = sum(file.stat().st_size for file in Path(store).rglob("*") if file.is_file())
    print(f"{_written(thinned)}; {after:,} bytes of {before:,} are left")
    print(f"vectors that were dropped are lost without the model {thinned.metadata.model['name']}: keep its files")


def label(
    store: opt.StorePath,
    table: Annotated[
        Path | None,
        opt.argument("FILE", "A table (.csv, .tsv, .jsonl, .parquet); each column but the keys has labels."),
    ] = None,
    on: Annotated[
        str,
        opt.option(
            "KEYS",
            "The columns that say which rows a line labels: occurrence; sentence,position; source,position; or "
            "sentence, source, document or word, for all their rows.",
        ),
    ] = "occurrence",
    replace: Annotated[bool, typer.Option("--replace", help="Replace added labels of the same name.")] = False,
    remove: Annotated[str | None, opt.option("NAME", "Remove added labels instead.")] = None,
) -> None:
    """Add labels to a finished store, next to its vectors.

    Sentences and positions count from 0; source is the number of a sentence in the corpus. They can be used wherever a
    label column is.
    """
    if (table is None) == (remove is None):
        raise InvalidValueError("give either FILE with labels to add, or --remove NAME")
    opened = es.open(store)
    if remove is not None:
        opened.with_labels(remove, save=True)
        print(f"{store} has no labels {remove} any more")
        return
    before = opened.index.labels
    added = opened.with_labels(table, on=on, save=True, replace=replace).index.labels
    for name, labels in added.items():
        if labels is not before.get(name):
            rows = counted(int((labels.codes >= 0).sum()), "row")
            print(f"{store} has labels {name}: {rows}, {counted(len(labels.names), 'label')}")


def _written(store: es.Store) -> str:
    layers = counted(len(store.layers), "layer")
    return f"{store.path} holds {counted(store.n_rows, 'occurrence')} in {layers} ({store.dtype})"

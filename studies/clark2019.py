"""Clark et al. 2019: where the attention of heads goes, and whether it follows syntax and coreference."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, ClassVar

import polars as pl

import embstore as es
from embstore import plot
from embstore.corpus import Corpus, open_corpus, read_edges, read_trees
from embstore.errors import InvalidValueError, ModelError
from embstore.models import model_kind
from embstore.probes import split_files
from embstore_studies.study import Row, Run, Section, StudyResult, StudySettings, decimals, digest_of

# Table 1, as the authors' notebook prints it for BERT-base-uncased on dev of the Wall Street Journal with Stanford
# Dependencies (Syntax_Analysis.ipynb at commit 4e3f959; its layers and heads count from 0): by the relation of
# Universal Dependencies that is closest, their relation, the best head, its share of right words in percent, that of
# the best fixed offset, and this offset. UD attaches prepositions, copulas and objects of prepositions otherwise:
# prep, pobj and cop have no counterpart. Tables 2 and 3 and the numbers of the figures are not published there.
SOURCE = "the notebook of the authors (github.com/clarkkev/attention-analysis, Syntax_Analysis.ipynb)"
TABLE1 = {
    "all": ("all", "7.5", 34.7, 26.7, 1),
    "det": ("det", "8.10", 94.3, 51.7, 1),
    "compound": ("nn", "4.9", 70.4, 70.2, 1),
    "nsubj": ("nsubj", "8.1", 58.5, 45.5, 1),
    "amod": ("amod", "4.9", 75.6, 68.3, 1),
    "obj": ("dobj", "8.9", 86.8, 40.0, -2),
    "advmod": ("advmod", "7.5", 48.8, 40.2, 1),
    "aux": ("aux", "4.9", 81.1, 71.5, 1),
    "nummod": ("num", "8.10", 67.4, 56.4, 1),
    "cc": ("cc", "7.4", 47.8, 41.2, -1),
    "conj": ("conj", "7.0", 53.3, 26.8, -2),
    "nmod:poss": ("poss", "7.5", 80.5, 47.7, 1),
    "ccomp": ("ccomp", "8.0", 48.8, 12.4, -2),
    "xcomp": ("xcomp", "5.6", 57.3, 47.1, -2),
    "mark": ("mark", "8.1", 50.7, 14.5, 2),
    "aux:pass": ("auxpass", "4.9", 94.1, 82.5, 1),
    "advcl": ("advcl", "5.3", 29.5, 4.6, -3),
    "appos": ("appos", "7.0", 30.5, 28.3, -3),
    "nsubj:pass": ("nsubjpass", "7.5", 57.5, 43.7, 2),
    "compound:prt": ("prt", "6.6", 99.1, 91.4, -1),
}
STATISTICS = ("shares", "entropy", "relations")
SHARES = (
    "self",
    "previous",
    "next",
    "cls",
    "first",
    "sep",
    "punctuation",
    "period_comma",
    "sep_to_sep",
    "other_to_sep",
)
DIRECTIONS = {"relation_to_head": "to the head", "relation_to_dependant": "to the dependant"}
LEAST_EDGES = 100  # of a relation, as in the authors' notebook
PANELS = {
    "attention.png": ("Where attention goes (Figures 2 and 4)", "attention", ("share", "entropy")),
    "relations.png": ("Relations: best heads (Table 1)", "attention", tuple(DIRECTIONS)),
    "coreference.png": ("Coreference (Table 2)", "coreference", ("coreference",)),
}
NOTES = (
    "Layers count from 1 and heads from 0; the paper's head 8-10 is 8.9 here.",
    "Inputs are single sentences: the paper's segments are two paragraphs with a [SEP] after each, so that more of "
    "their attention can go to [SEP].",
    "The importance by gradients of Figure 3, the attention-based probes of Table 3 and the distances between heads of "
    "Figure 6 are not part of this study.",
)


@dataclass(frozen=True, kw_only=True)
class Clark2019(StudySettings):
    about: ClassVar[str] = "what attention heads attend to, relations, coreference"
    data: ClassVar[str] = "a treebank in CoNLL-U: a file, or a folder whose dev file is taken"
    citation: ClassVar[str] = """@inproceedings{clark-etal-2019-bert,
  title = {What Does {BERT} Look at? An Analysis of {BERT}'s Attention},
  author = {Clark, Kevin and Khandelwal, Urvashi and Levy, Omer and Manning, Christopher D.},
  booktitle = {Proceedings of the 2019 ACL Workshop BlackboxNLP},
  year = {2019}, pages = {276--286}, doi = {10.18653/v1/W19-4828}
}
"""

    coreference: str | Path | None = None
    n_sentences: int | None = None


def run(run: Run[Clark2019], data: Path) -> StudyResult:
    """Run the study on a treebank in CoNLL-U, see `reproduce`."""
    settings = run.settings
    corpora = {"attention": open_treebank(data)}
    if settings.coreference is not None:
        corpora["coreference"] = open_mentions(Path(settings.coreference))
    for name, model in run.models.items():
        if model_kind(model) != "transformer":
            raise ModelError(f"{name}: {model!r} has no attention: give a transformer")
    run.begin()
    weights = {name: es.load_encoder(model).info.weights_sha256 for name, model in run.models.items()}
    frames: dict[str, list[pl.DataFrame]] = {}
    for name in run.models:
        for what in corpora:
            frame = measure(run, name, what, corpora[what], weights[name])
            frames.setdefault(what, []).append(frame.select(pl.lit(name).alias("model"), pl.all()))
    whole = {key: pl.concat(parts) for key, parts in frames.items()}
    run.notes += NOTES
    if settings.coreference is None:
        run.notes.append("No coreference data was given (the setting coreference): there is no Table 2.")
    sentences, subwords = (max(whole["attention"][name]) for name in ("sentences", "subwords"))
    software = {name: version(name) for name in ("embstore", "torch", "transformers", "tokenizers", "numpy")}
    return run.result(
        "What the attention heads of a model attend to, after Clark et al. 2019",
        f"{', '.join(run.models)}. {sentences:,} sentences of {corpora['attention'].name}, {subwords:,} subwords (the "
        "paper: 1,000 segments of two paragraphs of Wikipedia; the Wall Street Journal with Stanford Dependencies for "
        f"Table 1); seed {settings.seed}.",
        frames=whole,
        sections=[section for name in run.models for section in sections(whole, name)],
        figures=draw(run, whole),
        methods=(
            "Attention maps in float32 of "
            + "; ".join(f"{name} (weights SHA-256 {sha[:12]})" for name, sha in weights.items())
            + " over "
            + "; ".join(f"{each.name} (SHA-256 {digest_of(each.paths[0])[:12]})" for each in corpora.values())
            + f". Software: {', '.join(f'{name} {number}' for name, number in software.items())}."
        ),
    )


def open_treebank(data: Path) -> Corpus:
    """Open a CoNLL-U file, or the dev file of a folder. Raises an error for one without trees."""
    if data.is_dir():
        files = sorted(path for path in data.glob("*.conllu") if "dev" in path.stem)
        if len(files) != 1:
            raise InvalidValueError(f"{data} has {len(files)} files *dev*.conllu: give one CoNLL-U file")
        data = files[0]
    corpus = open_corpus(data)
    read_trees(data)
    return corpus


def open_mentions(data: Path) -> Corpus:
    """Open a file of coreferent spans, or dev.jsonl of a folder. Raises InvalidValueError for one without mentions."""
    path = split_files(data).get("dev") if data.is_dir() else data
    if path is None:
        raise InvalidValueError(f"coreference: {data} has no dev.jsonl: give a file of edge probing targets")
    targets = [target for sentence in read_edges(path) for target in sentence.targets]
    if not any(target.span2 is not None and "1" in target.labels for target in targets):
        raise InvalidValueError(f"coreference: {path} has no pair of spans that is labelled 1: give mentions")
    return open_corpus(path, format="edge")


def measure(run: Run[Clark2019], name: str, what: str, corpus: Corpus, weights: str) -> pl.DataFrame:
    """Return the frame of `attention` of a model over a corpus, as a step."""
    sample: dict[str, Any] = {"n_sentences": run.settings.n_sentences, "seed": run.settings.seed}
    statistics = STATISTICS if what == "attention" else ["coreference"]

    def make() -> pl.DataFrame:
        made = es.attention(corpus, model=run.models[name], statistics=statistics, **sample)
        return made.frame.with_columns(sentences=pl.lit(made.n_sentences), subwords=pl.lit(made.n_subwords))

    digests = [digest_of(path) for path in corpus.paths]
    return run.table(f"{name}-{what}", {"corpus": digests, "weights": weights, **sample}, make)


def sections(frames: Mapping[str, pl.DataFrame], model: str) -> list[Section]:
    """Return every table of a model."""
    own = {key: frame.filter(model=model) for key, frame in frames.items()}
    whole = own["attention"]
    tables = [where(whole, model), entropies(whole, model)]
    tables.append(relations(whole, model))
    if "coreference" in own:
        tables.append(coreference(own["coreference"], model))
    return tables


def _by_layer(frame: pl.DataFrame, metric: str, items: tuple[str, ...]) -> list[Row]:
    """The means over heads by layer."""
    rows: list[Row] = []
    part = frame.filter(pl.col("layer").is_not_null(), metric=metric)
    for layer in part["layer"].unique().sort():
        means = {item: part.filter(layer=layer, item=item)["value"].to_numpy() for item in items}
        rows.append({"layer": layer, **{item: _number(each.mean()) for item, each in means.items() if len(each)}})
    return rows


def _number(value: float) -> str:
    return decimals(value) if abs(value) >= 0.001 or not value else f"{value:.1e}"


def where(frame: pl.DataFrame, model: str) -> Section:
    note = (
        "Mean share of a subword's attention, mean of the heads of a layer (Figure 2 of the paper, whose numbers are "
        "not published). Rogers et al. 2020 (section 5.1) report that [SEP] gets more of it from layer 5 of BERT on."
    )
    return Section(f"Where attention goes ({model})", note, _by_layer(frame, "share", SHARES))


def entropies(frame: pl.DataFrame, model: str) -> Section:
    rows = []
    for row in _by_layer(frame, "entropy", ("all", "cls")):
        heads = frame.filter(layer=row["layer"], metric="entropy", item="all").sort("value").to_dicts()
        for name, head in (("lowest head", heads[0]), ("highest head", heads[-1])):
            row[name] = f"{head['layer']}.{head['head']}: {_number(head['value'])}"
        rows.append(row)
    note = "Nats, mean of the heads of a layer: of every subword, and of [CLS] (Figure 4)."
    return Section(f"Entropy of attention ({model})", note, rows)


def relations(frame: pl.DataFrame, model: str) -> Section:
    rows: list[Row] = []
    part = frame.filter(pl.col("metric").is_in(list(DIRECTIONS)), pl.col("count") >= LEAST_EDGES)
    best = part.sort("value", descending=True, maintain_order=True).group_by("item", maintain_order=True).first()
    for row in best.sort("count", "item", descending=[True, False]).to_dicts():
        cells: Row = {"relation": row["item"], "edges": row["count"], "head": f"{row['layer']}.{row['head']}"}
        cells |= {"direction": DIRECTIONS[row["metric"]], "score": f"{100 * row['value']:.1f}"}
        cells |= {"baseline": f"{100 * row['baseline']:.1f} ({row['offset']:+d})", "paper": None}
        cells["paper's baseline"] = None
        if row["item"] in TABLE1:
            relation, head, score, baseline, offset = TABLE1[row["item"]]
            cells |= {"paper": f"{relation} {head}: {score:.1f}", "paper's baseline": f"{baseline:.1f} ({offset:+d})"}
        rows.append(cells)
    note = (
        "Percent of words whose most attended other word is at the other end of the relation, of the best head; the "
        "baseline is the best fixed offset on the same sentences. The head is chosen on these sentences too, as in the "
        f"paper, so that its score is a little high. The paper's columns are from {SOURCE}: BERT-base on dev of the "
        "Wall Street Journal with Stanford Dependencies; its `all` counts punctuation too. Other annotation, so no "
        "difference is given."
    )
    return Section(f"Table 1. Relations ({model})", note, rows)


def coreference(frame: pl.DataFrame, model: str) -> Section:
    heads = frame.filter(pl.col("head").is_not_null()).sort("value", descending=True, maintain_order=True)
    if not len(heads):
        return Section(f"Table 2. Coreference ({model})", "No mention has an antecedent among the words.", [])
    rules = {row["item"]: row["value"] for row in frame.filter(pl.col("head").is_null()).to_dicts()}
    best = heads.row(0, named=True)
    choices = {
        "nearest mention": best["baseline"],
        "nearest with the same head word": rules["head_match"],
        "same words, same head word, nearest": rules["string_match"],
    }
    choices |= {f"head {row['layer']}.{row['head']}": row["value"] for row in heads.head(3).to_dicts()}
    rows = [{"choice of the antecedent": name, "accuracy": decimals(value)} for name, value in choices.items()]
    note = (
        f"{best['count']:,} mentions with an antecedent in their sentence; the head word of a mention is taken to be "
        "its last word, as the data has no trees. The paper's rules also compare number, gender and person, and its "
        "data are documents of CoNLL-2012; its table is not shown, as no source of the authors was at hand. Rogers et "
        "al. 2020 (section 5.1): a head of BERT is on par with a system of rules."
    )
    return Section(f"Table 2. Coreference ({model})", note, rows)


def draw(run: Run[Clark2019], frames: Mapping[str, pl.DataFrame]) -> dict[str, str]:
    """Write the figures of each model; returns titles by file name."""
    figures = {}
    for model in run.models:
        for file, (title, name, metrics) in PANELS.items():
            if name in frames and len(own := frames[name].filter(pl.col("metric").is_in(metrics), model=model)):
                figures[f"{model}-{file}"] = (f"{title}: {model}", plot.attention_figure(own, title=model))
    return run.save_figures(figures)

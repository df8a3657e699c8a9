"""Clark et al. 2019: where the attention of heads goes, and whether it follows syntax and coreference."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import polars as pl
import torch
import transformers

import embstore as es
from embstore import plot
from embstore.analysis import HeadDistances
from embstore.corpus import Corpus, open_corpus, read_edges, read_trees
from embstore.errors import InvalidValueError, ModelError
from embstore.models import model_kind
from embstore.probes import split_files
from embstore_studies.study import Row, Run, Section, StudyResult, StudySettings, decimals, digest_of, quiet

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
STATISTICS = ("shares", "entropy", "distance", "relations", "trees")
SHARES = ("self", "previous", "next", "cls", "sep", "punctuation", "period_comma", "sep_to_sep", "other_to_sep")
KINDS = ("cls", "sep", "period_comma", "other")
DIRECTIONS = {"relation_to_head": "to the head", "relation_to_dependant": "to the dependant"}
LEAST_EDGES = 100  # of a relation, as in the authors' notebook
MASKED = 0.15  # of the subwords of a sentence, as in the training of BERT
PANELS = {
    "attention.png": ("Where attention goes (Figures 2 and 4)", "attention", ("share", "entropy", "distance")),
    "heads.png": ("Heads in the plane (Figure 6)", "attention", ("head_x", "head_y")),
    "relations.png": ("Relations: best heads (Table 1)", "attention", ("relation_to_head",)),
    "trees.png": ("Trees of each head (Htut et al. 2019)", "attention", ("uuas",)),
    "importance.png": ("Importance of attention (Figure 3)", "importance", ("importance",)),
    "coreference.png": ("Coreference (Table 2)", "coreference", ("coreference",)),
}
NOTES = (
    "Layers count from 1 and heads from 0; the paper's head 8-10 is 8.9 here.",
    "Inputs are single sentences: the paper's segments are two paragraphs with a [SEP] after each, so that more of "
    "their attention can go to [SEP].",
    "The attention-based probes of the paper's Table 3 are not part of this study.",
)


@dataclass(frozen=True, kw_only=True)
class Clark2019(StudySettings):
    """Settings of the study: what the attention heads of a model attend to.

    coreference: a file of edge probing targets whose pairs of spans are labelled 1 or 0, or a folder with dev.jsonl;
    without it there is no Table 2. n_sentences: of the treebank and of the coreference data at most, drawn at random;
    None for all. every: every which sentence heads are compared on. importance_sentences: those whose gradients are
    computed, 0 for none.
    """

    about: ClassVar[str] = "what attention heads attend to, relations, coreference, trees"
    data: ClassVar[str] = "a treebank in CoNLL-U: a file, or a folder whose dev file is taken"
    citation: ClassVar[str] = """@inproceedings{clark-etal-2019-bert,
  title = {What Does {BERT} Look at? An Analysis of {BERT}'s Attention},
  author = {Clark, Kevin and Khandelwal, Urvashi and Levy, Omer and Manning, Christopher D.},
  booktitle = {Proceedings of the 2019 ACL Workshop BlackboxNLP},
  year = {2019}, pages = {276--286}, doi = {10.18653/v1/W19-4828}
}
"""
    least: ClassVar[dict[str, int]] = {"n_sentences": 1, "every": 1, "importance_sentences": 0}

    coreference: str | Path | None = None
    n_sentences: int | None = None
    every: int = 16
    importance_sentences: int = 200


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
            statistics: list[Any] = [*STATISTICS, HeadDistances(every=settings.every)]
            statistics = statistics if what == "attention" else ["coreference"]
            measured = measure(run, name, what, corpora[what], weights[name], statistics)
            frames.setdefault(what, []).append(_named(name, measured))
        if settings.importance_sentences:
            importances = measure_importance(run, name, corpora["attention"], weights[name])
            frames.setdefault("importance", []).extend(_named(name, each) for each in importances)
    whole = {key: pl.concat(parts) for key, parts in frames.items() if parts}
    run.notes += NOTES
    if settings.coreference is None:
        run.notes.append("No coreference data was given (the setting coreference): there is no Table 2.")
    sentences, subwords = (max(whole["attention"][name]) for name in ("sentences", "subwords"))
    software = {name: version(name) for name in ("embstore", "torch", "transformers", "tokenizers", "numpy")}
    return run.result(
        "What the attention heads of a model attend to, after Clark et al. 2019",
        f"{', '.join(run.models)}. {sentences:,} sentences of {corpora['attention'].name}, {subwords:,} subwords (the "
        "paper: 1,000 segments of two paragraphs of Wikipedia; the Wall Street Journal with Stanford Dependencies for "
        f"Table 1); heads compared on one sentence in {settings.every}; seed {settings.seed}.",
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


def measure(
    run: Run[Clark2019], name: str, what: str, corpus: Corpus, weights: str, statistics: Sequence[Any]
) -> pl.DataFrame:
    """Return the frame of `attention` of a model over a corpus, as a step."""
    sample: dict[str, Any] = {"n_sentences": run.settings.n_sentences, "seed": run.settings.seed}

    def make() -> pl.DataFrame:
        made = es.attention(corpus, model=run.models[name], statistics=statistics, **sample)
        return made.frame.with_columns(sentences=pl.lit(made.n_sentences), subwords=pl.lit(made.n_subwords))

    digests = [digest_of(path) for path in corpus.paths]
    return run.table(
        f"{name}-{what}", {"corpus": digests, "weights": weights, "every": run.settings.every, **sample}, make
    )


def measure_importance(run: Run[Clark2019], name: str, corpus: Corpus, weights: str) -> list[pl.DataFrame]:
    """Return the importance of attention as a step; nothing for a model without masked language modeling."""
    count, seed = run.settings.importance_sentences, run.settings.seed

    def make() -> pl.DataFrame:
        sentences = [sentence.words for sentence in corpus]
        return attention_importance(sentences, model=run.models[name], n_sentences=count, seed=seed)

    digests = [digest_of(path) for path in corpus.paths]
    made_from = {"corpus": digests, "weights": weights, "n_sentences": count, "seed": seed}
    try:
        return [run.table(f"{name}-importance", made_from, make)]
    except ModelError:
        run.notes.append(f"{name} has no language modeling head with its mask: there is no importance of [SEP].")
        return []


def attention_importance(
    sentences: Sequence[Sequence[str]], *, model: str, n_sentences: int, seed: int = 0
) -> pl.DataFrame:
    """Measure how much a masked language model's loss depends on the attention to [SEP] and to other subwords.

    Of each head the mean of |d loss / d a| over the pairs of a query and a key of a kind, where a is the attention of
    the query to the key and the loss is of one sentence: the mean cross-entropy of 15 % of its subwords (at least one),
    chosen with the `seed` and replaced by the mask. Clark et al. 2019 take the gradient of the loss of masked language
    modeling; these details are ours. The columns are those of `attention`. Raises ModelError for any other model.
    """
    tokenizer = transformers.AutoTokenizer.from_pretrained(model)
    options = {"attn_implementation": "eager", "dtype": torch.float32, "output_loading_info": True}
    try:
        with quiet():
            network, loading = transformers.AutoModelForMaskedLM.from_pretrained(model, **options)
    except ValueError as error:
        raise ModelError(f"{model}: no language modeling head: {error}") from None
    if tokenizer.mask_token_id is None or loading["missing_keys"]:
        raise ModelError(f"{model}: no language modeling head with its mask")
    network.eval().requires_grad_(False)
    network.get_input_embeddings().weight.requires_grad_(True)  # so that attention has a gradient
    numbers = np.arange(len(sentences))
    if n_sentences < len(sentences):
        numbers = np.sort(np.random.default_rng(seed).choice(len(sentences), n_sentences, replace=False))
    sums: dict[str, Any] = dict.fromkeys(KINDS, 0)
    counts = dict.fromkeys(KINDS, 0)
    for number in numbers.tolist():
        words = list(sentences[number])
        encoded = tokenizer(words, is_split_into_words=True, return_tensors="pt", truncation=True)
        word_of = encoded.word_ids()
        body = np.array([at for at, word in enumerate(word_of) if word is not None])
        if not len(body):
            continue
        chosen = np.random.default_rng((seed, number)).choice(body, max(1, round(MASKED * len(body))), replace=False)
        ids = encoded["input_ids"].clone()
        encoded["input_ids"][0, chosen] = tokenizer.mask_token_id
        out = network(**encoded, output_attentions=True)
        loss = torch.nn.functional.cross_entropy(out.logits[0, chosen].float(), ids[0, chosen])
        gradients = torch.autograd.grad(loss, out.attentions)
        by_key = torch.stack([each[0].abs().sum(1) for each in gradients]).double().numpy()  # [layers, heads, keys]
        kinds = ["other" if word is None or words[word] not in (".", ",") else "period_comma" for word in word_of]
        kinds[: body[0]] = ["cls"] * int(body[0])
        kinds[body[-1] + 1 :] = ["sep"] * (len(kinds) - int(body[-1]) - 1)
        for kind in set(kinds):
            mask = np.array([each == kind for each in kinds])
            sums[kind] = sums[kind] + by_key[:, :, mask].sum(2)
            counts[kind] += int(mask.sum()) * len(kinds)
    rows = [
        ("importance", layer + 1, head, kind, None, float(value), None, counts[kind])
        for kind in KINDS
        if counts[kind]
        for (layer, head), value in np.ndenumerate(sums[kind] / counts[kind])
    ]
    types = {"metric": pl.String, "layer": pl.Int64, "head": pl.Int64, "item": pl.String, "offset": pl.Int64}
    types |= {"value": pl.Float64, "baseline": pl.Float64, "count": pl.Int64}
    return pl.DataFrame(rows, schema=types, orient="row")


def _named(name: str, frame: pl.DataFrame) -> pl.DataFrame:
    return frame.select(pl.lit(name).alias("model"), pl.all())


def sections(frames: Mapping[str, pl.DataFrame], model: str) -> list[Section]:
    """Return every table of a model."""
    own = {key: frame.filter(model=model) for key, frame in frames.items()}
    whole = own["attention"]
    tables = [where(whole, model), entropies(whole, model)]
    if len(own.get("importance", ())):
        tables.append(importance(own["importance"], model))
    tables.append(relations(whole, model))
    if "coreference" in own:
        tables.append(coreference(own["coreference"], model))
    return [*tables, clusters(whole, model), trees(whole, model)]


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


def importance(frame: pl.DataFrame, model: str) -> Section:
    note = (
        "Mean of |d loss / d attention| over pairs of a query and a key of that kind, mean of the heads (Figure 3, "
        "whose numbers are not published). Rogers et al. 2020 (section 5.1): the importance of [SEP] drops where its "
        "attention grows."
    )
    return Section(f"Importance of attention ({model})", note, _by_layer(frame, "importance", KINDS))


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


def clusters(frame: pl.DataFrame, model: str) -> Section:
    part = frame.filter(metric="jensen_shannon").with_columns(
        other_layer=pl.col("item").str.split(".").list.first().cast(pl.Int64),
        itself=pl.col("item") == pl.format("{}.{}", pl.col("layer"), pl.col("head")),
    )
    rows: list[Row] = []
    for layer in part["layer"].unique().sort():
        pairs = part.filter(~pl.col("itself"), layer=layer)
        same, other = pairs.filter(other_layer=layer), pairs.filter(pl.col("other_layer") != layer)
        means = {"same layer": same["value"].mean(), "other layers": other["value"].mean()}
        rows.append({"layer": layer, **{name: decimals(value) for name, value in means.items()}})  # type: ignore[arg-type]
    note = (
        "Mean Jensen-Shannon divergence of a head to those of its layer and to those of other layers, in nats (Figure "
        "6: heads of one layer are close to each other)."
    )
    return Section(f"Distances between heads ({model})", note, rows)


def trees(frame: pl.DataFrame, model: str) -> Section:
    part = frame.filter(metric="uuas")
    rows: list[Row] = []
    for layer in part["layer"].drop_nulls().unique().sort():
        heads = part.filter(layer=layer).sort("value", descending=True, maintain_order=True)
        best, mean = heads.row(0, named=True), float(np.mean(heads["value"].to_numpy()))
        row = {"layer": layer, "best head": f"{layer}.{best['head']}", "UUAS": decimals(best["value"])}
        rows.append({**row, "mean of heads": decimals(mean)})
    note = (
        "Maximum spanning arborescences from the annotated root (Htut et al. 2019), scored without punctuation. "
        f"Baselines: {decimals(part['baseline'].drop_nulls()[0])} where each word is attached to the one before it, "
        f"{decimals(part.filter(item='random')['value'][0])} for a random tree. Clark et al. and Htut et al. find no "
        "head with whole trees (Rogers et al. 2020, section 5.1)."
    )
    return Section(f"Trees ({model})", note, rows)


def draw(run: Run[Clark2019], frames: Mapping[str, pl.DataFrame]) -> dict[str, str]:
    """Write the figures of each model; returns titles by file name."""
    figures = {}
    for model in run.models:
        for file, (title, name, metrics) in PANELS.items():
            if name in frames and len(own := frames[name].filter(pl.col("metric").is_in(metrics), model=model)):
                figures[f"{model}-{file}"] = (f"{title}: {model}", plot.attention_figure(own, title=model))
    return run.save_figures(figures)

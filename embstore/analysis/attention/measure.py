"""The attention of a whole corpus in one pass: statistics of every head of a model, or how like those of another."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from embstore.analysis.attention.annotated import Annotated, annotated, has_mentions, has_trees
from embstore.analysis.attention.maps import Maps, Shape, Statistic, Tokens, Values
from embstore.analysis.attention.shares import Entropy, Patterns, Shares
from embstore.analysis.attention.syntax import Coreference, Relations, Trees
from embstore.arguments import Count, Positive, checked
from embstore.config import settings
from embstore.corpus import Corpus, Sentence, open_corpus
from embstore.corpus.sentence import Document, Span
from embstore.devices import choose_device, torch_threads
from embstore.errors import InvalidValueError, ModelError, check_choice, quoted
from embstore.models.batching import Batch, make_batches
from embstore.models.transformer.attention import AttentionModel, load_attention_model, longest_words
from embstore.progress import reporting
from embstore.store import Store
from embstore.store.framed import Framed
from embstore.store.layout import Layers, resolve_layers

if TYPE_CHECKING:
    import polars as pl

BATCH_SUBWORDS = {"cpu": 2048, "cuda": 8192}  # the maps of all heads of a layer stay in the cache, or in 2 GiB
CHUNK = 4096  # sentences that are sorted by length together
STATISTICS: dict[str, type[Statistic]] = {
    kind.name: kind for kind in (Shares, Entropy, Patterns, Relations, Trees, Coreference)
}
COLUMNS = ("metric", "layer", "head", "item", "offset", "value", "baseline", "count")


@dataclass(frozen=True)
class Attention(Framed):
    """The statistics of the attention of a model over a corpus, as `attention` returns them.

    `frame`: `metric, layer, head, item, offset, value, baseline, count`; layer l is the attention of block l, from 1,
    and heads count from 0. Rows without a layer are of the corpus.
    """

    frame: pl.DataFrame
    model: str
    corpus: str
    n_sentences: int
    n_subwords: int

    def __repr__(self) -> str:
        return (
            f"<Attention of {self.model!r} over {self.corpus!r}: {self.n_sentences:,} sentences, "
            f"{self.n_subwords:,} subwords>"
        )

    def best(self, metric: str, *, count: int = 1) -> pl.DataFrame:
        """Return for each item of a metric the `count` heads with the highest values, most frequent items first."""
        import polars as pl

        check_choice("metric", metric, self.frame["metric"].unique(maintain_order=True).to_list())
        rows = self.frame.filter(pl.col("metric") == metric, pl.col("head").is_not_null())
        ranked = rows.sort("value", descending=True, maintain_order=True).group_by("item", maintain_order=True)
        return (
            ranked.head(count)
            .sort("count", "item", "value", descending=[True, False, True], maintain_order=True)
            .select(COLUMNS)
        )


@checked
def attention(
    corpus: str | Path | Corpus | Store | Sequence[Any],
    *,
    model: str | Path,
    statistics: Sequence[str | Statistic] | None = None,
    layers: Layers = None,
    heads: Sequence[int] | None = None,
    max_length: Positive | None = None,
    n_sentences: Positive | None = None,
    seed: Count = 0,
) -> Attention:
    """Measure the attention of every head of a model over a corpus, in one pass that keeps no map.

    Computes in float32; the sums are float64, and the memory does not grow with the corpus.

    Parameters
    ----------
    corpus : path, Corpus, Store or sequence
        Whatever `open_corpus` reads, or a store, whose sentences are read again.
    model : str or Path
        A transformer.
    statistics : sequence of str or Statistic, optional
        By default all that the corpus has annotation for: `shares`, `entropy`, `relations` and `coreference` of Clark
        et al. 2019; `patterns`, those of Kovaleva et al. 2019 by an explicit rule; `trees`, maximum spanning
        arborescences (Htut et al. 2019). `relations` and `trees` need CoNLL-U files, `coreference` edge probing files.
    layers : int or sequence of int, optional
        From 1, such as [1, -1] or "1-3"; by default all.
    heads : sequence of int, optional
        From 0; by default all.
    max_length : int, optional
        Subwords of a sentence, special ones included; the rest is cut.
    n_sentences : int, optional
        How many are chosen at random with `seed`; by default all.
    seed : int
        Of the choice.

    Returns
    -------
    Attention
        Its `frame` has the results; `found.best("relation_to_head")` the best heads.

    Raises
    ------
    InvalidValueError
        For layers, heads and statistics that do not exist or have no annotation.
    ModelError
        For a model without attention weights; nothing has been computed then.
    """
    where = choose_device(settings().device)
    source = corpus if isinstance(corpus, Store) else open_corpus(corpus)
    chosen = _statistics(statistics, source)
    needs = {statistic.needs for statistic in chosen}
    progress = reporting(settings().progress, unit="sentences", label="attention")
    with torch_threads(settings().threads), progress as report:
        network = load_attention_model(model, device=where)
        reader = Reader(source, network, max_length=max_length, n_sentences=n_sentences, seed=seed, needs=needs)
        measured = Pass(network, chosen, layers=layers, heads=heads)
        for tokens, batch, inputs in reader.batches(BATCH_SUBWORDS.get(where.type, 2048)):
            measured.add(tokens, batch, inputs)
            report(reader.n_done, reader.total)
    name = "store" if isinstance(source, Store) else source.name
    frame = frame_of(chosen, measured.shape)
    return Attention(frame, network.info.name, name, reader.n_done, reader.n_subwords)


def _statistics(given: Sequence[str | Statistic] | None, source: Corpus | Store) -> list[Statistic]:
    """Return the statistics asked for, or all that the corpus has the annotation for."""
    checks = {"trees": has_trees, "mentions": has_mentions}
    if given is None:
        missing = {need: check(source) for need, check in checks.items()}
        return [kind() for kind in STATISTICS.values() if kind.needs is None or missing[kind.needs] is None]
    chosen: dict[str, Statistic] = {}
    for statistic in given:
        if isinstance(statistic, str):
            check_choice("statistic", statistic, STATISTICS)
            statistic = STATISTICS[statistic]()
        if statistic.name in chosen:
            raise InvalidValueError(f"statistics: {statistic.name} is given twice")
        problem = None if statistic.needs is None else checks[statistic.needs](source)
        if problem:
            name = "the store" if isinstance(source, Store) else source.name
            raise InvalidValueError(f"the statistic {statistic.name} cannot be measured: {name} {problem}")
        chosen[statistic.name] = statistic
    if not chosen:
        raise InvalidValueError(f"statistics: none are given; choose some of {', '.join(STATISTICS)}")
    return list(chosen.values())


class Reader:
    """Reads a corpus in chunks and makes batches of them: `n_done` sentences so far, `total` if that is known."""

    def __init__(
        self,
        source: Corpus | Store,
        network: AttentionModel,
        *,
        max_length: int | None = None,
        n_sentences: int | None = None,
        seed: int = 0,
        needs: Any = (),
    ) -> None:
        self._source, self._network = source, network
        self._limit = longest_words(network, max_length)
        self._annotation = {"trees": "trees" in needs, "mentions": "mentions" in needs}
        self.n_done = self.n_subwords = 0
        self.total: int | None = n_sentences
        self._chosen: NDArray[np.int64] | None = None
        if n_sentences is not None:
            count = sum(1 for _ in annotated(source, **self._annotation))
            self.total = min(n_sentences, count)
            if n_sentences < count:
                self._chosen = np.random.default_rng(seed).choice(count, n_sentences, replace=False)

    def batches(self, size: int) -> Iterator[tuple[Tokens, Batch, dict[str, Any]]]:
        """Yield batches of about `size` subwords with what the model is given. Raises InvalidValueError for none."""
        network = self._network
        specials = network.network.inputs.specials
        for sentences in self._chunks():
            split = network.network.tokenizer.tokenize([each.sentence for each in sentences])
            tokenized, starts, lengths = split.tokenized, split.bounds[:-1], np.diff(split.bounds)
            lengths = lengths if self._limit is None else np.minimum(lengths, self._limit)
            some = np.flatnonzero(lengths)
            options: dict[str, Any] = {"batch_subwords": size, "row_capacity": network.network.row_capacity}
            for batch in make_batches(lengths[some] + specials.count, how="padded", **options):
                batch = Batch(some[batch.sentences], batch.rows, batch.columns, batch.shape)
                runs = starts[batch.sentences], lengths[batch.sentences]
                inputs = network.inputs.batch(batch, tokenized, *runs, "padded")
                self.n_done += len(batch.sentences)
                self.n_subwords += int(runs[1].sum())
                tokens = Tokens(sentences, split, batch, lengths, specials, network.network.device)
                yield tokens, batch, inputs
            self.n_done += len(lengths) - len(some)
        if not self.n_subwords:
            name = "the store" if isinstance(self._source, Store) else self._source.name
            raise InvalidValueError(f"{name}: no sentence has a subword that {network.info.name!r} knows")

    def _chunks(self) -> Iterator[list[Annotated]]:
        """Yield the sentences, some at a time."""
        sentences = annotated(self._source, **self._annotation)
        if self._chosen is not None:
            chosen = set(self._chosen.tolist())
            sentences = (sentence for number, sentence in enumerate(sentences) if number in chosen)
        n_read = 0
        while chunk := list(islice(sentences, CHUNK)):
            n_read += len(chunk)
            if len(chunk) < CHUNK:
                self.total = n_read
            yield chunk


class Pass:
    """A pass of a model over batches: every map goes to all statistics and is forgotten.

    Raises InvalidValueError for layers and heads that the model does not have.
    """

    def __init__(self, network: AttentionModel, statistics: Sequence[Statistic], *, layers: Layers, heads: Any) -> None:
        specials = network.network.inputs.specials
        every = tuple(range(1, network.n_layers + 1))
        chosen = resolve_layers(layers, every, ascending=True, absent=f"has no attention in {network.info.name!r}")
        n_specials = len(specials.prefix), len(specials.suffix)
        self.shape = Shape(chosen, _heads(heads, network), network.causal, *n_specials)
        self._network, self._statistics = network, statistics
        self._all_heads = len(self.shape.heads) == network.n_heads
        for statistic in statistics:
            statistic.begin(self.shape)

    @torch.inference_mode()
    def add(self, tokens: Tokens, batch: Batch, inputs: dict[str, Any]) -> None:
        """Run a batch and add its maps to the statistics."""

        def receive(layer: int, values: torch.Tensor) -> None:
            if not self._all_heads:
                values = values[:, list(self.shape.heads)]
            if int(tokens.lengths.min()) < tokens.n_positions:
                values.mul_(tokens.valid[:, None, :, None])  # the attention of padding is 0
            index = self.shape.layers.index(layer)
            maps = Maps(values, tokens, layer=index, last=index == len(self.shape.layers) - 1)
            for statistic in self._statistics:
                statistic.update(maps)

        self._network.run(inputs, self.shape.layers, receive)


def _heads(given: Sequence[int] | None, network: AttentionModel) -> tuple[int, ...]:
    if given is None:
        return tuple(range(network.n_heads))
    for head in given:
        if not 0 <= head < network.n_heads:
            last = network.n_heads - 1
            raise InvalidValueError(f"there is no head {head}; {network.info.name!r} has heads 0 to {last}")
    if not given or len(set(given)) < len(given):
        raise InvalidValueError(f"heads {quoted(given)} must be one or more, each given once")
    return tuple(int(head) for head in given)


def frame_of(statistics: Sequence[Statistic], shape: Shape) -> pl.DataFrame:
    """Return the results of statistics as one table."""
    import polars as pl

    types: dict[str, Any] = dict.fromkeys(("layer", "head", "offset", "count"), pl.Int64)
    types |= {"metric": pl.String, "item": pl.String, "value": pl.Float64, "baseline": pl.Float64}
    layers, heads = (grid.ravel() for grid in np.meshgrid(shape.layers, shape.heads, indexing="ij"))
    frames = [pl.DataFrame(schema={name: types[name] for name in COLUMNS})]
    for statistic in statistics:
        for each in statistic.results():
            values = np.asarray(each.values, np.float64)
            columns: dict[str, Any] = {"value": values.ravel()}
            columns |= {"layer": layers, "head": heads} if values.ndim else {"layer": [None], "head": [None]}
            fixed = {name: getattr(each, name) for name in ("metric", "item", "offset", "baseline")}
            fixed["count"] = int(each.count)
            part = pl.DataFrame(columns).with_columns(**{name: pl.lit(value) for name, value in fixed.items()})
            frames.append(part.select(pl.col(name).cast(types[name]) for name in COLUMNS))
    return pl.concat(frames)


@dataclass(frozen=True, eq=False)
class SentenceAttention:
    """The attention maps of one sentence: float32 `values` [layers, heads, positions, positions], queries before keys.

    `subwords`: the spelling of each position, special subwords included.
    """

    subwords: tuple[str, ...]
    layers: tuple[int, ...]
    heads: tuple[int, ...]
    values: NDArray[np.float32]

    def __repr__(self) -> str:
        return f"<SentenceAttention of {len(self.subwords)} subwords, layers {self.layers}, heads {self.heads}>"


@checked
def sentence_attention(
    sentence: Sentence | str | Sequence[str],
    *,
    model: str | Path,
    layers: Layers = None,
    heads: Sequence[int] | None = None,
) -> SentenceAttention:
    """Return the attention maps of a sentence, such as `store.index.text.sentence(0)`, a text as it is, or words.

    Raises InvalidValueError for a sentence without subwords, for layers and heads that do not exist, and ModelError for
    a model without attention weights.
    """
    item: Any = sentence
    if isinstance(sentence, str):
        item = Document(sentence, spans=[Span(0, len(sentence), "sentence")])
    network = load_attention_model(model, device=choose_device(settings().device))
    held = Held()
    measured = Pass(network, [held], layers=layers, heads=heads)
    (tokens, batch, inputs), *_ = Reader(open_corpus([item]), network).batches(1)
    measured.add(tokens, batch, inputs)
    spelled = network.network.tokenizer.subword_text
    subwords = tuple(spelled(index) for index in inputs["input_ids"][0].tolist())
    values = np.stack([each[0].cpu().numpy() for each in held.values])
    return SentenceAttention(subwords, measured.shape.layers, measured.shape.heads, values)


class Held(Statistic):
    """Holds the maps of all layers of a batch."""

    def __init__(self) -> None:
        super().__init__()
        self.values: list[torch.Tensor] = []

    def update(self, maps: Maps) -> None:
        self.values.append(maps.values)

    def results(self) -> Iterator[Values]:
        yield from ()


@checked
def attention_similarity(
    corpus: str | Path | Corpus | Store | Sequence[Any],
    *,
    model_a: str | Path,
    model_b: str | Path,
    max_length: Positive = 128,
    n_sentences: Positive | None = None,
    seed: Count = 0,
) -> pl.DataFrame:
    """Compare the self-attention weights of two models, as Figure 7 of Zhao et al. 2020 does.

    Returns a frame `layer, head, value`: the cosine of all the weights of a head in one model with those in the other,
    flattened over the sentences of the corpus. Layer l is the attention of block l, from 1, like the hidden states that
    it computes; heads count from 0, as in transformers. The other arguments are those of `attention`.

    Sums are in float64 and maps are not stored, so memory does not grow with the corpus; padding is left out.
    Raises ModelError if the models differ in layers, heads or tokenizer, or return no weights.
    """
    where = choose_device(settings().device)
    opened = corpus if isinstance(corpus, Store) else open_corpus(corpus)
    progress = reporting(settings().progress, unit="sentences", label="attention")
    with torch_threads(settings().threads), progress as report:
        first, second = (load_attention_model(model, device=where) for model in (model_a, model_b))
        names = f"{first.info.name!r} and {second.info.name!r}"
        for what, one, other in (("layers", first.n_layers, second.n_layers), ("heads", first.n_heads, second.n_heads)):
            if one != other:
                raise ModelError(f"{names} have {one} and {other} {what}: compare models of one shape")
        if first.info.tokenizer_sha256 != second.info.tokenizer_sha256:
            raise ModelError(f"{names} have different tokenizers: compare models with the same tokenizer")
        reader = Reader(opened, first, max_length=max_length, n_sentences=n_sentences, seed=seed)
        held = Held()
        cosines = _Cosines(held.values)
        first_pass = Pass(first, [held], layers=None, heads=None)
        second_pass = Pass(second, [cosines], layers=None, heads=None)
        for tokens, batch, inputs in reader.batches(BATCH_SUBWORDS.get(where.type, 2048)):
            held.values.clear()
            first_pass.add(tokens, batch, inputs)
            second_pass.add(tokens, batch, inputs)
            report(reader.n_done, reader.total)
    return frame_of([cosines], second_pass.shape).select("layer", "head", "value")


class _Cosines(Statistic):
    """Sums of a.b, a.a and b.b of maps a, and `others` b of the same batch."""

    def __init__(self, others: list[torch.Tensor]) -> None:
        super().__init__()
        self.others = others

    def update(self, maps: Maps) -> None:
        a, b = maps.values, self.others[maps.layer]
        dtype = torch.float32 if a.device.type == "mps" else torch.float64  # Apple GPUs have no float64
        sums = [(x * y).sum((0, 2, 3), dtype=dtype) for x, y in ((a, b), (a, a), (b, b))]
        self.add("products", maps.layer, torch.stack(sums))

    def results(self) -> Iterator[Values]:
        both, one, other = self.sums["products"].transpose(1, 0, 2)
        yield Values("cosine", "", both / np.sqrt(one * other), count=0)

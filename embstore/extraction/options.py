"""The options of an extraction, checked before a corpus or a model is read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from embstore.arguments import Range, checked
from embstore.corpus import Keep
from embstore.errors import InvalidValueError, quoted
from embstore.models.encoder import By, Pooling, Scope
from embstore.store.layout import RESIDUAL, SITES, resolve_layers

CLS = "cls"  # a pooling of sentences: the vector of [CLS]
MAX_WINDOW = 10**6  # words; more than any context has
MAX_SUBWORDS = 2**24  # of a batch, and of a sentence; far more than fit into memory
CONTEXT_RULE = (
    "only the words at most context_window words left and right of the target are given to the model, "
    "with its special subwords around them"
)
ATTENTION_RULE = (
    "at every layer a word attends to the words at most attention_window words away and to the special subwords, "
    "these only to each other"
)
RECORDED: tuple[str, ...] = ("unit", "tokenize", "pooling", "keep", "max_length", "context_window", "attention_window")
RECORDED += ("batch_subwords", "seed")
PRESETS: dict[str, dict[str, Any]] = {
    "transformerlens": {"unit": "subword", "begin": "always", "context": "document"},
    "saelens": {"unit": "subword", "begin": "always", "context": 512, "pack": "bos"},
}
Words = Annotated[int, Range(0, MAX_WINDOW, "words")]
Subwords = Annotated[int, Range(1, MAX_SUBWORDS, "subwords")]


@checked
@dataclass(frozen=True, kw_only=True)
class ExtractionOptions:
    """What a store holds of a corpus: the layers, the rows, and how each vector is made.

    Parameters
    ----------
    layers : str, int or list
        "all", "0,6-12,last" or numbers; 0 is the embedding output, l the output of block l, -1 or "last" the last one.
    sites : str or list
        What is stored of each layer: "residual", the hidden states; of the block that computes it "query", "key",
        "value", "head_output", "attention_output", "mlp_output", "residual_mid" and "neurons" (see `Store.site`);
        several as a list or "a,b".
    unit : str
        "word" for a row a word, "subword" for a row a subword, "sentence" for a row a sentence.
    specials : bool
        Also a row for each special token that the model adds to a sentence, such as [CLS] and [SEP]; they have the
        label column "special".
    tokenize : str
        What the tokenizer is given: the "text" itself, so that its subwords are those of any other tool, or the
        "words", each by itself and with a space before it, as papers do that split the text first. A tokenizer that
        does not say where its subwords are in the text reads words.
    pooling : str
        How the subwords of a word or sentence become one vector: "mean", "first", "last" or "max"; of a sentence also
        "cls", the vector of [CLS].
    begin : str
        What each context begins with: "auto" is what the tokenizer puts there, "always" the token that begins a text
        (BOS, of GPT-2 its end of text), "none" no special token. The model is then named bos:NAME or nobos:NAME.
    context_window : int or None
        The model is given only this many words left and right of each target; None: the whole sentence.
    attention_window : int or None
        The model is given the whole sentence, and at every layer a word attends to the words this many words away;
        None: to all of them.
    context : str or int
        What the model is given at a time: a "sentence", a "document", or a number: blocks of at most this many
        subwords of a document, special ones included. A sentence or document that is longer than the limit is given
        in blocks too, and every word has the vector of one block; see docs/how-to/contexts.md.
    pack : str or None
        Documents follow each other in blocks of a number of subwords, as models are trained, with the token "eos" or
        "bos" between them, which has no row. None: a block is of one document.
    min_left : int or None
        Blocks overlap so that a word has this many words before it in its block where the document has them, and
        after it too if the model is bidirectional. None: a quarter of a block overlaps, none of blocks of a number of
        subwords.
    keep : Keep
        Which occurrences get a row.
    dtype : str
        The stored type: "float16", "float32", "bfloat16" or "int8".
    max_length : int or None
        A context has at most this many subwords, special ones included; None: the model's own limit.
    batch_subwords : int or None
        The size of a batch in subwords, special ones included; None: what suits the device, or what an existing store
        was made with.
    seed : int
        Seed of whatever is drawn at random.

    Raises
    ------
    InvalidValueError
        For a value that is not allowed.
    """

    layers: str | int | Iterable[int | str] = "all"
    sites: str | Sequence[str] = (RESIDUAL,)
    unit: Literal["word", "subword", "sentence"] = "word"
    specials: bool = False
    tokenize: By = "text"
    pooling: Pooling | Literal["cls"] = "mean"
    begin: Literal["auto", "always", "none"] = "auto"
    context_window: Words | None = None
    attention_window: Words | None = None
    context: str | int = "sentence"
    pack: Literal["eos", "bos"] | None = None
    min_left: Words | None = None
    keep: Keep = field(default_factory=Keep)
    dtype: Literal["float16", "float32", "bfloat16", "int8"] = "float16"
    max_length: Subwords | None = None
    batch_subwords: Subwords | None = None
    seed: Annotated[int, Range(0, 2**64 - 1)] = 0

    def __post_init__(self) -> None:
        if isinstance(self.layers, Iterable) and not isinstance(self.layers, str):
            object.__setattr__(self, "layers", tuple(self.layers))
        object.__setattr__(self, "sites", _sites(self.sites, self.dtype))
        for name in ("context_window", "attention_window", "min_left", "max_length", "batch_subwords", "seed"):
            if (value := getattr(self, name)) is not None:
                object.__setattr__(self, name, int(value))  # numpy's integers are no JSON
        if self.is_blocks:
            Range(1, MAX_SUBWORDS, "subwords").check("context", self.context)  # type: ignore[arg-type]
            object.__setattr__(self, "context", int(self.context))
        elif self.context not in ("sentence", "document"):
            allowed = "sentence, document or a number of subwords"
            raise InvalidValueError(f"unknown context {quoted(self.context)}: choose {allowed}")
        for conflict in _conflicts(self):
            raise InvalidValueError(conflict)

    @classmethod
    def like(cls, tool: Literal["transformerlens", "saelens"], **options: Any) -> ExtractionOptions:
        """Return the options that give a decoder what another tool gives it, by that tool's defaults.

        "transformerlens": each text whole, after BOS, a row a subword. "saelens": documents packed into contexts of
        `context` subwords that begin with BOS, with BOS between them. `options`: others, or in place of these.
        """
        if tool not in PRESETS:
            raise InvalidValueError(f"there is no preset {quoted(tool)}: choose {' or '.join(PRESETS)}")
        return cls(**PRESETS[tool] | options)

    @property
    def is_blocks(self) -> bool:
        """Whether the context is blocks of a given number of subwords."""
        return not isinstance(self.context, str)

    @property
    def scope(self) -> Scope:
        """What the tokenizer is given at a time."""
        return "sentence" if self.context == "sentence" else "document"

    @property
    def encoding(self) -> dict[str, Any]:
        """The arguments of `Encoder.encode` that these options decide, except for the layers."""
        pooling = "first" if self.pooling == CLS else self.pooling
        arguments: dict[str, Any] = {"pooling": pooling, "batch_subwords": self.batch_subwords}
        if self.sites != (RESIDUAL,):
            arguments["sites"] = self.sites
        if self.attention_window is not None:
            arguments["attention_window"] = self.attention_window
        return arguments

    def as_json(self) -> dict[str, Any]:
        """The options in the metadata of a store."""
        document = {name: getattr(self, name) for name in RECORDED} | {"keep": self.keep.as_json()}
        for name, usual in (("begin", "auto"), ("pack", None), ("specials", False)):
            if (value := getattr(self, name)) != usual:
                document[name] = value
        if self.context != "sentence" or self.min_left is not None:
            document |= {"context": self.context, "min_left": self.min_left}
        if self.context_window is not None:
            document["window_rule"] = CONTEXT_RULE
        if self.attention_window is not None:
            document["window_rule"] = ATTENTION_RULE
        return document


def _conflicts(options: ExtractionOptions) -> Iterator[str]:
    """Yield how options contradict each other."""
    unit, context, keep, specials = options.unit, options.context, options.keep, options.specials
    is_cls, has_window, attention = options.pooling == CLS, options.context_window is not None, options.attention_window
    window, of_sentence = f"context window {options.context_window}", "unit sentence does not go with"
    if has_window and attention is not None:
        yield f"{window} and attention window {attention} exclude each other: give one of them"
    if is_cls and unit != "sentence":
        yield f"pooling cls is for unit sentence, not {unit}: choose another pooling or unit"
    if unit == "sentence" and specials:
        yield f"{of_sentence} specials: choose pooling cls for the vectors of [CLS]"
    if unit == "sentence" and (keep.words is not None or keep.min_contexts > 1 or keep.max_contexts is not None):
        yield f"{of_sentence} a choice of words: leave out words, min_contexts and max_contexts"
    if unit == "sentence" and has_window:
        yield f"{of_sentence} a context window of words: leave it out"
    if specials and has_window:
        yield f"specials do not go with {window}, which is around a word: leave one out"
    if specials and context != "sentence":
        yield f"context {context} does not go with specials, which belong to no sentence of it: leave them out"
    if is_cls and context != "sentence":
        yield f"context {context} does not go with pooling cls: choose mean, first, last or max"
    if options.pack is not None and not options.is_blocks:
        yield f"pack {options.pack} does not go with context {context}: give a number of subwords, such as context 512"
    if options.pack is not None and (unit == "sentence" or has_window or attention is not None or options.min_left):
        yield f"pack {options.pack} is for rows of words or subwords, without windows and min left: leave these out"
    if options.is_blocks and options.max_length is not None:
        yield f"context {context} does not go with a max length: give one of the two"


def _sites(sites: str | Sequence[str], dtype: str) -> tuple[str, ...]:
    """Return the sites in the order of SITES, each once; raises InvalidValueError for an unknown one and for none."""
    names = [part.strip() for part in sites.split(",")] if isinstance(sites, str) else list(sites)
    if not names:
        raise InvalidValueError(f"sites {quoted(sites)} are not understood: name one or more of {', '.join(SITES)}")
    for site in names:
        if site not in SITES:
            raise InvalidValueError(f"unknown site {quoted(site)}: choose among {', '.join(SITES)}")
    if dtype == "int8" and set(names) != {RESIDUAL}:
        raise InvalidValueError("dtype int8 is possible for the site residual alone: choose another dtype")
    return tuple(site for site in SITES if site in names)


def model_layers(layers: str | int | Iterable[int | str], num_hidden_layers: int) -> tuple[int, ...]:
    """Return the layers of a model that `ExtractionOptions.layers` names, in ascending order, each once.

    Layer 0 is the embedding output, l the output of block l. Raises InvalidValueError for one that does not exist.
    """
    return resolve_layers(layers, range(num_hidden_layers + 1), ascending=True, absent="does not exist")

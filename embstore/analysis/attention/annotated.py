"""The sentences of a corpus or a store with what attention is compared with: trees, and mentions that corefer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from embstore.corpus import Corpus, EdgeSentence
from embstore.corpus.formats.edge import iter_edges
from embstore.corpus.lines import Lines
from embstore.corpus.sentence import Sentence, split_forms
from embstore.corpus.trees import Tree, iter_trees
from embstore.errors import CorpusError, InvalidValueError
from embstore.spacing import ATTACHED, marked_words, split_marked
from embstore.store import Store

SAME, OTHER = "1", "0"  # labels of pairs of mentions


@dataclass(frozen=True)
class Mention:
    """A mention that refers to something mentioned before; words are those at the heads.

    `antecedents`: the words of earlier mentions of the same. `guesses`: by the name of a rule that needs no model, the
    word of an earlier mention, or -1.
    """

    word: int
    antecedents: frozenset[int]
    guesses: Mapping[str, int]


@dataclass(frozen=True, eq=False)
class Annotated:
    """A sentence and its annotation.

    `words`: as they are split into subwords, with marks (see `embstore.spacing`). `bounds`: int64 [forms + 1], the
    words of each form: a form of a tree may be several words. Trees and mentions count forms.
    """

    words: Sequence[str]
    bounds: NDArray[np.int64]
    tree: Tree | None = None
    mentions: tuple[Mention, ...] = ()

    @property
    def forms(self) -> list[str]:
        """The spelling of each form."""
        return [
            " ".join(self.words[start:stop]).replace(ATTACHED, "")
            for start, stop in zip(self.bounds, self.bounds[1:], strict=False)
        ]


def has_trees(source: Corpus | Store) -> str | None:
    """Return None if the first sentence has a dependency tree, else why it has none."""
    if isinstance(source, Store) or source.format != "conllu":
        return "has no trees: give CoNLL-U files"
    try:
        next(iter(_tree_sentences(source)))
    except CorpusError as error:
        return f"has no trees: {error}"
    return None


def has_mentions(source: Corpus | Store) -> str | None:
    """Return None if the first labelled pair of spans says whether they corefer, else why not."""
    text = "has no coreference: give edge probing files whose pairs of spans are labelled 1 (they corefer) or 0"
    if isinstance(source, Store) or source.format != "edge":
        return text
    for sentence in _edges(source):
        for target in sentence.targets:
            return None if target.span2 is not None and set(target.labels) <= {SAME, OTHER} else text
    return text


def annotated(source: Corpus | Store, *, trees: bool, mentions: bool) -> Iterator[Annotated]:
    """Yield the sentences of a corpus or a store, with trees or mentions if they are asked for.

    Raises CorpusError, with the line, for a sentence whose annotation is not valid.
    """
    if isinstance(source, Store):
        yield from (_plain(split_marked(text)) for text in source.index.texts)
    elif trees:
        yield from _tree_sentences(source)
    elif mentions:
        normalized = iter(source)
        for sentence in _edges(source):
            words = _marked(next(normalized))
            yield Annotated(words, np.arange(len(words) + 1), None, _mentions(sentence))
    else:
        yield from (_plain(_marked(sentence)) for sentence in source)


def _marked(sentence: Sentence) -> Sequence[str]:
    return marked_words(sentence.words, sentence.attached)


def _plain(words: Sequence[str]) -> Annotated:
    return Annotated(words, np.arange(len(words) + 1))


def _tree_sentences(source: Corpus) -> Iterator[Annotated]:
    sentences = iter(source)
    for path in source.paths:
        for tree in iter_trees(Lines(path)):
            words = _marked(next(sentences))
            bounds = np.arange(len(words) + 1)
            if len(words) != len(tree):  # a form has a space
                _, spans = split_forms(tree.words)
                bounds = np.array([0, *(stop for _, stop in spans)])
            if bounds[-1] != len(words):
                raise InvalidValueError(
                    f"{source.name}: normalize={source.options['normalize']} changes the number of words, which are "
                    "then not those of the trees: open the corpus without it"
                )
            yield Annotated(words, bounds, tree)


def _edges(source: Corpus) -> Iterator[EdgeSentence]:
    for path in source.paths:
        yield from iter_edges(Lines(path))


def _mentions(sentence: EdgeSentence) -> tuple[Mention, ...]:
    """Return the mentions that have an antecedent; the head of a mention is taken to be its last word."""
    pairs = [(target, {target.span1, target.span2}) for target in sentence.targets if target.span2 is not None]
    spans = sorted({span for _, pair in pairs for span in pair if span is not None})
    found = []
    for span in spans:
        word = span[1] - 1
        earlier = [other for other in spans if other[1] <= word]
        same = {
            other[1] - 1
            for other in earlier
            for target, pair in pairs
            if pair == {span, other} and SAME in target.labels
        }
        if same:
            found.append(Mention(word, frozenset(same), _guesses(sentence.words, span, earlier)))
    return tuple(found)


def _guesses(words: Sequence[str], span: tuple[int, int], earlier: Sequence[tuple[int, int]]) -> dict[str, int]:
    """Return the antecedents that rules choose: the nearest earlier mention, or the nearest that is spelled alike."""
    spelled = [word.lower() for word in words]
    near = sorted(earlier, key=lambda other: (other[1], other[0]), reverse=True)
    same_head = [other for other in near if spelled[other[1] - 1] == spelled[span[1] - 1]]
    same = [other for other in near if spelled[slice(*other)] == spelled[slice(*span)]]
    rules = {"nearest": near, "head_match": same_head, "string_match": same or same_head or near}
    return {name: chosen[0][1] - 1 if chosen else -1 for name, chosen in rules.items()}

"""The sentences of a corpus or a store with what attention is compared with: trees, and mentions that corefer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from embstore.corpus import Corpus, EdgeSentence
from embstore.corpus.formats.edge import iter_edges
from embstore.corpus.lines import Lines
from embstore.corpus.sentence import Sentence, split_forms
from embstore.corpus.trees import Tree, iter_trees
from embstore.errors import CorpusError, InvalidValueError
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

    `bounds`: int64 [forms + 1], the words of each form: a form of a tree may be several words. Trees and mentions count
    forms.
    """

    sentence: Sentence
    bounds: NDArray[np.int64]
    tree: Tree | None = None
    mentions: tuple[Mention, ...] = ()

    @property
    def forms(self) -> list[str]:
        """The spelling of each form."""
        return [" ".join(self.sentence.words[start:stop]) for start, stop in pairwise(self.bounds.tolist())]


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
        text = source.index.text
        yield from (_plain(text.sentence(number)) for number in range(len(text)))
    elif trees:
        yield from _tree_sentences(source)
    elif mentions:
        normalized = iter(source)
        yield from (_plain(next(normalized), _mentions(sentence)) for sentence in _edges(source))
    else:
        yield from map(_plain, source)


def _plain(sentence: Sentence, mentions: tuple[Mention, ...] = ()) -> Annotated:
    return Annotated(sentence, np.arange(len(sentence.words) + 1), None, mentions)


def _tree_sentences(source: Corpus) -> Iterator[Annotated]:
    sentences = iter(source)
    for path in source.paths:
        for tree in iter_trees(Lines(path)):
            sentence = next(sentences)
            bounds = np.arange(len(sentence.words) + 1)
            if len(sentence.words) != len(tree):  # a form has a space
                _, spans = split_forms(tree.words)
                bounds = np.array([0, *(stop for _, stop in spans)])
            if bounds[-1] != len(sentence.words):
                raise InvalidValueError(
                    f"{source.name}: normalize={source.options['normalize']} changes the number of words, which are "
                    "then not those of the trees: open the corpus without it"
                )
            yield Annotated(sentence, bounds, tree)


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

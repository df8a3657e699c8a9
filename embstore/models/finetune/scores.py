"""Scores of predicted labels: accuracy, and precision, recall and F1 of entities."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

Entity = tuple[int, int, str]


def entities(labels: Sequence[str]) -> set[Entity]:
    """Return the entities of a sentence's BIO labels as (first word, word after the last, type).

    An entity begins at B-, and at an I- that does not go on from a label of its type (as in IOB1, and as the
    shared tasks' own scorer reads it); any other label is outside.
    """
    found = set()
    start, kind = 0, ""
    for place, label in enumerate([*labels, "O"]):
        mark, _, of = label.partition("-")
        goes_on = mark == "I" and of == kind
        if kind and not goes_on:
            found.add((start, place, kind))
        if not goes_on:
            start, kind = place, of if mark in ("B", "I") else ""
    return found


def entity_scores(gold: Iterable[Sequence[str]], predicted: Iterable[Sequence[str]]) -> dict[str, float]:
    """Return micro precision, recall and F1 over entities of the same span and type; 0 where nothing is found."""
    right = wanted = given = 0
    for truth, guess in zip(gold, predicted, strict=True):
        true, guessed = entities(truth), entities(guess)
        right += len(true & guessed)
        wanted += len(true)
        given += len(guessed)
    return {
        "precision": right / given if given else 0.0,
        "recall": right / wanted if wanted else 0.0,
        "f1": 2 * right / (wanted + given) if wanted + given else 0.0,
    }


def accuracy(gold: Iterable[Sequence[str]], predicted: Iterable[Sequence[str]]) -> float:
    """Return the share of labels that are right."""
    pairs = [(true, guess) for truth, given in zip(gold, predicted, strict=True)
             for true, guess in zip(truth, given, strict=True)]  # fmt: skip
    return sum(true == guess for true, guess in pairs) / len(pairs)

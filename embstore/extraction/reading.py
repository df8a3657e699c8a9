"""What a plan shows of how the text was split, and what it advises."""

from __future__ import annotations

from itertools import islice
from typing import Any

from embstore.corpus.splitting import ends_sentence
from embstore.extraction.survey import Survey
from embstore.models.encoder import Encoder

N_SHOWN = 3
N_TYPES = 100_000  # types that are looked at
MAX_SHOWN = 66  # characters: a line of 80 with the name before it


def first_sentences(survey: Survey) -> list[str]:
    """Return the first sentences, a dot between words, cut to MAX_SHOWN characters."""
    shown = (" · ".join(words[:MAX_SHOWN]) for words in survey.sample[:N_SHOWN])
    return [text if len(text) <= MAX_SHOWN else text[: MAX_SHOWN - 1] + "…" for text in shown]


def advice(survey: Survey, encoder: Encoder, options: dict[str, Any]) -> list[str]:
    """Return a line for each thing that is probably not meant, given the options of the corpus."""
    types = list(islice(survey.types, N_TYPES))
    found = []
    marked = sum(word[-1] in '.,;:!?"”’)' and any(map(str.isalpha, word)) for word in types)
    if options.get("words") == "spaces" and 10 * marked > len(types):
        share = f"{marked / len(types):.0%} of the types end in a punctuation mark"
        found.append(f"{share}: words=punctuation (--words punctuation) separates them")
    ends = sum(ends_sentence(" ".join(words)) for words in survey.sample)
    if options.get("split") == "lines" and len(survey.sample) > N_SHOWN and 2 * ends < len(survey.sample):
        share = f"{1 - ends / len(survey.sample):.0%} of the first {len(survey.sample)} lines do not end a sentence"
        found.append(f"{share}: split=sentences (--split sentences) finds the sentences")
    capitals = [word for word in types if word != word.lower()][:100]
    if capitals and "lower" not in (options.get("normalize") or ""):
        given, lowered = (
            encoder.tokenize([words]).ids.tolist() for words in (capitals, list(map(str.lower, capitals)))
        )
        if given == lowered:
            word = capitals[0]
            found.append(f"to the model {word} is {word.lower()}: --set normalize=lower makes them one")
    return found

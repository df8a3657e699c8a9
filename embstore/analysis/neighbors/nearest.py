"""Neighbours of a word in a sentence that no store holds: encoded by the store's own model, then looked up."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from embstore.analysis.neighbors import occurrences as stored
from embstore.errors import InvalidValueError
from embstore.store import Selection, Store, open_store
from embstore.vectors import WordVectors

if TYPE_CHECKING:
    import polars as pl


def neighbors(
    source: Store | Selection | WordVectors,
    word: str | list[str] | None = None,
    *,
    vectors: ArrayLike | None = None,
    text: str | None = None,
    model: str | Path | None = None,
    layer: int | None = None,
    **options: Any,
) -> pl.DataFrame:
    """Find the k nearest neighbours of words, occurrences, vectors, or of a word in a new sentence.

    `text`: a sentence with one word in [brackets], or in which `word` stands once; it is encoded as the store's own
    sentences were, and asked about as query 0. `model`: where that model is now, if it is no longer where it was. All
    else is as in `embstore.analysis.neighbors.occurrences`: `occurrence`, `k` (10), `metric` (cosine), `center`,
    `components`, `pool`, `labels`, `same_word`, `same_sentence`, `device`, `threads`, `progress`.

    Raises InvalidValueError, and ModelError where the store's model cannot be loaded.
    """
    if text is None:
        if model is not None:
            raise InvalidValueError("model says what encodes a new sentence: give text too")
        return stored.neighbors(source, word, vectors=vectors, layer=layer, **options)
    if vectors is not None:
        raise InvalidValueError("give a text or vectors, not both")
    if isinstance(source, WordVectors):
        raise InvalidValueError("word vectors have no model that encodes a sentence: give a word, or a store")
    if word is not None and not isinstance(word, str):
        raise InvalidValueError("a sentence is asked about by one word: give one")
    store = source if isinstance(source, Store) else source.store
    chosen = source.layers[-1] if layer is None else store.select(layers=layer).layers[0]
    encoded = encode_word(store, text, word, layer=chosen, model=model)
    return stored.neighbors(source, vectors=encoded, layer=chosen, **options)


def encode_word(
    store: Store, text: str, word: str | None = None, *, layer: int, model: str | Path | None = None
) -> NDArray[np.float32]:
    """The vector of a word in a new sentence, made as the store's own were: float32 [1, hidden_size].

    `text` has the word in [brackets], or `word` says which it is and stands in it once.
    """
    from embstore.extraction.extract import extract
    from embstore.extraction.options import ExtractionOptions
    from embstore.extraction.plan import plan
    from embstore.models import load_encoder

    made = store.metadata.extraction
    if made["unit"] != "word":
        raise InvalidValueError("the store has a row a subword: ask about an occurrence or a vector, not a text")
    sentence, position = _sentence_and_position(text, word, store.metadata.corpus["options"])
    encoder = load_encoder(model or store.metadata.model["name"])
    if encoder.info.weights_sha256 != store.metadata.model["weights_sha256"]:
        raise InvalidValueError(
            f"the model {encoder.info.name} is not the one that made {store.path}: name that one with model"
        )
    with tempfile.TemporaryDirectory(prefix="embstore-text-") as folder:
        settled = plan(
            [sentence],
            model=encoder,
            options=ExtractionOptions(
                layers=[layer], pooling=made["pooling"], max_length=made["max_length"], dtype="float32"
            ),
            calibrate=False,
        )
        path = Path(folder) / "text.zarr"
        extract(settled, path)
        held = open_store(path)
        row = np.flatnonzero(np.asarray(held.index.position) == position)
        if not len(row):
            raise InvalidValueError(f"the word {sentence[position]!r} has no vector: it has no piece, or is cut off")
        return held.gather(row, layer).astype(np.float32, copy=False)


def _sentence_and_position(text: str, word: str | None, options: Mapping[str, Any]) -> tuple[list[str], int]:
    """The words of the sentence, split as the store's corpus was, and which of them is asked about."""
    brackets = re.findall(r"\[([^\[\]]+)\]", text)
    if word is None:
        if len(brackets) != 1:
            raise InvalidValueError(
                f"{len(brackets)} words of the text are in [brackets]: put one there, or name a word"
            )
        before, word = text[: text.index("[")], brackets[0].strip()
        plain = text.replace(f"[{brackets[0]}]", brackets[0])
        words, asked = _split(plain, options), _split(word, options)
        position = len(_split(before, options))
        if words[position : position + 1] != asked:
            raise InvalidValueError(f"[{word}] is not one word as the store splits sentences: mark one word")
        return words, position
    words = _split(text, options)
    places = [place for place, own in enumerate(words) if own == word]
    if len(places) != 1:
        raise InvalidValueError(f"{word!r} stands {len(places)} times in the text: put the one meant in [brackets]")
    return words, places[0]


def _split(text: str, options: Mapping[str, Any]) -> list[str]:
    from embstore.corpus import open_corpus

    if not text.strip():
        return []
    corpus = open_corpus([text.strip()], split=options.get("split") or "space", normalize=options.get("normalize"))
    return [word for sentence in corpus for word in sentence.words]

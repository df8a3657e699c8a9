"""Tiny models as embstore loads them and as a plain script does, and sweeps over windows of a few sentences."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch

import embstore as es
from embstore.corpus import Sentence
from embstore.extraction.window_plan import WindowPlan
from embstore.models.encoder import Encoder
from embstore.store import Store
from tests.extraction.plans import window_plan_of
from tests.models.oracle import PlainScript
from tests.models.tiny import SENTENCES as TINY_SENTENCES
from tests.models.tiny import random_sentences, save

WIDTHS = (0, 1, 2, 8, None)


CORPUS = [
    Sentence(["New", "York", "is", "large", "but", "the", "old", "bank", "of", "New", "York"], {}, [(0, 2), (9, 11)]),
    Sentence([*TINY_SENTENCES[6], "cold"], {}, [(1, 4), (15, 17)]),
    Sentence(["antidisestablishmentarianism"]),
    *[Sentence(words) for words in TINY_SENTENCES[:5]],
    *[Sentence(words) for words in random_sentences(5, seed=3)],
]


@dataclass
class Scene:
    """A tiny model as embstore loads it and as a plain script does; `passes`: those with masks made by hand."""

    encoder: Encoder
    plain: PlainScript
    passes: dict[Any, Any] = field(default_factory=dict)

    def masked(self, words: Sequence[str], reach: int) -> tuple[Any, list[int | None]]:
        """All layers of a sentence, [layer, subword, feature], under an attention window made pair by pair."""
        key = (tuple(words), reach)
        if key not in self.passes:
            encoding = self.plain.tokenizer.encode(list(words), is_pretokenized=True)
            owners = list(encoding.word_ids)
            causal = "GPT2" in type(self.plain.model).__name__
            mask = torch.full((1, 1, len(owners), len(owners)), torch.finfo(torch.float32).min)
            for query, word in enumerate(owners):
                for key_place, other in enumerate(owners):
                    near = word is not None and other is not None and abs(word - other) <= reach
                    if (other is None or near) and not (causal and key_place > query):
                        mask[0, 0, query, key_place] = 0
            inputs = {"input_ids": torch.tensor([encoding.ids]), "attention_mask": mask}
            if self.plain.takes_types:
                inputs["token_type_ids"] = torch.tensor([encoding.type_ids])
            with torch.inference_mode():
                states = self.plain.model(**inputs, output_hidden_states=True).hidden_states
            self.passes[key] = torch.cat(states).numpy(), owners
        return self.passes[key]


def scenes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Scene]]:
    """Gives the scene of an architecture, made once; on one thread as long as it is used."""
    made: dict[str, Scene] = {}

    def of(kind: str) -> Scene:
        if kind not in made:
            folder = save(kind, tmp_path_factory.mktemp("models") / kind)
            made[kind] = Scene(es.load_encoder(folder, device="cpu"), PlainScript.open(folder))
        return made[kind]

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield of
    torch.set_num_threads(before)


def sweep(scene: Scene, sentences: Sequence[Any] = CORPUS, **options: Any) -> WindowPlan:
    options = {"model": scene.encoder, "dtype": "float32", "calibrate": False} | options
    if "attention_windows" not in options:
        options.setdefault("context_windows", WIDTHS)
    return window_plan_of(list(sentences), **options)


def occurrences(store: Store) -> list[tuple[list[str], int, int]]:
    """Of each row the words of its sentence, and its first word and the one after its last."""
    index = store.index
    found = []
    for row in range(store.n_rows):
        first = int(index.position[row])
        width = index.words[int(index.type[row])].count(" ") + 1
        found.append((index.texts[int(index.sentence[row])].split(" "), first, first + width))
    return found


def vectors_of(store: Store) -> np.ndarray:
    return np.asarray(store.gather_layers(np.arange(store.n_rows)))


def relative(found: np.ndarray, expected: np.ndarray) -> float:
    apart = np.abs(found - expected).max(axis=(1, 2)) / np.abs(expected).max(axis=(1, 2))
    return float(apart.max())

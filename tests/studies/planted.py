"""Tiny tasks with a rule that can be learned, and a tiny BERT with small weights."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
import transformers

from tests.models import tiny

ANIMATE = ("cat", "she", "people", "bank", "old")
OTHER = ("river", "mat", "hill", "money", "sea", "warm", "antidisestablishmentarianism")


def model(folder: Path, *, name: str = "bert") -> Path:
    """Write a tiny model as it is before any training."""
    tiny.save(name, folder)
    torch.manual_seed(0)
    network, _ = tiny.ARCHITECTURES[name]()
    transformers.utils.logging.disable_progress_bar()
    network.save_pretrained(folder)
    transformers.utils.logging.enable_progress_bar()
    return folder


def words(count: int, *, seed: int) -> list[list[str]]:
    rng = np.random.default_rng(seed)
    return [list(rng.choice(ANIMATE + OTHER, size=rng.integers(2, 8))) for _ in range(count)]


def tagged(path: Path, count: int, *, seed: int) -> Path:
    """CoNLL columns: a word is labelled by whether it is of the first list."""
    sentences = ("".join(f"{word}\t{_tag(word)}\n" for word in sentence) for sentence in words(count, seed=seed))
    path.write_text("\n".join(sentences) + "\n")
    return path


def _tag(word: str) -> str:
    return "B-ANIMATE" if word in ANIMATE else "O"


def labelled(path: Path, count: int, *, seed: int, sentences: int) -> Path:
    """Lines of a label and `sentences` sentences: whether the last one begins with a word of the first list."""
    rows = []
    for number, sentence in enumerate(words(count, seed=seed)):
        second = " ".join(["cat" if number % 2 else "river"] * 2 + sentence[:2])
        texts = [second] if sentences == 1 else [" ".join(sentence), second]
        rows.append("\t".join(["yes" if number % 2 else "no", *texts]))
    path.write_text("\n".join(rows) + "\n")
    return path


def folder(path: Path, task: str, *, train: int = 60, dev: int = 20) -> Path:
    """A folder of data for the task."""
    path.mkdir()
    for seed, (split, count) in enumerate({"train": train, "dev": dev}.items()):
        if task in ("pos", "ner"):
            tagged(path / f"{split}.conll", count, seed=seed)
        else:
            labelled(path / f"{split}.tsv", count, seed=seed, sentences=1 if task == "classify" else 2)
    return path

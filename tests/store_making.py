"""Small stores of random vectors, with their contents as plain Python."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from embstore.store import Index, Labels, Metadata, Store, StoreWriter, Strings, Text, create_store, open_store
from embstore.store.index import Field, IndexBuilder


@dataclass
class Made:
    """A store and its contents: `table` has a dict for each occurrence, `vectors` is [layer, occurrence, feature]."""

    store: Store
    table: list[dict[str, object]]
    vectors: np.ndarray


def make_store(
    path: Path,
    *,
    sentences: int = 120,
    layers: tuple[int, ...] = (0, 2, 5),
    hidden_size: int = 6,
    seed: int = 0,
    leave_out: tuple[int, ...] = (),
    ties: bool = False,
    years: bool = False,
) -> Made:
    """Write a store with partitions of 256 rows, except the partitions in `leave_out`.

    `ties`: a third of the vectors are equal, and every seventh is zero. `years`: documents have the fields `year`, with
    gaps, and `place`.
    """
    rng = np.random.default_rng(seed)
    words = ["bank", "river", "the", "new york", "suit", "évident"]
    tags = ["NOUN", "DET", "X"]
    table: list[dict[str, object]] = []
    texts = []
    for sentence in range(sentences):
        chosen = rng.integers(0, len(words), rng.integers(1, 9)).tolist()
        texts.append(" ".join(words[number] for number in chosen))
        position = at = 0
        for number in chosen:
            tag = int(rng.integers(-1, len(tags)))
            table.append(
                {
                    "occurrence": len(table),
                    "word": words[number],
                    "sentence": sentence,
                    "position": position,
                    "subwords": int(rng.integers(1, 4)),
                    "source": 2 * sentence + 1,
                    "document": sentence,
                    "start": at,
                    "stop": at + len(words[number]),
                    "upos": None if tag < 0 else tags[tag],
                    "text": texts[-1],
                }
            )
            position += words[number].count(" ") + 1
            at += len(words[number]) + 1
    index = _index(table, words, tags, texts)
    if years:
        codes = np.arange(len(texts), dtype=np.int32) % 4
        fields = {"year": Field(codes - 1, Strings.of(["-5", "1900", "1910"]), "int"),
                  "place": Field(codes // 2, Strings.of(["O'Hare", "x"]), "str")}  # fmt: skip
        index = index.changed(fields=fields)
    vectors = rng.normal(size=(len(layers), len(table), hidden_size)).astype(np.float32)
    if ties:
        vectors[:, rng.choice(len(table), len(table) // 3, replace=False)] = vectors[:, :1]
        vectors[:, 3::7] = 0
    metadata = Metadata(
        n_rows=len(table),
        layers=layers,
        hidden_size=hidden_size,
        dtype="float32",
        partition_rows=256,
        model={"name": "none", "architecture": "none"},
        corpus={"name": "none", "sha256": "0" * 64},
        extraction={"unit": "word", "pooling": "mean"},
        fields={name: own.kind for name, own in index.fields.items()},
    )
    create_store(path, metadata=metadata, index=index)
    with StoreWriter(path) as writer:
        for partition in writer.missing():
            if partition not in leave_out:
                start, stop = metadata.layout.span(partition)
                writer.write(partition, {"hidden_states": np.ascontiguousarray(vectors[:, start:stop])})
        if not leave_out:
            writer.finish()
    return Made(open_store(path), table, vectors)


def make_text_store(path: Path, sentences: list[list[str]], **labels: list[str | None]) -> Store:
    """Write a store of these sentences, all vectors equal; `labels`: of every word in turn."""
    builder = IndexBuilder()
    for number, words in enumerate(sentences):
        builder.add(number, words)
    columns = {}
    for name, values in labels.items():
        names = [value for value in dict.fromkeys(values) if value is not None]
        codes = [-1 if value is None else names.index(value) for value in values]
        columns[name] = Labels(np.array(codes, np.int32), Strings.of(names))
    index = builder.build().with_labels(columns)
    metadata = replace(make_store(path.with_suffix(".any.zarr")).store.metadata, n_rows=builder.n_rows)
    create_store(path, metadata=metadata, index=index)
    with StoreWriter(path) as writer:
        for partition in writer.missing():
            start, stop = metadata.layout.span(partition)
            writer.write(partition, {"hidden_states": np.ones((3, stop - start, 6), np.float32)})
        writer.finish()
    return open_store(path)


def _index(table: list[dict[str, object]], words: list[str], tags: list[str], texts: list[str]) -> Index:
    sentence = np.array([row["sentence"] for row in table], np.int64)
    return Index.of(
        type=np.array([words.index(str(row["word"])) for row in table], np.int32),
        sentence=sentence,
        position=np.array([row["position"] for row in table], np.int32),
        subwords=np.array([row["subwords"] for row in table], np.int16),
        words=Strings.of(words),
        text=Text.of_words(text.split(" ") for text in texts),
        indptr=np.searchsorted(sentence, np.arange(len(texts) + 1)).astype(np.int64),
        source=2 * np.arange(len(texts), dtype=np.int64) + 1,
        labels={
            "upos": Labels(
                np.array([-1 if row["upos"] is None else tags.index(str(row["upos"])) for row in table], np.int32),
                Strings.of(tags),
            )
        },
    )

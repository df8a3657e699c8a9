"""Logit lens: what a decoder would predict from its hidden state at each layer."""

from __future__ import annotations

from math import log
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray

from embstore.analysis.scan import selected
from embstore.arguments import Positive, checked
from embstore.config import settings
from embstore.devices import choose_device, torch_threads
from embstore.errors import InvalidValueError, NonFiniteError
from embstore.models.loading import model_kind
from embstore.models.origin import find_model, require_same_model
from embstore.models.transformer.unembedding import Unembedding, load_unembedding
from embstore.progress import reporting
from embstore.store import Selection, Store
from embstore.store.index import SPECIAL
from embstore.store.layout import RESIDUAL, Layers

BLOCK_ROWS = 256  # at most: more are no faster on a CPU
COPIES = 10  # of the logits of a block that there is memory for


@checked
def lens(
    data: Store | Selection, *, layers: Layers = "all", top: Positive = 5, model: str | Path | None = None
) -> pl.DataFrame:
    """Read the hidden states of a decoder by its own final norm and head: the logit lens (nostalgebraist 2020).

    Of the state h of a subword at a layer the logits are z = head(norm(h)), [vocabulary], with the bias, scale and cap
    that the model itself applies; the last layer is stored after the norm, which is not applied again. With p =
    softmax(z), p[next] is the probability that the model gives to the true next subword from this layer alone.
    Computes in float32.

    Parameters
    ----------
    data : Store or Selection
        The occurrences, each the residual state of one subword: of a store of subwords, or of words pooled by "last".
        Of others only words of one subword (`select(where="subwords = 1")`).
    layers : int, str or list
        By default all of `data`.
    top : int
        How many of the likeliest subwords are listed.
    model : str or Path, optional
        Where the model of the store is now, if it is not found.

    Returns
    -------
    polars.DataFrame
        A line for each layer and row, layer by layer: `occurrence`, `layer`; `token`, the id of the row's own (last)
        subword; `next`, that of the true next one in the same context, null at its end; its `rank`, how many subwords
        are likelier, where each equally likely one counts half (0: the likeliest), and its `probability`; `entropy`
        of p in bits; `top`, the texts of the likeliest subwords, and `top_probability`.

    Raises
    ------
    InvalidValueError
        For rows that are not the state of one subword, and vectors without context.
    ModelError
        If the model is not found, has no head, or reads in both directions.
    MissingRowsError, NonFiniteError
        For rows that are not written yet or not finite.

    Example::

        options = es.ExtractionOptions(unit="subword", context="document")
        states = es.extract(es.plan(["The cat sat on the mat."], model="gpt2", options=options), "states.zarr")
        es.lens(states).select("layer", "rank").group_by("layer").median()
    """
    is_all = layers is None or (isinstance(layers, str) and layers.strip() == "all")
    selection, now = selected(data, None if is_all else layers), settings()
    own, following = _subwords(selection)
    place = find_model(selection.store, model)
    if model_kind(place) != "transformer":
        raise InvalidValueError(f"the model {place} predicts no subword: give a store of a decoder")
    total, done = len(selection.layers) * len(selection), 0
    progress = reporting(now.progress, total=total, unit="rows", label="lens")
    with torch_threads(now.threads), progress as report:
        device, revision = choose_device(now.device), selection.store.metadata.model.get("revision")
        head = load_unembedding(place, device=device, revision=revision)
        require_same_model(selection.store, head.encoder, place)
        if top > head.vocabulary:
            raise InvalidValueError(
                f"top {top:,} is more than the {head.vocabulary:,} subwords of the model: give less"
            )
        final = head.info.num_hidden_layers if head.info.final_norm else None
        columns: dict[str, NDArray[Any]] = {"rank": np.empty(total), "top": np.empty((total, top), np.int32)}
        columns |= {name: np.empty(total, np.float32) for name in ("probability", "entropy")}
        columns["top_probability"] = np.empty((total, top), np.float32)
        block_rows = max(1, min(BLOCK_ROWS, now.nbytes // (COPIES * 4 * head.vocabulary)))
        for block in selection.scan(block_rows=block_rows):
            some, first = slice(done, done + len(block.rows)), done % len(selection)
            states = torch.from_numpy(np.asarray(block.vectors, np.float32)).to(device)
            true = torch.from_numpy(following[first : first + len(states)].astype(np.int64)).to(device)
            logits = head.logits(states, normed=block.layer == final)
            if not bool((finite := logits.amax(1).isfinite()).all()):
                row = int(block.rows[int(finite.int().argmin())])
                raise NonFiniteError(f"layer {block.layer}, row {row} has no finite logits: leave that row out")
            for name, values in _measured(logits, true, top).items():
                columns[name][some] = values.cpu().numpy()
            report(done := some.stop)
    return _frame(selection, head, {"token": own, "next": following}, columns)


def _subwords(selection: Selection) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Return the ids of the last subword of each row and of the true next one, -1 at the end of a context.

    Raises InvalidValueError for rows that are not the state of their last subword.
    """
    store, rows = selection.store, selection.rows
    index, made = store.index, store.metadata.extraction
    if store.source.layout.site != RESIDUAL:
        raise InvalidValueError(f"the lens reads hidden states, not the site {store.source.layout.site}: give residual")
    if made["unit"] != "subword" and made.get("pooling") != "last" and (several := index.subwords[rows] > 1).any():
        raise InvalidValueError(
            f"{several.sum():,} of {len(rows):,} rows are the {made.get('pooling')} of several subwords: store a row a "
            'subword (unit = "subword") or the last of each word (pooling = "last"), or select where subwords = 1'
        )
    text, sentence = index.text, np.asarray(index.sentence[rows])
    stops = text.subword_indptr[sentence + 1]
    if index.contexts is not None:
        stops = index.contexts.stop[index.contexts.of_rows(rows)]
    starts, ends = index.subword_spans(rows)
    last = np.minimum(ends, stops) - 1
    if SPECIAL in index.labels and (index.labels[SPECIAL].codes[rows] >= 0).any():
        raise InvalidValueError("some rows are special tokens, which are no text: select where special is null")
    if (last < starts).any() or (text.ids[last] < 0).any():
        raise InvalidValueError(f"the rows of {store.path} are no subwords of a model: give a store of a decoder")
    following = np.where(last + 1 < stops, text.ids[np.minimum(last + 1, len(text.ids) - 1)], -1)
    return text.ids[last], following.astype(np.int32)


def _measured(logits: torch.Tensor, true: torch.Tensor, top: int) -> dict[str, torch.Tensor]:
    """Return what is known of logits [n, vocabulary] and the ids [n] of the true next subwords (-1: anything)."""
    numbers = true.clamp_min(0)[:, None]
    own, values, ids = logits.gather(1, numbers), torch.softmax(logits, 1), logits.topk(top, 1).indices
    return {
        "rank": ((logits > own).sum(1) + (logits >= own).sum(1) - 1) / 2,
        "probability": values.gather(1, numbers)[:, 0],
        "entropy": torch.special.entr(values).sum(1) / log(2),
        "top": ids,
        "top_probability": values.gather(1, ids),
    }


def _frame(
    selection: Selection, head: Unembedding, ids: dict[str, NDArray[np.int32]], columns: dict[str, NDArray[Any]]
) -> pl.DataFrame:
    n_layers, shape = len(selection.layers), columns["top"].shape
    listed, numbers = np.unique(columns.pop("top"), return_inverse=True)
    texts = pl.Series([head.encoder.tokenizer.piece(number) for number in listed.tolist()], dtype=pl.String)
    likely = pl.Series("top_probability", columns.pop("top_probability")).arr.to_list()
    frame = pl.DataFrame(
        {
            "occurrence": np.tile(selection.rows, n_layers),
            "layer": np.array(selection.layers, np.int64).repeat(len(selection)),
            **{name: np.tile(column, n_layers) for name, column in ids.items()},
            **columns,
            "top": texts.gather(numbers.ravel()).reshape(shape).arr.to_list(),
            "top_probability": likely,
        }
    )
    known = pl.when(pl.col("next") >= 0)
    return frame.with_columns(known.then(pl.col(name)).alias(name) for name in ("rank", "probability", "next"))

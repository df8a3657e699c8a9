"""Logit lens: what a decoder would predict from its hidden state at each layer."""

from __future__ import annotations

from math import log
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
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
from embstore.store.layout import RESIDUAL, Layers

if TYPE_CHECKING:
    import polars as pl

BLOCK_ROWS = {"cpu": 256, "cuda": 2048}  # at most: more are no faster
COPIES = 5  # of the logits of a block that may exist at a time
STORE_SUBWORDS = 'store a row a subword (unit = "subword") or the last subword of each word (pooling = "last")'


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

        found = es.lens(es.open("gpt2.zarr"))
        found.group_by("layer").agg(pl.col("rank").median())
    """
    is_all = layers is None or (isinstance(layers, str) and layers.strip() == "all")
    selection = selected(data, None if is_all else layers)
    store = selection.store
    own, following = _subwords(selection)
    place = find_model(store, model)
    if model_kind(place) != "transformer":
        raise InvalidValueError(
            f"{store.path} has vectors of {place}, which predicts no subword: give one of a decoder"
        )
    device = choose_device(settings().device)
    with torch_threads(settings().threads):
        head = load_unembedding(place, device=device, revision=store.metadata.model.get("revision"))
        require_same_model(store, head.encoder, place)
        columns = _scan(selection, head, following, top, device)
    return _frame(selection, head, own, following, columns)


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
            f"{int(several.sum()):,} of {len(rows):,} rows are the {made.get('pooling')} of several subwords: "
            f"{STORE_SUBWORDS}, or select where subwords = 1"
        )
    text, sentence = index.text, np.asarray(index.sentence[rows])
    if index.contexts is None:
        stops = text.subword_indptr[sentence + 1]
    else:
        stops = index.contexts.stop[index.contexts.of_rows(rows)]
    starts, last = index.subword_spans(rows)
    last = np.minimum(last, stops) - 1
    n_words = text.word_indptr[sentence + 1] - text.word_indptr[sentence]
    if ((index.position[rows] < 0) | (index.position[rows] >= n_words)).any():
        raise InvalidValueError("some rows are special tokens, which are no text: select where special is null")
    if (last < starts).any() or (text.ids[last] < 0).any():
        raise InvalidValueError(f"the rows of {store.path} are no subwords of a model: give a store of a decoder")
    following = np.full(len(rows), -1, np.int32)
    inside = last + 1 < stops
    following[inside] = text.ids[last[inside] + 1]
    return text.ids[last], following


def _scan(
    selection: Selection, head: Unembedding, following: NDArray[np.int32], top: int, device: torch.device
) -> dict[str, NDArray[Any]]:
    """Return the columns of all layers, one after the other: rank, probability, entropy, and of the likeliest ids."""
    layers, info, now = selection.layers, head.info, settings()
    final = info.num_hidden_layers if info.final_norm else None
    total, size = len(layers) * len(selection), head.vocabulary
    if top > size:
        raise InvalidValueError(f"top {top:,} is more than the {size:,} subwords of the model: give less")
    columns: dict[str, NDArray[Any]] = {"rank": np.empty(total)}
    columns |= {name: np.empty(total, np.float32) for name in ("probability", "entropy")}
    columns |= {"top": np.empty((total, top), np.int32), "top_probability": np.empty((total, top), np.float32)}
    block_rows = max(1, min(BLOCK_ROWS.get(device.type, 256), now.nbytes // (2 * COPIES * 4 * size)))
    done = 0
    with reporting(now.progress, total=total, unit="rows", label="lens") as report:
        for block in selection.scan(block_rows=block_rows):
            some = slice(done, done + len(block.rows))
            states = torch.from_numpy(np.asarray(block.vectors, np.float32)).to(device)
            logits = head.logits(states, normed=block.layer == final)
            first = done % len(selection)
            true = torch.from_numpy(following[first : first + len(block.rows)].astype(np.int64)).to(device)
            for name, values in _measured(logits, true, top).items():
                columns[name][some] = values.cpu().numpy()
            if not np.isfinite(columns["entropy"][some]).all():
                row = int(block.rows[np.isfinite(columns["entropy"][some]).argmin()])
                raise NonFiniteError(f"layer {block.layer}, row {row} has no finite logits: leave that row out")
            done = some.stop
            report(done)
    return columns


def _measured(logits: torch.Tensor, true: torch.Tensor, top: int) -> dict[str, torch.Tensor]:
    """Return what is known of logits [n, vocabulary] and the ids [n] of the true next subwords (-1: anything)."""
    own = logits.gather(1, true.clamp_min(0)[:, None])
    rank = ((logits > own).sum(1) + (logits >= own).sum(1) - 1) / 2
    values = torch.softmax(logits, 1)
    highest, ids = logits.topk(top, 1)
    ids = ids.gather(1, torch.argsort(ids, dim=1))  # so that equal ones are in the order of their ids
    highest = logits.gather(1, ids)
    ids = ids.gather(1, torch.argsort(highest, dim=1, descending=True, stable=True))
    return {
        "rank": rank,
        "probability": values.gather(1, true.clamp_min(0)[:, None])[:, 0],
        "top": ids,
        "top_probability": values.gather(1, ids),
        "entropy": torch.special.entr(values).sum(1) / log(2),
    }


def _frame(
    selection: Selection,
    head: Unembedding,
    own: NDArray[np.int32],
    following: NDArray[np.int32],
    columns: dict[str, NDArray[Any]],
) -> pl.DataFrame:
    import polars as pl

    n_layers, top = len(selection.layers), columns["top"].shape[1]
    listed, numbers = np.unique(columns["top"].ravel(), return_inverse=True)
    texts = pl.Series([head.encoder.tokenizer.piece(index) for index in listed.tolist()], dtype=pl.String)
    known = pl.col("next") >= 0
    return pl.DataFrame(
        {
            "occurrence": np.tile(selection.rows, n_layers),
            "layer": np.repeat(np.array(selection.layers, np.int64), len(selection)),
            "token": np.tile(own, n_layers),
            "next": np.tile(following, n_layers),
            **{name: columns[name] for name in ("rank", "probability", "entropy")},
            "top": texts.gather(numbers.ravel()).reshape((-1, top)).arr.to_list(),
            "top_probability": pl.Series(columns["top_probability"]).arr.to_list(),
        }
    ).with_columns(pl.when(known).then(pl.col(name)).alias(name) for name in ("rank", "probability", "next"))

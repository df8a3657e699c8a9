"""Whether a model keeps to an attention window: a word beyond it must change nothing, one within it something."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from embstore.errors import ModelError
from embstore.models.encoder import Tokenized
from embstore.models.transformer.plain import written_mask
from embstore.models.transformer.tokens import PROBES

if TYPE_CHECKING:
    from embstore.models.transformer.encoder import TransformerEncoder

LONGEST_CHECKED = 1024  # words; a window as wide as this holds the sentence
ALIKE = {"float32": 1e-6, "float16": 1e-3, "bfloat16": 1e-2}


@torch.inference_mode()
def require_window_kept(encoder: TransformerEncoder, tokenized: Tokenized, reach: int) -> None:
    """Raise ModelError where a word more than `reach` words away changes a vector of layer 1, or none does.

    `tokenized`: some sentences, for subwords that the model knows.
    """
    name = encoder.info.name
    refused = f"the model {name!r} does not keep to a mask of pairs of subwords, which attention windows need: "
    if "attention_mask" not in encoder.inputs.parameters:
        raise ModelError(refused + "it takes no attention mask; use context windows")
    limit = encoder.info.max_subwords
    words = min(reach + 2, LONGEST_CHECKED if limit is None else min(limit, LONGEST_CHECKED))
    ids = _distinct(tokenized if len(tokenized.ids) else encoder.tokenize(PROBES))
    sentence = np.resize(ids, words)
    try:
        before = _layer_1(encoder, sentence, reach)
        first_changed = _apart(encoder, before, _layer_1(encoder, _changed(sentence, 0, ids), reach))
        last_changed = _apart(encoder, before, _layer_1(encoder, _changed(sentence, words - 1, ids), reach))
        next_changed = _apart(encoder, before, _layer_1(encoder, _changed(sentence, words - 2, ids), reach))
    except torch.OutOfMemoryError:
        raise
    except Exception as error:
        raise ModelError(
            refused + f"it fails with one ({' '.join(str(error).split())}); use context windows"
        ) from error
    prefix = len(encoder.inputs.specials.prefix)
    first, last = prefix, prefix + words - 1
    special = np.ones(len(before), bool)
    special[prefix : prefix + words] = False
    leaks = [first_changed[special].any(), last_changed[special].any(), next_changed[special].any()]
    if words == reach + 2:  # the ends are beyond each other's window
        leaks += [first_changed[last], last_changed[first]]
    if any(leaks):
        raise ModelError(refused + f"words more than {reach} words away change its layer 1; use context windows")
    if reach > 0 and not next_changed[last]:
        raise ModelError(refused + f"words {reach} words away change nothing in its layer 1; use context windows")


def _distinct(tokenized: Tokenized) -> NDArray[np.int32]:
    """Some different subwords, as they come."""
    _, first = np.unique(tokenized.ids, return_index=True)
    return tokenized.ids[np.sort(first)][:64]


def _changed(sentence: NDArray[np.int32], place: int, ids: NDArray[np.int32]) -> NDArray[np.int32]:
    """The sentence with another subword in one place."""
    changed = sentence.copy()
    changed[place] = next((other for other in ids if other != sentence[place]), sentence[place])
    return changed


def _layer_1(encoder: TransformerEncoder, ids: NDArray[np.int32], reach: int) -> torch.Tensor:
    """Layer 1 of a sentence each word of which is one subword: [positions, features]."""
    inputs = encoder.inputs.plain(encoder.inputs.with_specials(ids))
    inputs["attention_mask"] = written_mask(encoder.inputs, np.arange(len(ids)), reach)
    states = encoder.model(**inputs, **encoder.inputs.fixed(), output_hidden_states=True).hidden_states
    layer: torch.Tensor = states[min(1, len(states) - 1)][0].float().cpu()
    return layer


def _apart(encoder: TransformerEncoder, one: torch.Tensor, other: torch.Tensor) -> NDArray[np.bool_]:
    """Which positions differ, [positions]."""
    bound = ALIKE[encoder.compute_dtype] * float(one.abs().max())
    return np.asarray(((one - other).abs().amax(1) > bound).numpy(), np.bool_)

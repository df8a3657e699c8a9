"""Mixing and the statistics of layers against hand calculations."""

from __future__ import annotations

from math import log

import numpy as np
import pytest
import torch

from embstore.errors import InvalidValueError
from embstore.probes.mixing import (
    center_of_gravity,
    cumulative,
    differential_scores,
    expected_layer,
    kl_from_uniform,
    mixed,
    mixing_weights,
)


def test_mixing_weights_are_a_softmax_over_the_layers_allowed() -> None:
    logits = torch.tensor([[0.0, log(3.0), 5.0], [log(2.0), log(2.0), log(4.0)]])
    allowed = torch.tensor([[True, True, False], [True, True, True]])
    expected = torch.tensor([[0.25, 0.75, 0.0], [0.25, 0.25, 0.5]])
    torch.testing.assert_close(mixing_weights(logits, allowed), expected)


def test_mixing_is_equation_1() -> None:
    vectors = torch.tensor([[[1.0, 2.0], [0.0, 4.0]], [[3.0, -2.0], [8.0, 0.0]]])
    weights = torch.tensor([[0.25, 0.75], [1.0, 0.0]])
    found = mixed(vectors, weights, torch.tensor([2.0, 3.0]))
    # 2 (0.25 [1, 2] + 0.75 [3, -2]) = [5, -2], 2 (0.25 [0, 4] + 0.75 [8, 0]) = [12, 2]; 3 [1, 2], 3 [0, 4]
    torch.testing.assert_close(found, torch.tensor([[[5.0, -2.0], [12.0, 2.0]], [[3.0, 6.0], [0.0, 12.0]]]))


def test_cumulative_probes_see_the_layers_up_to_theirs() -> None:
    assert cumulative(3).tolist() == [[True, False, False], [True, True, False], [True, True, True]]


def test_statistics_of_layers() -> None:
    assert center_of_gravity([0.5, 0.2, 0.3]) == pytest.approx(0.8)
    assert center_of_gravity([0.5, 0.2, 0.3], [0, 6, 12]) == pytest.approx(4.8)
    scores = [0.4, 0.6, 0.5, 0.8]
    np.testing.assert_allclose(differential_scores(scores), [0.2, -0.1, 0.3])
    # (1 * 0.2 - 2 * 0.1 + 3 * 0.3) / 0.4
    assert expected_layer(scores) == pytest.approx(2.25)
    assert expected_layer(scores, [0, 2, 4, 6]) == pytest.approx(4.5)
    assert expected_layer([0.5, 0.7, 0.5]) is None
    assert expected_layer([0.5]) is None


def test_divergence_from_uniform() -> None:
    assert kl_from_uniform([0.25] * 4) == pytest.approx(0)
    assert kl_from_uniform([0, 3, 0, 0]) == pytest.approx(log(4))
    assert kl_from_uniform([0.2, -0.1, 0.6]) == pytest.approx(0.25 * log(0.25) + 0.75 * log(0.75) + log(3))
    assert kl_from_uniform([0.0, -1.0]) is None


def test_statistics_refuse_what_is_no_line_of_numbers() -> None:
    with pytest.raises(InvalidValueError, match="weights must be one or more finite numbers"):
        center_of_gravity([])
    with pytest.raises(InvalidValueError, match="scores must be one or more finite numbers"):
        expected_layer([0.1, float("nan")])
    with pytest.raises(InvalidValueError, match="there are 2 layers for 3 numbers"):
        center_of_gravity([0.5, 0.2, 0.3], [0, 1])

"""bfloat16 and int8 against their definitions."""

from __future__ import annotations

import numpy as np
import pytest

from embstore.errors import InvalidValueError, NonFiniteError
from embstore.store.vectors import bfloat16_bits, dequantize, float32_of_bfloat16, quantize


def nearest_bfloat16(value: np.float32) -> int:
    """The bits of the nearest bfloat16, found among the two neighbours; ties go to the even one."""
    low = int(value.view(np.uint32)) >> 16
    exact = float(value)

    def as_float(bits: int) -> float:
        if bits & 0x7FFF == 0x7F80:  # the step past the largest number counts as that step
            return (-1.0 if bits & 0x8000 else 1.0) * 2.0**128
        return float(np.array(bits << 16, np.uint32).view(np.float32))

    below, above = abs(exact - as_float(low)), abs(as_float(low + 1) - exact)
    return low if below < above or (below == above and low % 2 == 0) else low + 1


def test_bfloat16_rounds_to_nearest_even() -> None:
    random = np.random.default_rng(0)
    bits = random.integers(0, 2**32, 20_000, dtype=np.uint32)
    ties = (random.integers(0, 2**16, 5_000, dtype=np.uint32) << 16) | 0x8000
    values = np.concatenate([bits, ties]).view(np.float32)
    values = values[np.isfinite(values)]
    assert bfloat16_bits(values).tolist() == [nearest_bfloat16(value) for value in values]


def test_bfloat16_keeps_what_is_not_a_number() -> None:
    values = np.array([0x7F800001, 0xFFFFFFFF, 0x7FC00000], np.uint32).view(np.float32)
    assert np.isnan(float32_of_bfloat16(bfloat16_bits(values))).all()
    infinite = np.array([np.inf, -np.inf, -0.0], np.float32)
    np.testing.assert_array_equal(float32_of_bfloat16(bfloat16_bits(infinite)), infinite)
    assert np.signbit(float32_of_bfloat16(bfloat16_bits(infinite))).tolist() == [False, True, True]


def test_bfloat16_of_every_bits_is_itself() -> None:
    bits = np.arange(2**16, dtype=np.uint16)
    values = float32_of_bfloat16(bits)
    numbers = ~np.isnan(values)
    np.testing.assert_array_equal(bfloat16_bits(values)[numbers], bits[numbers])


def test_int8_is_within_half_a_step() -> None:
    random = np.random.default_rng(1)
    vectors = random.normal(size=(3, 50, 20)).astype(np.float32) * np.float32(10.0) ** random.integers(
        -3, 4, (3, 50, 1)
    )
    vectors = vectors.astype(np.float32)
    center = vectors.mean(axis=1)
    vectors[1, 7] = center[1]
    arrays = quantize(vectors, center)
    assert arrays["hidden_states"].dtype == np.int8
    assert arrays["hidden_states"].min() >= -127
    assert (np.abs(arrays["hidden_states"]).max(axis=2) == 127).sum() == 149
    assert arrays["scale"][1, 7] == 0
    for layer in range(3):
        values = dequantize(arrays["hidden_states"][layer], arrays["scale"][layer], center[layer])
        step = arrays["scale"][layer][:, None]
        assert (np.abs(values - vectors[layer]) <= step * 0.5001 + np.abs(vectors[layer]) * 1e-6).all()
    np.testing.assert_array_equal(
        dequantize(arrays["hidden_states"][1], arrays["scale"][1], center[1])[7], vectors[1, 7]
    )


def test_int8_of_the_smallest_numbers_is_the_center() -> None:
    vectors = np.full((1, 1, 2), 1e-42, np.float32)
    arrays = quantize(vectors, np.zeros((1, 2), np.float32))
    assert arrays["scale"].tolist() == [[0.0]]
    assert not arrays["hidden_states"].any()


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_int8_refuses_what_is_not_finite(value: float) -> None:
    vectors = np.ones((2, 4, 3), np.float32)
    vectors[1, 2, 0] = value
    with pytest.raises(NonFiniteError, match="row 2 of stored layer 1"):
        quantize(vectors, np.zeros((2, 3), np.float32))


def test_int8_refuses_a_difference_beyond_float32() -> None:
    vectors = np.full((1, 1, 1), 3e38, np.float32)
    with pytest.raises(NonFiniteError):
        quantize(vectors, -vectors[0])


def test_int8_refuses_a_center_of_another_shape() -> None:
    with pytest.raises(InvalidValueError, match=r"a center of shape \(3,\)"):
        quantize(np.ones((1, 2, 3), np.float32), np.zeros(3, np.float32))

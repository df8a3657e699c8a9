"""Tiny models run in one thread; what depends on the CPU is tested on every CPU."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from embstore.models.transformer import layers


@pytest.fixture(scope="session", autouse=True)
def packed_weights() -> Iterator[None]:
    """Pack weights on every CPU, as is done with AVX-512; the plain pass is that of all others."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(layers, "gains_by_packing", lambda: True)
        yield


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> Iterator[None]:
    """Tiny models gain nothing from threads, and lose much where other work shares the machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)

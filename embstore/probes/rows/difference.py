"""The difference of means, the simplest linear probe."""

from __future__ import annotations

import numpy as np
import torch

from embstore.errors import NonFiniteError
from embstore.probes.classes.bank import Shape
from embstore.probes.classes.examples import LabelledExamples, iter_batches
from embstore.probes.training import VERIFY, Trained

NEVER = -1e30  # the bias of a control label that no train row has


def mean_differences(shape: Shape, data: LabelledExamples, n_classes: int, *, batch_size: int) -> Trained:
    """Return w_l = m_l - r_l and b_l = -w_l (m_l + r_l) / 2, of the means of each label and of the rest, in one pass.

    The outputs are `n_classes` labels, each example has one of them, and those of a control task.
    """
    sums = torch.zeros(len(shape.layers), len(shape.outputs), shape.width + 1, dtype=torch.float64)
    table, order = torch.from_numpy(data.targets).double(), np.arange(len(data))
    batches = iter_batches(data.examples, order, shape.layers, batch_size=batch_size, device=sums.device)
    for numbers, columns in batches:
        sums += table[torch.from_numpy(data.group[numbers])].t() @ columns.double()
    finite = torch.isfinite(sums.flatten(1).sum(1))
    if not bool(finite.all()):
        layer = shape.layers[int(torch.nonzero(~finite)[0])]
        raise NonFiniteError(f"examples of layer {layer} contain NaN or infinity: {VERIFY}")
    rest = sums[:, :n_classes].sum(1, keepdim=True) - sums
    mean, other = (each[..., :-1] / each[..., -1:].clamp(min=1) for each in (sums, rest))
    weight = torch.cat([mean - other, (other**2 - mean**2).sum(2, keepdim=True) / 2], 2)
    weight[sums[..., -1] == 0] = torch.tensor([0.0] * shape.width + [NEVER], dtype=torch.float64)
    count = len(shape.layers) * len(shape.outputs)
    flat = {"weight": weight.flatten(0, 1).float()}
    return Trained(flat, np.zeros(count, np.int64), np.full(count, np.nan), np.zeros(count, bool))

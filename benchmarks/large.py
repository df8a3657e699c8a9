"""A decoder of 70 billion parameters on 8 GPUs, planned without them and without its weights.

python benchmarks/large.py [--config config.json] [--gpus 8] [--gib 79]

The modules are made without memory and divided by the code that loads them; times are arithmetic with the rates below.
"""

from __future__ import annotations

import argparse
import json
import logging
import math
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import transformers
from transformers.integrations.accelerate import _get_device_map

from embstore.extraction.estimate import BUFFERS, HOST_BUFFERS, buffered_nbytes
from embstore.extraction.partition import group_partitions
from embstore.models.memory import fitting_batch
from embstore.models.placing import SHARE, Place, weights_by_device
from embstore.models.transformer.network import Network
from embstore.store.layout import partition_rows

LLAMA = {  # config.json of meta-llama/Llama-3.1-70B
    "model_type": "llama",
    "hidden_size": 8192,
    "intermediate_size": 28672,
    "num_hidden_layers": 80,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
    "tie_word_embeddings": False,
}
# Assumed: operations a second of a GPU, bytes a second of its memory, between two GPUs, and of one NVMe disk.
FLOPS, MEMORY, NVLINK, PCIE, DISK = 0.4 * 700e12, 3e12, 270e9, 25e9, 3e9
POSITIONS = 1.32  # of a word of EWT, special ones included
NF4 = 0.5 + 4 / 64  # bytes of a weight of 4 bits with a float32 scale for 64 of them
ROWS = 10_000_000
OF_WEIGHTS = SHARE * 79 * 2**30  # bytes of a GPU


@dataclass(frozen=True)
class Model:
    """The modules of a decoder, without memory."""

    network: Any

    @classmethod
    def of(cls, config: dict[str, Any]) -> Model:
        made = transformers.AutoConfig.for_model(**config)
        with torch.device("meta"):
            return cls(transformers.AutoModel.from_config(made, dtype=torch.bfloat16))

    @property
    def n_parameters(self) -> int:
        return sum(value.numel() for value in self.network.parameters())

    def n_matrices(self, deepest: int) -> int:
        """Return the weights of the linear layers of the first `deepest` blocks."""
        blocks = self.network.layers[:deepest]
        return sum(value.numel() for value in blocks.parameters() if value.dim() == 2)

    def split(self, free: dict[int | str, int]) -> dict[str, int]:
        """Return the bytes on each device as `from_pretrained` divides them with `--device split`."""
        place = Place(torch.device("cuda"), "auto")
        self.network.hf_device_map = _get_device_map(self.network, "auto", place.most(free), None)
        return weights_by_device(self.network, place)

    def tensor(self, n_gpus: int) -> int:
        """Return the bytes on each of the GPUs with `--device tensor`: matrices are divided, norms are not."""
        return sum(value.nbytes // (n_gpus if value.dim() == 2 else 1) for value in self.network.parameters())

    def four_bits(self) -> int:
        """Return the bytes of weights of 4 bits: those of linear layers, all others as they are."""
        matrices = self.n_matrices(len(self.network.layers))
        return int(matrices * NF4) + 2 * (self.n_parameters - matrices)

    def played(self) -> Any:
        """Return what the encoder's network knows of the GPU that collects the layers."""
        config = self.network.config
        info = SimpleNamespace(hidden_size=config.hidden_size, num_hidden_layers=config.num_hidden_layers)
        info.max_subwords = config.max_position_embeddings
        inputs = SimpleNamespace(specials=SimpleNamespace(count=1), layer_types=())
        network = SimpleNamespace(model=self.network, dtype=torch.bfloat16, info=info, inputs=inputs)
        network.tap, network.device, network.row_capacity = SimpleNamespace(blocks=(1,)), torch.device("cuda"), 512
        network.batch_nbytes = partial(Network.batch_nbytes, network)
        return network

    def batch(self, free: int, n_features: int) -> int:
        """Return the subwords of a batch that are chosen by default for that many free bytes."""
        held = partial(buffered_nbytes, n_features=n_features, dtype="float16", n_stores=1)
        return fitting_batch(free, position_nbytes=Network.position_nbytes(self.played(), n_features), held=held)

    def rates(self, deepest: int, batch: int, n_gpus: int) -> dict[str, float]:
        """Return the words a second of the whole machine, as far as computing and the GPUs' connections allow."""
        config, flops = self.network.config, 2.0 * self.n_matrices(deepest)
        compute, state = flops / FLOPS, 2 * config.hidden_size
        sums = 2 * deepest * 2 * (n_gpus - 1) / n_gpus * state  # bytes of a position: two sums in a block, as a ring
        stages = (n_gpus - 1) * state / PCIE
        unpacked = self.n_matrices(deepest) * (NF4 + 2 * 2) / MEMORY / batch  # read, written, and read again
        seconds = {
            "split": compute + stages,
            "split, batches overlapped": compute / n_gpus,
            "tensor, NVLink": compute / n_gpus + sums / NVLINK,
            "tensor, PCIe": compute / n_gpus + sums / PCIE,
            "4 bits, a model each": (compute + unpacked) / n_gpus,
            "one GPU, rest in main memory": compute + max(0, 2 * self.n_matrices(deepest) - OF_WEIGHTS) / PCIE / batch,
        }
        return {name: 1 / each / POSITIONS for name, each in seconds.items()}


def buffers(n_features: int, batch: int) -> tuple[int, int, int]:
    """Return the bytes of a row, of the groups on the GPU that collects, and of the ring in main memory."""
    rows = partition_rows(ROWS, n_features, "float16")
    nbytes = rows * n_features * 2
    sizes = {"partition_rows": rows, "partition_nbytes": nbytes, "batch_subwords": batch}
    return n_features * 2, BUFFERS * group_partitions(math.ceil(ROWS / rows), **sizes) * nbytes, HOST_BUFFERS * nbytes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", type=Path, help="the config.json of another decoder")
    parser.add_argument("--gpus", type=int, default=8)
    parser.add_argument("--gib", type=float, default=79, help="free memory of each GPU")
    parser.add_argument("--host", type=float, default=1000, help="free main memory, GiB")
    given = parser.parse_args()
    logging.disable(logging.WARNING)  # that the GPUs are not here
    model = Model.of(LLAMA if given.config is None else json.loads(given.config.read_text()))
    config = model.network.config
    print(f"{model.n_parameters:,} parameters, {2 * model.n_parameters / 1e9:.1f} GB")
    free: dict[int | str, int] = {gpu: int(given.gib * 2**30) for gpu in range(given.gpus)}
    split = model.split({**free, "cpu": int(given.host * 2**30)})
    for name, nbytes in split.items():
        print(f"split: {name} {nbytes / 1e9:.2f} GB")
    print(f"tensor: each {model.tensor(given.gpus) / 1e9:.2f} GB")
    print(f"4 bits: each {model.four_bits() / 1e9:.2f} GB")
    left = free[0] - max(nbytes for name, nbytes in split.items() if name != "cpu")
    n_layers = config.num_hidden_layers
    for layers in (range(n_layers + 1), (0, n_layers // 4, n_layers // 2)):
        n_features = len(layers) * config.hidden_size
        size = model.batch(left, n_features)
        row, groups, ring = buffers(n_features, size)
        batch = model.played().batch_nbytes(n_features=n_features, batch_subwords=size)
        print(
            f"\nlayers {layers}: a word {row:,} B; {DISK / row:,.0f} words/s to the disk; batches of {size:,} subwords"
        )
        print(f"first GPU: batch {batch / 1e9:.1f} GB, groups {groups / 1e9:.1f} GB; pinned ring {ring / 1e9:.1f} GB")
        for name, rate in model.rates(max(layers), size, given.gpus).items():
            binds = "disk" if DISK / row < rate else "computing"
            hours = ROWS / min(rate, DISK / row) / 3600
            print(f"{name}: {rate:,.0f} words/s, {rate * row / 1e9:.2f} GB/s; {ROWS:,} words {hours:.2f} h ({binds})")


if __name__ == "__main__":
    main()

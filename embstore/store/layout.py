"""Where every row of a store stands: the arithmetic of rows, partitions and shards."""

from __future__ import annotations

from dataclasses import dataclass

SHARD_NBYTES = 256 * 2**20
SMALL_SHARD_NBYTES = 64 * 2**20
FEW_SHARDS = 8
CHUNK_ROWS = 256
ITEM_NBYTES = {"float32": 4, "float16": 2, "bfloat16": 2, "int8": 1}


@dataclass(frozen=True)
class Layout:
    """The shape of a store: `rows` occurrences, the layers stored, and the rows of a partition.

    A partition is exactly one shard: rows `[k * partition_rows, (k + 1) * partition_rows)`, all layers.
    """

    n_rows: int
    layers: tuple[int, ...]
    hidden_size: int
    dtype: str
    partition_rows: int

    @classmethod
    def of(cls, *, n_rows: int, layers: tuple[int, ...], hidden_size: int, dtype: str) -> Layout:
        """Choose the largest power of two rows whose shard is at most 256 MiB, no larger than the store needs.

        A store of less than 2 GiB has shards of an eighth of it, down to 64 MiB: the last one is written while
        nothing else is left to do.
        """
        row_nbytes = len(layers) * hidden_size * ITEM_NBYTES[dtype]
        nbytes = min(SHARD_NBYTES, max(SMALL_SHARD_NBYTES, n_rows * row_nbytes // FEW_SHARDS))
        fitting = max(CHUNK_ROWS, _floor_power_of_two(nbytes // row_nbytes))
        needed = max(CHUNK_ROWS, 1 << max(n_rows - 1, 0).bit_length())
        return cls(n_rows, layers, hidden_size, dtype, min(fitting, needed))

    @property
    def n_partitions(self) -> int:
        return -(-self.n_rows // self.partition_rows)

    def span(self, partition: int) -> tuple[int, int]:
        """The rows `[start, stop)` of a partition."""
        start = partition * self.partition_rows
        return start, min(start + self.partition_rows, self.n_rows)

    @property
    def row_nbytes(self) -> int:
        """Bytes of one occurrence: all its layers."""
        return len(self.layers) * self.hidden_size * ITEM_NBYTES[self.dtype]

    @property
    def partition_nbytes(self) -> int:
        return self.partition_rows * self.row_nbytes


def _floor_power_of_two(number: int) -> int:
    return 1 << (max(number, 1).bit_length() - 1)

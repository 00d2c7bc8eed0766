"""The initial values of rows, as a server makes them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from mpips import _native
from mpips.model.initializer import Initializer, table_seed
from mpips.model.row_values import bf16_bits, bf16_values
from mpips.model.table import EmbeddingTable


def initial_rows(
    table: EmbeddingTable, job_seed: int, keys: NDArray[np.int64]
) -> NDArray[np.float32]:
    """Return the rows of `keys` before their first update, float32, shape (n, dim), as a pull returns them.

    Args:
        table: The table.
        job_seed: Seed of the job.
        keys: int64, shape (n,), as the servers have them: buckets of a table that has `hash_buckets`.
    """
    assert isinstance(table.init, Initializer)
    rows = np.empty((len(keys), table.dim), np.float32)
    start = table.init.native(table_seed(job_seed, table.name), *table.fans)
    _native.initialize_rows(start, np.ascontiguousarray(keys, np.int64), rows)
    return bf16_values(bf16_bits(rows)) if table.row_dtype == "bf16" else rows

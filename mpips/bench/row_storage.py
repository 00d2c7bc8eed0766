"""Rows per second of a table with storage, beside those of a table whose rows are all in memory.

Two servers in one process receive the same pushes, clock by clock. The table has four times the rows for
which the storage has memory; keys have Zipf's law with exponent 1.05, or are uniform. Only the work of the
servers is timed, in CPU seconds of their thread; records are written beforehand. The file lies in the folder
that TMPDIR gives, and the page cache of the kernel may hold all of it.
"""

from __future__ import annotations

import tempfile

import msgspec
import numpy as np
from numpy.typing import NDArray

from mpips.bench.launching import Options
from mpips.bench.measure import Comparison, Findings
from mpips.bench.row_limits import ClockedServer, spread
from mpips.model.optimizer import SGD
from mpips.model.storage import Storage
from mpips.model.table import EmbeddingTable

_TIMES = 4  # rows of the table, as a multiple of those in memory
_ZIPF = 1.05


class StorageSizes(msgspec.Struct, frozen=True):
    """Sizes of the measurement.

    Attributes:
        n_rows: Rows of the table.
        dim: float32 values in a row.
        draws: Keys that are drawn for a push, which is one clock; equal ones are pushed once.
        clocks: Clocks in one repetition; as many come before the measurement.
    """

    n_rows: int = 1_000_000
    dim: int = 64
    draws: int = 12_000
    clocks: int = 50

    @classmethod
    def of(cls, options: Options) -> StorageSizes:
        """Return the sizes for these options: small ones with `quick`."""
        return cls(n_rows=20_000, draws=1000, clocks=5) if options.quick else cls()


def measure_storage(sizes: StorageSizes, options: Options) -> Findings:
    """Measure pushes of rows by Zipf's law (`storage_vs_memory`) and of uniform keys."""
    row_bytes = EmbeddingTable("e", sizes.dim, SGD(0.01)).row_bytes
    memory_mib = sizes.n_rows * row_bytes / _TIMES / 2**20
    found = Findings()
    shares = np.cumsum(np.arange(1, sizes.n_rows + 1) ** -_ZIPF)
    for name, what, law in (
        ("storage_vs_memory", "Zipf 1.05", shares),
        ("storage_uniform_vs_memory", "uniform keys", np.arange(1.0, sizes.n_rows + 1)),
    ):
        servers = {
            "storage": ClockedServer(sizes.dim, storage=Storage(tempfile.gettempdir(), memory_mib)),
            "memory": ClockedServer(sizes.dim),
        }
        try:
            rates = _alternate(servers, law, sizes, options)
            counts = servers["storage"].side.core.storage_counts(0)
        finally:
            for server in servers.values():
                server.side.regions.unlink()
        found.comparisons.append(
            Comparison(
                name=name,
                what=f"pushes of rows, {what}, of {sizes.n_rows} rows {1 / _TIMES:.0%} in memory; "
                f"{counts['promoted']} were read from the file",
                unit="rows/s",
                ours=rates["storage"],
                baseline=rates["memory"],
                baseline_name="all in memory",
            )
        )
    return found


def _alternate(
    servers: dict[str, ClockedServer],
    law: NDArray[np.float64],
    sizes: StorageSizes,
    options: Options,
) -> dict[str, list[float]]:
    """Return the rows per second of each server by repetition; `law`: sums of the shares of keys."""
    random = np.random.default_rng(5)
    updates = random.standard_normal((sizes.draws, sizes.dim), np.float32)
    numbers = np.arange(sizes.n_rows, dtype=np.int64)
    for part in np.array_split(random.permutation(numbers), -(-sizes.n_rows // sizes.draws)):
        for server in servers.values():
            server.seconds(np.sort(spread(part)), updates)
    rates: dict[str, list[float]] = {name: [] for name in servers}
    for repetition in range(1 + options.repetitions):
        sums, n = dict.fromkeys(servers, 0.0), 0
        for clock in range(sizes.clocks):
            drawn = np.searchsorted(law, random.random(sizes.draws) * law[-1])
            keys = np.sort(spread(np.unique(drawn).astype(np.int64)))
            n += keys.size
            names = list(servers) if clock % 2 else list(servers)[::-1]
            for name in names:
                sums[name] += servers[name].seconds(keys, updates)
        for name, seconds in sums.items():
            if repetition:
                rates[name].append(n / seconds)
    return rates

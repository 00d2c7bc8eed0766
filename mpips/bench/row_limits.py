"""The suite `limits`: embedding tables whose rows come and go, are looked up or lie in files.

Servers in one process receive the same records. They differ in the limit of their table, and they alternate
clock by clock. Only the work of the server is timed, in CPU seconds: records are written beforehand. Removing
rows counts in full, because a server that drains without pause has no idle time for it.
"""

from __future__ import annotations

import gc
import heapq
import os
import time
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from mpips.bench.journal import Side
from mpips.bench.launching import Options
from mpips.bench.measure import Comparison, Figure, Findings
from mpips.model.consistency import BSP
from mpips.model.optimizer import SGD
from mpips.model.row_limits import Idle, MaxRows, MinCount
from mpips.model.table import EmbeddingTable

Int64 = NDArray[np.int64]
Float32 = NDArray[np.float32]

_SPREAD = np.int64(-7046029254386353131)  # odd, so that no two numbers give the same key
_CONSUME_S = 60.0  # no push takes as long
_SHARE_PER_S = 0.01  # of the rows that are pushed again and again: so many are replaced in a second
_HEAVY = 0.1  # of the rows of each clock are new ones


class LimitSizes(msgspec.Struct, frozen=True):
    """LimitSizes of the measurement.

    Attributes:
        n_live: Rows that are pushed again and again.
        most_rows: Limit of MaxRows; the rows beyond `n_live` are no longer pushed.
        dim: float32 values in a row.
        keys: Keys in a push, which is one clock.
        clocks: ClockedServer in one measurement.
        growth_rows: Limit of the table to which only new keys are pushed.
        growth_clocks: ClockedServer of that table in one repetition.
        zipf_keys: Different keys of the hit rates.
        zipf_rows: Limit of that table.
        zipf_clocks: ClockedServer of that table; as many come before the measurement.
        zipf_draws: Keys that are drawn in one of them.
    """

    n_live: int = 360_000
    most_rows: int = 520_000
    dim: int = 64
    keys: int = 10_000
    clocks: int = 40
    growth_rows: int = 200_000
    growth_clocks: int = 400
    zipf_keys: int = 1_000_000
    zipf_rows: int = 20_000
    zipf_clocks: int = 300
    zipf_draws: int = 2000

    @classmethod
    def of(cls, options: Options) -> LimitSizes:
        """Return the sizes for these options: small ones with `quick`."""
        if not options.quick:
            return cls()
        return cls(
            n_live=4000,
            most_rows=5200,
            keys=500,
            clocks=8,
            growth_rows=2000,
            growth_clocks=20,
            zipf_keys=10_000,
            zipf_rows=1000,
            zipf_clocks=20,
            zipf_draws=200,
        )


class ClockedServer:
    """A server of one table under BSP with one worker, which pushes once in a clock."""

    def __init__(self, dim: int, **limits: Any) -> None:
        """Make the table. `limits`: `admit` or `evict` of the table."""
        table = EmbeddingTable(
            "e", dim, SGD(0.01), consistency=BSP(), init="constant(0.5)", **limits
        )
        self.side = Side(table, False, 1 << 12)
        self._clock = 0

    def seconds(self, keys: Int64, updates: Float32, answers: bool = False) -> float:
        """Push in a clock of its own; return the CPU seconds that the server needs for it.

        Args:
            keys: Keys without repeats, shape (n,).
            updates: Shape (n, dim) at least.
            answers: The server also answers a look-up that waits.
        """
        writer, core = self.side.writer, self.side.core
        if writer.push_rows(0, self._clock, keys, updates[: keys.size], None, 0) != keys.size:
            raise AssertionError("the ring is too small for a push")
        if not writer.tick(self._clock):
            raise AssertionError("the ring is too small for a tick")
        self._clock += 1
        start = time.thread_time()
        if answers:
            core.consume(_CONSUME_S)
        else:
            core.drain(0.0, 0)
        return time.thread_time() - start

    def stats(self, name: str) -> int:
        """Return a counter of the table."""
        return int(self.side.core.stats(0)[name])


@contextmanager
def _servers(dim: int, limits: dict[str, dict[str, Any]]) -> Iterator[dict[str, ClockedServer]]:
    """Make a server for each limit; remove their memory at the end."""
    made: dict[str, ClockedServer] = {}
    try:
        for name, options in limits.items():
            made[name] = ClockedServer(dim, **options)
        yield made
    finally:
        for clocks in made.values():
            clocks.side.regions.unlink()


class _LiveKeys:
    """Keys of consecutive clocks: all live keys in a random order, of which some are replaced by new ones."""

    def __init__(self, sizes: LimitSizes) -> None:
        random = np.random.default_rng(1)
        self._n = sizes.keys
        self._next = sizes.n_live
        self._at = 0
        self._live = random.permutation(sizes.n_live).astype(np.int64)

    def take(self, n_new: int) -> Int64:
        """Return the keys of the next clock, int64, shape (keys,); the first `n_new` are new ones."""
        part = self._live[self._at : self._at + self._n]
        part[:n_new] = np.arange(self._next, self._next + n_new)
        self._next += n_new
        self._at = (self._at + self._n) % self._live.size
        return part * _SPREAD


def spread(numbers: Int64) -> Int64:
    """Return keys for numbers, equal keys only for equal numbers."""
    return numbers * _SPREAD


def run(suite: str, options: Options, nodes: int) -> Findings:
    """Measure costs, memory and hit rates, and storage. `measure.BARS` has the expected ratios.

    Needs about 1 GB of memory.

    Args:
        suite: "limits".
        options: Repetitions and sizes.
        nodes: Not used: the suite has one process.
    """
    from mpips.bench.look_ups import measure_look_ups  # these need this module
    from mpips.bench.row_storage import StorageSizes, measure_storage

    sizes = LimitSizes.of(options)
    found = measure_costs(sizes, options)
    found.add(measure_look_ups(sizes, options))
    found.add(measure_growth(sizes, options))
    found.add(measure_hits(sizes))
    found.add(measure_storage(StorageSizes.of(options), options))
    return found


def measure_costs(sizes: LimitSizes, options: Options) -> Findings:
    """Measure rows per second with each limit, and without: few rows are replaced, and many."""
    sweep = sizes.n_live // sizes.keys  # clocks in which each live row is pushed once
    limits: dict[str, dict[str, Any]] = {
        "without": {},
        "admit_cost": {"admit": MinCount(2)},
        "evict_cost_idle": {"evict": Idle(sweep + 2)},
        "evict_cost_lru": {"evict": MaxRows(sizes.most_rows)},
        "evict_cost_lfu": {"evict": MaxRows(sizes.most_rows, by="lfu")},
    }
    updates = np.random.default_rng(2).standard_normal((sizes.keys, sizes.dim), np.float32)
    with _servers(sizes.dim, limits) as servers:
        keys = _LiveKeys(sizes)
        # Rows that are no longer pushed fill the tables up to their limit. Idle would remove them.
        for part in np.array_split(np.arange(sizes.n_live - sizes.most_rows, 0), sweep):
            for name, server in servers.items():
                if name != "evict_cost_idle":
                    server.seconds(part * _SPREAD, updates)
        clock_s = 0.0
        for _ in range(2 * sweep):
            taken = keys.take(0)
            times = {name: server.seconds(taken, updates) for name, server in servers.items()}
            clock_s = times["without"]
        few = max(1, round(_SHARE_PER_S * sizes.n_live * clock_s))
        found = Findings()
        for suffix, n_new in (("", few), ("_heavy", int(_HEAVY * sizes.keys))):
            rates, left = _alternate(servers, keys, updates, n_new, sizes, options)
            found.add(_cost_findings(rates, left, suffix, n_new, sizes))
        return found


def _alternate(
    servers: dict[str, ClockedServer],
    keys: _LiveKeys,
    updates: Float32,
    n_new: int,
    sizes: LimitSizes,
    options: Options,
) -> tuple[dict[str, list[float]], dict[str, int]]:
    """Return the rows per second of each server by repetition, and the rows that left it in all."""
    names = list(servers)
    rates: dict[str, list[float]] = {name: [] for name in names}
    # In the clocks before the measurement as many rows begin to leave as are new.
    for _ in range(sizes.n_live // sizes.keys + 4):
        taken = keys.take(n_new)
        for server in servers.values():
            server.seconds(taken, updates)
    before = {name: servers[name].stats("rows_evicted") for name in names}
    for _ in range(options.repetitions):
        sums = dict.fromkeys(names, 0.0)
        for clock in range(sizes.clocks):
            taken = keys.take(n_new)
            # The order changes, so that caches and drift affect all alike.
            shift = clock % len(names)
            for name in names[shift:] + names[:shift]:
                sums[name] += servers[name].seconds(taken, updates)
        for name in names:
            rates[name].append(sizes.keys * sizes.clocks / sums[name])
    return rates, {name: servers[name].stats("rows_evicted") - before[name] for name in names}


def _cost_findings(
    rates: dict[str, list[float]], left: dict[str, int], suffix: str, n_new: int, sizes: LimitSizes
) -> Findings:
    """Return the ratio of each limit to the server without one."""
    what = {
        "admit_cost": "pushes of rows with MinCount(2)",
        "evict_cost_idle": "pushes of rows with Idle",
        "evict_cost_lru": "pushes of rows with MaxRows, lru",
        "evict_cost_lfu": "pushes of rows with MaxRows, lfu",
    }
    found = Findings()
    n_clocks = sizes.clocks * len(rates["without"])
    for name, text in what.items():
        leaving = f", {left[name] / n_clocks:.0f} leave" if left[name] else ""
        found.comparisons.append(
            Comparison(
                name=name + suffix,
                what=f"{text}; of {sizes.keys} in a clock {n_new} are new{leaving}",
                unit="rows/s",
                ours=rates[name],
                baseline=rates["without"],
                baseline_name="without",
            )
        )
    return found


def measure_growth(sizes: LimitSizes, options: Options) -> Findings:
    """Push ever new keys to a table of limited size, and compare its memory at the end and at the beginning.

    All growth of this process counts as growth of the table.
    """
    updates = np.random.default_rng(3).standard_normal((sizes.keys, sizes.dim), np.float32)
    limits = {"limited": {"evict": MaxRows(sizes.growth_rows)}}
    with _servers(sizes.dim, limits) as servers:
        server, n_keys = servers["limited"], 0

        def push(clocks: int) -> float:
            nonlocal n_keys
            total = 0.0
            for _ in range(clocks):
                keys = np.arange(n_keys, n_keys + sizes.keys, dtype=np.int64) * _SPREAD
                n_keys += sizes.keys
                total += server.seconds(keys, updates)
            return total

        push(max(10, 3 * sizes.growth_rows // sizes.keys))
        gc.collect()
        before, table_bytes = _resident_bytes(), server.side.core.memory_bytes(0)
        times = [push(sizes.growth_clocks) for _ in range(options.repetitions)]
        gc.collect()
        growth = max(_resident_bytes() - before, server.side.core.memory_bytes(0) - table_bytes, 0)
    n_rows = sizes.keys * sizes.growth_clocks
    return Findings(
        comparisons=[
            Comparison(
                name="memory_growth",
                what=f"memory of {sizes.growth_rows} rows after pushes of {n_rows * len(times)} new keys",
                unit="MiB",
                ours=[(table_bytes + growth) / 2**20],
                baseline=[table_bytes / 2**20],
                baseline_name="before",
            )
        ],
        figures=[
            Figure(
                name="new_rows",
                what="pushes of new keys, each for a row that leaves",
                unit="rows/s",
                values=[n_rows / s for s in times],
            )
        ],
    )


def _resident_bytes() -> int:
    """Return the resident memory of this process, shared memory included."""
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def measure_hits(sizes: LimitSizes) -> Findings:
    """Compare the hit rates of MaxRows with those of an exact LRU and LFU, for keys with Zipf's law, 1.05."""
    random = np.random.default_rng(4)
    shares = np.cumsum(np.arange(1, sizes.zipf_keys + 1) ** -1.05)
    clocks = [
        np.unique(np.searchsorted(shares, random.random(sizes.zipf_draws) * shares[-1]))
        for _ in range(2 * sizes.zipf_clocks)
    ]
    updates = np.zeros((sizes.zipf_draws, 4), np.float32)
    n_pushed = sum(keys.size for keys in clocks[sizes.zipf_clocks :])
    found = Findings()
    orders: tuple[tuple[Literal["lru", "lfu"], Any], ...] = (("lru", exact_lru), ("lfu", exact_lfu))
    for by, exact in orders:
        limits: dict[str, dict[str, Any]] = {by: {"evict": MaxRows(sizes.zipf_rows, by=by)}}
        with _servers(4, limits) as servers:
            missed = 0
            for clock, keys in enumerate(clocks):
                if clock == sizes.zipf_clocks:
                    missed = servers[by].stats("rows_made")
                servers[by].seconds(keys.astype(np.int64) * _SPREAD, updates)
            missed = servers[by].stats("rows_made") - missed
        found.comparisons.append(
            Comparison(
                name=f"evict_hit_rate_{by}",
                what=f"pushed keys that have a row; MaxRows({sizes.zipf_rows}) by {by}, Zipf 1.05",
                unit="",
                ours=[1 - missed / n_pushed],
                baseline=[1 - exact(clocks, sizes.zipf_rows, sizes.zipf_clocks) / n_pushed],
                baseline_name=f"exact {by}",
            )
        )
    return found


def exact_lru(clocks: Sequence[Int64], most: int, skip: int) -> int:
    """Return how many keys miss when the least recently pushed ones leave at the end of each clock.

    Args:
        clocks: Keys of each clock, without repeats.
        most: Keys that may stay.
        skip: ClockedServer whose misses do not count.
    """
    present: OrderedDict[int, None] = OrderedDict()
    missed = 0
    for clock, keys in enumerate(clocks):
        for key in keys.tolist():
            missed += key not in present and clock >= skip
            present[key] = None
            present.move_to_end(key)
        while len(present) > most:
            present.popitem(last=False)
    return missed


def exact_lfu(clocks: Sequence[Int64], most: int, skip: int) -> int:
    """Return the same where the keys leave that were pushed in the fewest clocks since they came.

    Keys of the clock at hand stay, as in MaxRows; of equal ones the least recently pushed leave.
    """
    uses: dict[int, tuple[int, int]] = {}
    heap: list[tuple[int, int, int]] = []
    missed = 0
    for clock, keys in enumerate(clocks):
        fresh = []
        for key in keys.tolist():
            missed += key not in uses and clock >= skip
            uses[key] = uses.get(key, (0, 0))[0] + 1, clock
            fresh.append((*uses[key], key))
        while len(uses) > most and heap:
            count, last, key = heapq.heappop(heap)
            if uses.get(key) == (count, last):
                del uses[key]
        for entry in fresh:
            heapq.heappush(heap, entry)
    return missed

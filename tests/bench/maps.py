"""The suite `maps`: lookups of random keys in the key map and in tsl::robin_map, a common hash map."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from mpips import _native
from mpips.bench import loops
from mpips.bench.kernels import one_core
from mpips.bench.launching import Options
from mpips.bench.measure import Comparison, Figure, Findings
from mpips.errors import CapabilityError
from mpips.testing.errors import BenchError

Keys = NDArray[np.int64]
Rows = NDArray[np.uint32]
Find = Callable[[Keys], Rows]

N_KEYS, BATCH, N_BATCHES = 10_000_000, 10_000, 20
N_KEYS_QUICK, BATCH_QUICK, N_BATCHES_QUICK = 20_000, 500, 2
_INT64 = np.iinfo(np.int64)


def run(suite: str, options: Options, nodes: int) -> Findings:
    """Measure on one core of this machine. `nodes` has no effect."""
    with one_core():
        return measure_map(options)


def measure_map(options: Options) -> Findings:
    """Measure lookups of random present keys and of absent keys.

    Every batch is new, and both maps get the same batches. Without tsl::robin_map only the row map is
    measured.
    """
    n_keys, batch, n_batches = (
        (N_KEYS_QUICK, BATCH_QUICK, N_BATCHES_QUICK)
        if options.quick
        else (N_KEYS, BATCH, N_BATCHES)
    )
    rng = np.random.default_rng(2)
    known = _random_keys(rng, n_keys)
    finds, missing = _make_maps(known)
    found = Findings()
    kinds: dict[str, Callable[[], Keys]] = {
        "present": lambda: known[rng.integers(0, n_keys, batch)],
        "absent": lambda: _random_keys(rng, batch),
    }
    for kind, draw in kinds.items():
        rates: list[list[float]] = [[] for _ in finds]
        for repetition in range(options.repetitions + 1):
            seconds = _one_repetition(finds, [draw() for _ in range(n_batches)])
            for rate, s in zip(rates, seconds, strict=True):
                # Drop the first repetition, which warms up.
                if repetition > 0:
                    rate.append(batch * n_batches / s / 1e6)
        _report(found, kind, f"batches of {batch} random {kind} keys among {n_keys}", rates)
    if missing:
        found.skipped["map_lookup_vs_robin"] = missing
    return found


def _random_keys(rng: np.random.Generator, n: int) -> Keys:
    return rng.integers(_INT64.min, _INT64.max, n, endpoint=True)


def _make_maps(known: Keys) -> tuple[list[Find], str]:
    """Make the row map and, if the build has it, the robin map, both with the keys `known`.

    Returns:
        The lookup functions, and why there is no robin map ("" if there is one).
    """
    ours = _native.RowMap(known.size)
    ours.find_or_insert(known)
    try:
        robin = loops.RobinMap(known.size)
    except CapabilityError as error:
        return [ours.find], str(error)
    robin.insert(known)
    return [ours.find, robin.find], ""


def _one_repetition(finds: list[Find], batches: list[Keys]) -> list[float]:
    """Return the seconds that each map needs for all batches.

    Raises:
        BenchError: The maps return different rows.
    """
    seconds, results = [], []
    for find in finds:
        start = time.perf_counter()
        results.append([find(keys) for keys in batches])
        seconds.append(time.perf_counter() - start)
    for rows in results[1:]:
        if not all(np.array_equal(a, b) for a, b in zip(results[0], rows, strict=True)):
            raise BenchError(
                "the row map and tsl::robin_map return different rows for the same keys"
            )
    return seconds


def _report(found: Findings, kind: str, what: str, rates: list[list[float]]) -> None:
    found.figures.append(
        Figure(name=f"map_lookups_{kind}", what=what, unit="Mkeys/s", values=rates[0])
    )
    if len(rates) == 2:
        found.comparisons.append(
            Comparison(
                name="map_lookup_vs_robin" if kind == "present" else f"map_{kind}_vs_robin",
                what=f"{what}, against a loop of finds",
                unit="Mkeys/s",
                ours=rates[0],
                baseline=rates[1],
                baseline_name="tsl::robin_map",
            )
        )

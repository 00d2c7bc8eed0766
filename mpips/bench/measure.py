"""Turn-by-turn measurement of two things, and what comes out of it."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence

import msgspec

# name -> (sense, bar): what each ratio must reach on two cores with nothing else running. "within": the
# ratio must lie between 1 / bar and bar.
BARS: dict[str, tuple[str, float]] = {
    "push_ack_4k_vs_two_sided": ("<=", 0.3),
    "push_ack_64k_vs_two_sided": ("<=", 0.6),
    "pull_4k_vs_two_sided": ("<=", 0.3),
    "push_4m_vs_two_sided": (">=", 1.3),
    "push_64m_vs_two_sided": (">=", 1.5),
    "push_64m_vs_sum": (">=", 0.85),
    "push_64m_copy_vs_sum": (">=", 0.6),
    "pull_64m_vs_memcpy": (">=", 0.9),
    "rows_push_vs_two_sided": (">=", 2.5),
    "rows_pull_vs_two_sided": (">=", 1.1),
    "rows_both_vs_two_sided": (">=", 2.0),
    "rows_push_vs_index_add": (">=", 1.2),
    "rows_adagrad_vs_torch": (">=", 5.0),
    "map_lookup_vs_robin": (">=", 1.5),
    "adam_vs_stream": (">=", 0.85),
    "sgd_vs_stream": (">=", 0.85),
    "adagrad_vs_stream": (">=", 0.85),
    "ftrl_vs_stream": (">=", 0.85),
    "adam_vs_torch_fused": (">=", 1.0),
    "sgd_vs_torch_fused": (">=", 1.0),
    "adagrad_vs_torch_fused": (">=", 1.0),
    "tcp_push_ack_4k_vs_put_flush": ("<=", 2.2),
    "tcp_push_16m_vs_put": (">=", 0.85),
    "tcp_pull_16m_vs_get": (">=", 0.85),
    "train_overhead_digits": ("<=", 1.15),
    "train_overhead_w6a": ("<=", 1.15),
    "idle_cpu": ("<=", 0.05),
    "oversubscribed": (">=", 0.8),
    "ring_scaling": (">=", 0.9),
    "table_memory_vs_plan": ("<=", 1.1),
    "table_rate_last_vs_first": (">=", 0.8),
    "write_vs_raw": (">=", 0.8),
    "stall_vs_memcpy": ("<=", 1.5),
    "plan_digits_mlp_3": ("within", 1.5),
    "plan_w6a_logistic_3": ("within", 1.5),
    "plan_criteo_fm_3": ("within", 1.5),
    "plan_digits_mlp_6": ("within", 1.5),
    "plan_w6a_logistic_6": ("within", 1.5),
    "plan_criteo_fm_6": ("within", 1.5),
}


class Comparison(msgspec.Struct, kw_only=True):
    """One thing measured against another, repetition by repetition.

    Attributes:
        name: Of the ratio ours / baseline.
        what: One line for people.
        unit: Of `ours` and `baseline`: "us" (smaller is better) or a rate.
        ours: One value per repetition.
        baseline: Measured right before or after the value of `ours` with the same index.
        baseline_name: What the baseline is.
    """

    name: str
    what: str
    unit: str
    ours: list[float]
    baseline: list[float]
    baseline_name: str

    @property
    def ratios(self) -> list[float]:
        """Ours / baseline of each repetition."""
        return [a / b for a, b in zip(self.ours, self.baseline, strict=True)]

    @property
    def ratio(self) -> float:
        """The median of the ratios pair by pair."""
        return statistics.median(self.ratios)

    @property
    def bar(self) -> tuple[str, float] | None:
        """(sense, value) that the ratio must reach, or None."""
        return BARS.get(self.name)

    @property
    def met(self) -> bool | None:
        """Whether it does; None where there is no bar."""
        if self.bar is None:
            return None
        sense, value = self.bar
        if sense == "within":
            return 1 / value <= self.ratio <= value
        return self.ratio <= value if sense == "<=" else self.ratio >= value


class Figure(msgspec.Struct, kw_only=True):
    """A value without a baseline: what planning uses, or a count.

    Attributes:
        name: For JSON and the calibration file.
        what: One line for people.
        unit: Of the values.
        values: One per repetition.
    """

    name: str
    what: str
    unit: str
    values: list[float]

    @property
    def median(self) -> float:
        """The median of the values."""
        return statistics.median(self.values)


class Findings(msgspec.Struct, kw_only=True):
    """What one suite, or one launch of it, has found. Passes from ranks to the command as JSON."""

    comparisons: list[Comparison] = []
    figures: list[Figure] = []
    skipped: dict[str, str] = {}  # name of a ratio -> why it was not measured
    notes: list[str] = []

    def add(self, other: Findings) -> None:
        """Take over everything that another one holds."""
        self.comparisons += other.comparisons
        self.figures += other.figures
        self.skipped.update(other.skipped)
        self.notes += other.notes


def seconds_per_call(work: Callable[[], object], calls: int) -> float:
    """Mean seconds of `calls` calls in a row."""
    start = time.perf_counter()
    for _ in range(calls):
        work()
    return (time.perf_counter() - start) / calls


def typical_seconds(work: Callable[[], object], calls: int) -> float:
    """Seconds of one call, the median over up to 20 groups of calls; one call before is not counted.

    For calls of microseconds, where one interruption by the kernel (a tick of 4 ms) is a hundred calls.
    """
    work()
    groups = min(20, calls)
    return statistics.median(seconds_per_call(work, calls // groups) for _ in range(groups))


def take_turns(
    works: Sequence[Callable[[], object]], calls: Sequence[int], repetitions: int
) -> list[list[float]]:
    """Seconds per call of each work: one warm-up each, then all in turn, `repetitions` times.

    Args:
        works: What to measure.
        calls: How many calls in a row make one measurement, for each work.
        repetitions: Measurements of each.

    Returns:
        For each work its seconds per call, one value per repetition.
    """
    for work in works:
        work()
    times: list[list[float]] = [[] for _ in works]
    for _ in range(repetitions):
        for found, work, n in zip(times, works, calls, strict=True):
            found.append(seconds_per_call(work, n))
    return times


def rates(seconds: Sequence[float], amount: float) -> list[float]:
    """`amount` per second, for each time."""
    return [amount / s for s in seconds]


def spread(values: Sequence[float]) -> float:
    """(greatest - smallest) / median; 0 for one value."""
    return (max(values) - min(values)) / statistics.median(values)

"""Alternating measurements, and the comparisons and figures that result from them."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence

import msgspec

# name of a ratio -> (sense, bar), on two cores without other load. "<=" and ">=": the ratio must be at most,
# at least the bar. "within": it must lie between 1 / bar and bar.
Bars = Mapping[str, tuple[str, float]]
BARS: Bars = {
    "push_ack_4k_vs_two_sided": ("<=", 0.3),
    "push_ack_64k_vs_two_sided": ("<=", 0.6),
    "push_fresh_4k_vs_two_sided": ("<=", 0.45),
    "push_fresh_64k_vs_two_sided": ("<=", 0.75),
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
    "adam_vs_stream": (">=", 0.85),
    "sgd_vs_stream": (">=", 0.85),
    "adagrad_vs_stream": (">=", 0.85),
    "ftrl_vs_stream": (">=", 0.85),
    "tcp_push_ack_4k_vs_put_flush": ("<=", 2.2),
    "tcp_push_16m_vs_put": (">=", 0.85),
    "tcp_pull_16m_vs_get": (">=", 0.85),
    "sample_attach_vs_memcpy": ("<=", 1.3),
    "sample_push_vs_redis": ("<=", 1.0),
    "many_to_one_vs_files": (">=", 2.0),
    "solver_slowdown": ("<=", 1.02),
    "write_vs_raw": (">=", 0.8),
    "posix_vs_mpio": (">=", 0.95),
    "stall_vs_memcpy": ("<=", 1.5),
    "delta_vs_full_bytes": ("<=", 0.03),
    "delta_vs_full_s": ("<=", 0.03),
    "plan_digits_mlp_3": ("within", 1.5),
    "plan_w6a_logistic_3": ("within", 1.5),
    "plan_criteo_fm_3": ("within", 1.5),
    "encode_vs_memcpy_bf16": (">=", 1.0),
    "encode_vs_memcpy_int8": (">=", 0.5),
    "encode_vs_memcpy_onebit": (">=", 0.5),
    "encode_vs_memcpy_topk": (">=", 0.25),
    "encode_vs_memcpy_shared_int8": (">=", 0.25),
    "wire_bytes_bf16": ("<=", 0.51),
    "wire_bytes_int8": ("<=", 0.27),
    "wire_bytes_onebit": ("<=", 0.04),
    "wire_bytes_shared_int8": ("<=", 0.29),
    "wire_bytes_topk": ("<=", 0.02),
    "step_1g_int8": ("<=", 0.4),
    **{f"step_{link}_auto": ("<=", 1.05) for link in ("10g", "1g", "01g")},
    "step_01g_onebit": ("<=", 0.08),
    "torch_step_vs_plain": ("<=", 1.15),
    "torch_step_vs_ddp": ("<=", 0.9),
    "torch_replicated_vs_ddp": ("<=", 0.8),
    "torch_embedding_vs_local": (">=", 2.2),
    "torch_embedding_vs_ddp": ("<=", 0.35),
    "ngram_vs_torch": (">=", 0.9),
    "overlap": ("<=", 0.4),
    "goodput_mtbf_10s": (">=", 0.8),
    "stream_overhead": ("<=", 1.2),
    "stage_memory": ("<=", 0.3),
    "stages_vs_bubble_bound": (">=", 0.8),
    "one_stage_cost": ("<=", 1.02),
    "wide_softmax_step": ("<=", 3.0),
    "wide_softmax_memory": ("<=", 0.7),
    "slow_worker_vs_best": ("<=", 1.05),
    "stalls_vs_best": ("<=", 1.05),
    "even_vs_bsp": ("<=", 1.02),
    "record_cost_4k": ("<=", 1.03),
    "record_cost_rows": ("<=", 1.03),
    "admit_cost": (">=", 0.93),
    **{f"evict_cost_{how}": (">=", 0.93) for how in ("idle", "lru", "lfu")},
    "serve_slowdown": (">=", 0.95),
    "memory_growth": ("within", 1.02),
    **{f"evict_hit_rate_{by}": ("within", 1.01) for by in ("lru", "lfu")},
    "storage_vs_memory": (">=", 0.5),
}


class Comparison(msgspec.Struct, kw_only=True):
    """A measurement of mpips and of a baseline, by repetition.

    Attributes:
        name: Name of the ratio ours / baseline. what: Description in one line. unit: Unit of `ours` and
        `baseline`: a time such as "us" (smaller is better) or a rate. ours: One value per repetition.
        baseline: One value per repetition, measured just before or after that of `ours`. baseline_name:
        Description of the baseline in a few words. bar: Sense and bar that the ratio must reach, as in BARS;
        None: it has none, or `Findings.judge` has not been called.
    """

    name: str
    what: str
    unit: str
    ours: list[float]
    baseline: list[float]
    baseline_name: str
    bar: tuple[str, float] | None = None

    @property
    def ratios(self) -> list[float]:
        """Return ours / baseline of each repetition."""
        return [a / b for a, b in zip(self.ours, self.baseline, strict=True)]

    @property
    def ratio(self) -> float:
        """Return the median of `ratios`."""
        return statistics.median(self.ratios)

    @property
    def met(self) -> bool | None:
        """Return True if the ratio reaches its bar, False if not, None without a bar."""
        if self.bar is None:
            return None
        sense, value = self.bar
        if sense == "within":
            return 1 / value <= self.ratio <= value
        return self.ratio <= value if sense == "<=" else self.ratio >= value


class Figure(msgspec.Struct, kw_only=True):
    """A value without a baseline, such as a count or a value that `mpips plan` uses.

    Attributes:
        name: Name in JSON and in the calibration file.
        what: Description in one line.
        unit: Unit of the values.
        values: One value per repetition.
    """

    name: str
    what: str
    unit: str
    values: list[float]

    @property
    def median(self) -> float:
        """Return the median of the values."""
        return statistics.median(self.values)


class Findings(msgspec.Struct, kw_only=True):
    """The results of a suite, or of one launch of it. Ranks send them to the command as JSON.

    Attributes:
        comparisons: Ratios with their two sides.
        figures: Values without a baseline.
        skipped: Name of a ratio -> why it was not measured.
        notes: Lines for the report.
    """

    comparisons: list[Comparison] = []
    figures: list[Figure] = []
    skipped: dict[str, str] = {}
    notes: list[str] = []

    def add(self, other: Findings) -> None:
        """Append everything that `other` contains."""
        self.comparisons += other.comparisons
        self.figures += other.figures
        self.skipped.update(other.skipped)
        self.notes += other.notes

    def judge(self, bars: Bars) -> None:
        """Give each comparison its bar from `bars`; None where `bars` lacks its name."""
        for comparison in self.comparisons:
            comparison.bar = bars.get(comparison.name)


def seconds_per_call(work: Callable[[], object], calls: int) -> float:
    """Return the mean seconds of a call, over `calls` consecutive calls."""
    start = time.perf_counter()
    for _ in range(calls):
        work()
    return (time.perf_counter() - start) / calls


def typical_seconds(work: Callable[[], object], calls: int) -> float:
    """Return the seconds of one call: the median over up to 20 groups of calls, after a warm-up call.

    It suits calls of microseconds: one interruption by the kernel (a tick of 4 ms) takes as long as a hundred
    calls, but changes only one group.
    """
    work()
    groups = min(20, calls)
    return statistics.median(seconds_per_call(work, calls // groups) for _ in range(groups))


def measure_alternately(
    works: Sequence[Callable[[], object]], calls: Sequence[int], repetitions: int
) -> list[list[float]]:
    """Measure all works one after the other, `repetitions` times, after one warm-up call of each.

    Args:
        works: Functions to measure.
        calls: Consecutive calls in one measurement, for each work.
        repetitions: Measurements of each work.

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
    """Return `amount` per second for each time."""
    return [amount / s for s in seconds]


def spread(values: Sequence[float]) -> float:
    """Return (greatest - smallest) / median; 0 for one value."""
    return (max(values) - min(values)) / statistics.median(values)

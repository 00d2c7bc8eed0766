"""Metrics of runs in the text format of Prometheus, from the records of their run directories.

`exposition` is the one place that names metrics. The scheduler calls it with the records of its own job, and
`run_metrics` reads those of any run directory, so the text is the same. It needs the extra `metrics`.

Names follow Prometheus' conventions: counters end in _total and begin again at zero with each launch of a
run, times are in seconds and sizes in bytes. The values of labels are bounded: runs, ranks, hosts, at most
`mpips.scheduler.load.MOST_TABLES` tables and MOST_LINKS links. A job of more than MOST_RANKS ranks has no
series for single ranks.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from mpips.rundir.directory import RunFolder
from mpips.rundir.files import Progress, RankRow, Status
from mpips.rundir.view import STATES, RunView, view_of

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
MOST_RANKS = 1024  # ranks of a job up to which each has its own series
_BUCKETS = (
    0,
    1,
    2,
    4,
    8,
    16,
    32,
    63,
)  # upper bounds of the histogram of staleness; 63: see TableStats


def run_metrics(runs: Iterable[RunFolder], now: float | None = None) -> bytes:
    """Return the metrics of all these runs; a run without an attempt has its state only.

    Args:
        runs: The runs.
        now: Unix time; None: the current time.

    Raises:
        ConfigError: A file is damaged or cannot be read.
    """
    return exposition([view_of(run, now) for run in runs])


def exposition(views: Sequence[RunView]) -> bytes:
    """Return the metrics of runs in the text format of Prometheus.

    Args:
        views: The runs, each with another name.
    """
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Views(views))
    text: bytes = generate_latest(registry)
    return text


class _Views(Collector):
    """The collector of one exposition."""

    def __init__(self, views: Sequence[RunView]) -> None:
        """Take the runs to show."""
        self._views = views

    def describe(self) -> list[Metric]:
        """Return nothing: the metrics of one exposition cannot collide with others."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Return all metrics that have a value."""
        found = (
            *_run_metrics(self._views),
            *_load_metrics(self._views),
            *_rank_metrics(self._views),
        )
        return (_encodable(metric) for metric in found if metric.samples)


def _encodable(metric: Metric) -> Metric:
    """Return a metric in whose labels surrogates, which UTF-8 cannot encode, are escaped with a backslash."""
    for i, sample in enumerate(metric.samples):
        if not all(map(str.isascii, sample.labels.values())):
            labels = {
                name: text.encode(errors="backslashreplace").decode()
                for name, text in sample.labels.items()
            }
            metric.samples[i] = sample._replace(labels=labels)
    return metric


_Number = float | None


def _gauge(
    name: str, help: str, views: Sequence[RunView], value: Callable[[RunView], _Number]
) -> Metric:
    """Return a gauge with a value for each run that has one."""
    family = GaugeMetricFamily(name, help, labels=["run"])
    for view in views:
        number = value(view)
        if number is not None:
            family.add_metric([view.name], number)
    return family


def _counter(
    name: str, help: str, views: Sequence[RunView], value: Callable[[RunView], _Number]
) -> Metric:
    """Return a counter with a value for each run that has one."""
    family = CounterMetricFamily(name, help, labels=["run"])
    for view in views:
        number = value(view)
        if number is not None:
            family.add_metric([view.name], number)
    return family


def _status(of: Callable[[Status], _Number]) -> Callable[[RunView], _Number]:
    """Return a value of the status of a run; None for a run without one."""
    return lambda view: of(view.status) if view.status is not None else None


def _progress(of: Callable[[Progress], _Number]) -> Callable[[RunView], _Number]:
    return _status(lambda status: of(status.progress))


def _known_length(p: Progress, value: _Number) -> _Number:
    """Return a value that is known only where the length of the run is known."""
    return value if p.n_epochs else None


def _run_metrics(views: Sequence[RunView]) -> Iterator[Metric]:
    """Return the metrics of whole runs."""
    state = GaugeMetricFamily(
        "mpips_run_state", "1 for the present state of the run, else 0.", labels=["run", "state"]
    )
    for view in views:
        for known in STATES:
            state.add_metric([view.name, known], float(view.state == known))
    yield state
    yield _gauge(
        "mpips_run_updated_timestamp_seconds",
        "Unix time at which the state was written.",
        views,
        _status(lambda status: status.time_s or None),
    )
    gauges: tuple[tuple[str, str, Callable[[Progress], _Number]], ...] = (
        ("step", "Steps of the run, over all its launches.", lambda p: p.step),
        ("epoch", "Greatest epoch that a worker has reported, from 0.", lambda p: p.epoch),
        ("epochs", "Epochs of the whole run.", lambda p: _known_length(p, p.n_epochs)),
        (
            "done_ratio",
            "Part of the run that is done, 0 to 1.",
            lambda p: _known_length(p, p.share),
        ),
        ("remaining_seconds", "Estimated time to the end.", lambda p: _known_length(p, p.left_s)),
        ("loss", "Mean loss of the samples of the last report interval.", lambda p: p.loss),
        (
            "recoverable_step",
            "Step that the next launch would recover from memory; 0: only from checkpoints.",
            lambda p: p.recoverable,
        ),
    )
    for name, help, of in gauges:
        yield _gauge(f"mpips_run_{name}", help, views, _progress(of))
    yield _gauge(
        "mpips_run_attempt",
        "Number of the present launch of the run, from 0.",
        views,
        _status(lambda status: status.generation),
    )
    yield _gauge(
        "mpips_run_ranks",
        "Ranks of the present launch.",
        views,
        lambda view: len(view.ranks.ranks) if view.ranks is not None else None,
    )
    begun = [view for view in views if view.status is not None]
    yield _counter(
        "mpips_run_failures", "Launches of the run that failed.", begun, lambda view: view.failures
    )
    yield _counter(
        "mpips_run_samples",
        "Samples trained on by all workers in this launch.",
        views,
        _progress(lambda p: p.samples),
    )
    yield _counter(
        "mpips_run_clocks",
        "Sum of the clocks of all workers in this launch.",
        views,
        _progress(lambda p: p.updates),
    )
    for name, help, field in (
        ("pushed", "Bytes of updates that all workers have sent in this launch.", "pushed_bytes"),
        ("pulled", "Bytes of values that all workers have fetched in this launch.", "pulled_bytes"),
    ):
        yield _counter(
            f"mpips_run_{name}_bytes",
            help,
            views,
            functools.partial(_worker_sum, field),
        )
    checkpoints = CounterMetricFamily(
        "mpips_run_checkpoints", "Checkpoints of this launch by result.", labels=["run", "result"]
    )
    score = GaugeMetricFamily(
        "mpips_run_test_score",
        "Metrics of the last evaluation of this launch on test data.",
        labels=["run", "metric"],
    )
    for view in views:
        status = view.status or Status(state="", generation=0, time_s=0.0)
        for result, n in sorted(status.checkpoints.items()):
            checkpoints.add_metric([view.name, result], n)
        for metric, value in sorted(status.test.items()):
            if value is not None:
                score.add_metric([view.name, metric], value)
    yield checkpoints
    yield score


def _worker_sum(field: str, view: RunView) -> _Number:
    """Return the sum of a count over all workers; None if no ranks are known."""
    if view.ranks is None:
        return None
    rows = (row for row in view.ranks.ranks if _index(row, "worker") is not None)
    return float(sum(getattr(row, field) for row in rows))


def _load_metrics(views: Sequence[RunView]) -> Iterator[Metric]:
    """Return the metrics by table and by link, and the staleness of updates."""
    tables = CounterMetricFamily(
        "mpips_table_updates",
        "Updates of the values of a table, for the tables with most of them.",
        labels=["run", "table"],
    )
    hosts = ["run", "worker_host", "server_host"]
    pushed = CounterMetricFamily(
        "mpips_link_pushed_bytes",
        "Bytes of updates from the workers of a host to the servers of a host.",
        labels=hosts,
    )
    pulled = CounterMetricFamily(
        "mpips_link_pulled_bytes",
        "Bytes of values from the servers of a host to the workers of a host.",
        labels=hosts,
    )
    staleness = HistogramMetricFamily(
        "mpips_update_staleness",
        "Staleness of updates when a server judged them: versions of the table since its values were pulled.",
        labels=["run"],
    )
    hottest = GaugeMetricFamily(
        "mpips_table_hottest_row_ratio",
        "Part of the pulls and pushes of a table's rows that its hottest row has, over about a minute.",
        labels=["run", "table"],
    )
    limited = CounterMetricFamily(
        "mpips_table_rows",
        "Rows of tables with limits: made, refused (keys by clock), evicted, and returned soon after that.",
        labels=["run", "table", "event"],
    )
    cold = GaugeMetricFamily(
        "mpips_table_cold_rows",
        "Rows of tables with storage that lie in files.",
        labels=["run", "table"],
    )
    moved = CounterMetricFamily(
        "mpips_table_moved_rows",
        "Rows of tables with storage that moved: promoted from files to memory, demoted to files.",
        labels=["run", "table", "event"],
    )
    bound = GaugeMetricFamily(
        "mpips_ssp_bound_clocks",
        "Bound of the tables under SSP with bound auto: clocks that a worker may be ahead of the slowest.",
        labels=["run"],
    )
    backup = GaugeMetricFamily(
        "mpips_backup_workers",
        "Backup workers of the tables under BSP with backup auto: the greatest number of all servers.",
        labels=["run"],
    )
    switched = GaugeMetricFamily(
        "mpips_switched",
        "1: the tables under Switch are under ASP at all servers; 0: under BSP.",
        labels=["run"],
    )
    for view in views:
        if view.ranks is None:
            continue
        load = view.ranks.load
        if load.switched is not None:
            switched.add_metric([view.name], int(load.switched))
        if load.backup is not None:
            backup.add_metric([view.name], load.backup)
        if load.bound is not None:
            bound.add_metric([view.name], load.bound)
        for table in load.tables:
            tables.add_metric([view.name, table.name], table.updates)
            for event in ("made", "refused", "evicted", "returned"):
                if table.rows_made or table.rows_refused:
                    limited.add_metric(
                        [view.name, table.name, event], getattr(table, f"rows_{event}")
                    )
            if table.rows_cold or table.rows_demoted:
                cold.add_metric([view.name, table.name], table.rows_cold)
                moved.add_metric([view.name, table.name, "promoted"], table.rows_promoted)
                moved.add_metric([view.name, table.name, "demoted"], table.rows_demoted)
        # Keys are no labels: their number has no bound.
        shares: dict[str, float] = {}
        for row in load.rows:
            shares[row.table] = max(shares.get(row.table, 0.0), row.share)
        for name, share in shares.items():
            hottest.add_metric([view.name, name], share)
        for link in load.links:
            labels = [view.name, link.worker_host, link.server_host]
            pushed.add_metric(labels, link.pushed_bytes)
            pulled.add_metric(labels, link.pulled_bytes)
        total = sum(
            row.staleness_sum for row in view.ranks.ranks if _index(row, "server") is not None
        )
        buckets = [(f"{bound:.1f}", sum(load.staleness[: bound + 1])) for bound in _BUCKETS]
        staleness.add_metric([view.name], [*buckets, ("+Inf", sum(load.staleness))], total)
    yield from (cold, moved)
    yield from (tables, limited, hottest, pushed, pulled, staleness, bound, backup, switched)


# Metrics of single ranks: role, name, help, whether it is a counter, value.
_RANK_METRICS: tuple[tuple[str, str, str, bool, Callable[[RankRow], float]], ...] = (
    ("worker", "clock", "Clock of the worker.", False, lambda r: r.clock),
    ("worker", "samples", "Samples that the worker has trained on.", True, lambda r: r.samples),
    (
        "worker",
        "records",
        "Records that the worker has written to rings.",
        True,
        lambda r: r.records,
    ),
    (
        "worker",
        "pushed_bytes",
        "Bytes of updates that it has sent.",
        True,
        lambda r: r.pushed_bytes,
    ),
    (
        "worker",
        "pulled_bytes",
        "Bytes of values that it has fetched.",
        True,
        lambda r: r.pulled_bytes,
    ),
    ("worker", "judged_updates", "Its updates that servers have judged.", True, lambda r: r.judged),
    ("worker", "staleness", "Sum of the staleness of these.", True, lambda r: r.staleness_sum),
    (
        "worker",
        "max_staleness",
        "Greatest staleness of one update.",
        False,
        lambda r: r.max_staleness,
    ),
    (
        "worker",
        "queue_records",
        "Its records that no server has consumed.",
        False,
        lambda r: r.queue,
    ),
    ("server", "records", "Records that the server has consumed.", True, lambda r: r.records),
    ("server", "received_bytes", "Bytes of these records.", True, lambda r: r.pushed_bytes),
    ("server", "sent_bytes", "Bytes of rows sent as replies.", True, lambda r: r.pulled_bytes),
    ("server", "queue_records", "Records in its rings.", False, lambda r: r.queue),
    ("server", "memory_bytes", "Bytes of shards and rings.", False, lambda r: r.memory_bytes),
)


def _rank_metrics(views: Sequence[RunView]) -> Iterator[Metric]:
    """Return the metrics of single ranks. A process with several roles shows the counts of its worker."""
    rows = [
        (view.name, row)
        for view in views
        if view.ranks is not None and len(view.ranks.ranks) <= MOST_RANKS
        for row in view.ranks.ranks
    ]
    for role, name, help, is_counter, value in _RANK_METRICS:
        kind = CounterMetricFamily if is_counter else GaugeMetricFamily
        family = kind(f"mpips_{role}_{name}", help, labels=["run", role])
        for run, row in rows:
            index = _index(row, role)
            # All roles in one process: its counts are the worker's, its memory the server's.
            is_shared = role == "server" and _index(row, "worker") is not None
            if index is not None and (not is_shared or name == "memory_bytes"):
                family.add_metric([run, index], value(row))
        yield family
    beat = GaugeMetricFamily(
        "mpips_rank_heartbeat_timestamp_seconds",
        "Unix time of the last heartbeat of the rank.",
        labels=["run", "rank"],
    )
    for run, row in rows:
        if row.heard_s:
            beat.add_metric([run, str(row.rank)], row.heard_s)
    yield beat


def _index(row: RankRow, role: str) -> str | None:
    """Return the index of the worker or server on a rank; None if it has no such role."""
    for part in row.role.split(" + "):
        name, _, index = part.partition(" ")
        if name == role:
            return index
    return None

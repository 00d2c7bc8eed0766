"""Open and close what others see of a job while it runs: the metrics for Prometheus."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mpips.config.monitoring import MonitorConfig
    from mpips.scheduler.metrics_server import MetricsServer

NAME = "mpips"  # label `run` of a job without a run directory


def open_metrics(monitor: MonitorConfig) -> MetricsServer | None:
    """Return the server of the metrics, on the scheduler's rank; None if the job has none.

    Args:
        monitor: Options of the job, which `MonitorConfig.check` has accepted.
    """
    if monitor.port is None:
        return None
    from mpips.scheduler.metrics_server import MetricsServer

    return MetricsServer(monitor.host, monitor.port, NAME)

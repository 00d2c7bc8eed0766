"""Section [monitor] of a job file: what a run records beside its run directory, and for whom."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from typing import Annotated, Any, Literal, TypeAlias

import msgspec
from msgspec import Meta

from mpips.config.conversion import check_known, convert, fitted
from mpips.errors import CapabilityError, ConfigError

LogName: TypeAlias = Literal["csv", "jsonl", "tensorboard"]
# Module and package of what needs a library beyond those of mpips, by the option that asks for it.
_PORT = ("prometheus_client", "prometheus-client", "monitor.port")
_TENSORBOARD = ("tensorboardX", "tensorboardX", 'monitor.log = ["tensorboard"]')


class MonitorConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """[monitor]: metrics for other programs."""

    port: Annotated[
        Annotated[int, Meta(ge=0, le=65535)] | None,
        Meta(
            description="Port at which the scheduler answers GET /metrics for Prometheus. 0: any free one. "
            "Default: none."
        ),
    ] = None
    host: Annotated[
        str,
        Meta(
            min_length=1,
            description="Address that `port` is bound to. Other machines can read the metrics only if it is "
            "not a loopback address.",
        ),
    ] = "127.0.0.1"
    log: Annotated[
        tuple[LogName, ...],
        Meta(
            description="Forms of the metrics in the run directory: jsonl (metrics.jsonl, always written), "
            "csv (metrics.csv), tensorboard (event files in tensorboard/)."
        ),
    ] = ("jsonl",)

    trace_steps: Annotated[
        int,
        Meta(
            ge=0,
            le=1_000_000,
            description="Steps from the begin of each launch on whose events are recorded for `mpips trace`. "
            "0: none.",
        ),
    ] = 0
    record: Annotated[
        bool,
        Meta(
            description="Record the order of updates and what pulls see in the run directory; `mpips replay` "
            "repeats the run with the same bits. Restarts begin from checkpoints then, as with "
            "redundancy.warm = false."
        ),
    ] = False
    record_mib: Annotated[
        int,
        Meta(
            ge=1,
            le=1_000_000,
            description="MiB that each rank records at most; the record ends there, the run goes on.",
        ),
    ] = 1024

    @property
    def extra_logs(self) -> tuple[str, ...]:
        """The forms of `log` besides jsonl, each once."""
        return tuple(name for name in dict.fromkeys(self.log) if name != "jsonl")

    def check(self, has_run_directory: bool) -> None:
        """Refuse what this job cannot do, before it starts.

        Args:
            has_run_directory: The job is an attempt of a run, which has a directory.

        Raises:
            ConfigError: Files are asked for, and there is no directory for them.
            CapabilityError: A library is missing.
        """
        if self.extra_logs and not has_run_directory:
            raise ConfigError(
                f"monitor.log = {list(self.log)}: needs a run directory for the files; start the job with "
                '`mpips run`, or set monitor.log = ["jsonl"]'
            )
        if self.trace_steps and not has_run_directory:
            raise ConfigError(
                f"monitor.trace_steps = {self.trace_steps}: needs a run directory for the trace; start the "
                "job with `mpips run`, or set it to 0"
            )
        if self.record and not has_run_directory:
            raise ConfigError(
                "monitor.record = true: needs a run directory for the record; start the job with "
                "`mpips run`, or set it to false"
            )
        if self.port is not None:
            _need(*_PORT)
        if "tensorboard" in self.log:
            _need(*_TENSORBOARD)


def _need(module: str, package: str, option: str) -> None:
    """Raise CapabilityError if a module cannot be imported."""
    if find_spec(module) is None:
        raise CapabilityError(
            f"{option} needs {package}, which is not installed: pip install {package}, or leave the "
            "option out"
        )


def monitor_config(given: Mapping[str, Any]) -> MonitorConfig:
    """Return the options of [monitor] from plain values.

    Raises:
        ConfigError: A name is unknown or a value is invalid.
    """
    check_known(given, MonitorConfig, "monitor.")
    return convert(fitted(given, MonitorConfig), MonitorConfig, "monitor")

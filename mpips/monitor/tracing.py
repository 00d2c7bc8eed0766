"""`mpips trace`: ask a run for a trace through its directory, and wait until it is complete."""

from __future__ import annotations

import contextlib
import secrets
import time

from mpips.errors import ConfigError
from mpips.monitor.requesting import RequestError
from mpips.monitor.top import look
from mpips.rundir.directory import RunFolder
from mpips.rundir.tracing import TraceFolder, traces

_LOOK_S = 0.2  # seconds between two readings of the run directory


def newest_trace(run: RunFolder) -> TraceFolder:
    """Return the trace that was completed last.

    Raises:
        ConfigError: The run has no complete trace.
    """
    complete = [folder for folder in traces(run) if folder.index() is not None]
    if not complete:
        raise ConfigError(
            f"{run.path.name} has no trace: record one with --steps while it runs, or set monitor.trace_steps"
        )
    return complete[-1]


def record_trace(run: RunFolder, steps: int, timeout_s: float) -> TraceFolder:
    """Let all ranks of a run record the next steps; return the complete trace. Blocks.

    Args:
        run: The run.
        steps: Number of clocks of each worker.
        timeout_s: Longest wait, seconds; the trace is given up after it.

    Raises:
        ConfigError: The run is not running, or its directory cannot be written to.
        RequestError: The trace is not complete within `timeout_s`, or the run ended without it.
    """
    view = look(run)
    if not view.alive:
        raise ConfigError(
            f"{run.path.name}: the run is not running ({view.state}), nothing can be traced"
        )
    name = f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}"
    folder = TraceFolder(run, name)
    try:
        folder.ask(steps)
    except OSError as error:
        raise ConfigError(
            f"{folder.path}: cannot be written: {error.strerror}; trace as the owner of the run"
        ) from None
    try:
        _wait(run, folder, steps, timeout_s)
    except BaseException:
        # Give the trace up: the scheduler tells all ranks to end.
        if folder.index() is None:
            with contextlib.suppress(OSError):
                folder.request_file.unlink()
        raise
    return folder


def _wait(run: RunFolder, folder: TraceFolder, steps: int, timeout_s: float) -> None:
    """Wait until a trace is complete; see `record_trace`."""
    deadline = time.monotonic() + timeout_s
    while True:
        # Look at the run first: a trace may be completed directly before its end.
        alive = look(run).alive
        if folder.index() is not None:
            return
        if not alive:
            raise RequestError(f"{run.path.name}: ended before the trace was complete")
        if time.monotonic() >= deadline:
            known = sorted(p.stem.removeprefix("rank-") for p in folder.path.glob("rank-*.trace"))
            raise RequestError(
                f"{run.path.name}: no trace of {steps} steps within {timeout_s:g} s (ranks that have written "
                f"their part: {', '.join(known) or 'none'}); give fewer --steps or a longer --timeout"
            )
        time.sleep(_LOOK_S)

"""`mpips trace`: ask a run for a trace through its directory, and wait until it is complete."""

from __future__ import annotations

import contextlib
import secrets
import time

from mpips.errors import ConfigError
from mpips.monitor.requesting import RequestError
from mpips.process.patience import Patience
from mpips.rundir.directory import RunFolder
from mpips.rundir.tracing import PARTS_S, TraceFolder, TraceIndex, traces
from mpips.rundir.view import running, view_of

_LOOK_S = 0.2  # seconds between two readings of the run directory
_SLACK_S = 5.0  # seconds within which the scheduler sees a request and writes the index


def newest_trace(run: RunFolder) -> TraceFolder:
    """Return the trace that was completed last.

    Raises:
        ConfigError: The run has no complete trace.
    """
    complete = [f for f in traces(run) if (index := f.index()) is not None and index.ranks]
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
        timeout_s: Seconds after which the ranks end their parts, whatever number of clocks they have done.

    Raises:
        ConfigError: The run is not running, or its directory cannot be written to.
        RequestError: No rank has written its part within `timeout_s` and the time to write it, or the run
            ended without the trace.
    """
    running(run)
    name = f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}"
    folder = TraceFolder(run, name)
    try:
        folder.ask(steps, timeout_s)
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
    wait = Patience(timeout_s + PARTS_S + _SLACK_S)
    while True:
        # Look first at the run and the request: a trace may be completed directly before the end of both.
        alive, is_asked = view_of(run).alive, folder.request_file.exists()
        index = folder.index()
        if index is not None and index.ranks:
            return
        if not alive:
            raise RequestError(f"{run.path.name}: ended before the trace was complete")
        if index is not None or not is_asked or wait.is_over:
            raise RequestError(
                f"{run.path.name}: no rank has written a trace of {steps} steps within {timeout_s:g} s; give "
                "a longer --timeout, or wait until no other trace of the run is under way"
            )
        time.sleep(_LOOK_S)


def notes_of(index: TraceIndex) -> list[str]:
    """Return what is not whole in a complete trace, for people."""
    notes = []
    if index.late:
        notes.append(
            f"the time was over before all workers had done {index.steps:,} steps; give fewer --steps or a "
            "longer --timeout"
        )
    if index.missing:
        notes.append(
            f"ranks {', '.join(map(str, index.missing))} had not written their parts when the time was over "
            "or the job ended"
        )
    return notes

"""`mpips stop`, `mpips checkpoint` and `mpips scale`: make a request to a run and wait for its effect.

Everything goes through the run directory, so the commands work on any machine that sees it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from mpips.errors import ConfigError, MpipsError
from mpips.process.patience import Patience
from mpips.rundir.directory import RunFolder
from mpips.rundir.requests import JobSize, Kind, RequestFolder
from mpips.rundir.view import RunView, running, view_of

_LOOK_S = 0.2  # seconds between two readings of the run directory
_SECOND_S = 0.6  # seconds between two requests to stop that count as two


class RequestError(MpipsError):
    """The run did not do in time what was requested, or ended before it could."""


def request_checkpoint(run: RunFolder, timeout_s: float, tell: Callable[[str], None]) -> Path:
    """Request a checkpoint and return its folder once it is complete. Blocks.

    Args:
        run: The run.
        timeout_s: Longest wait, seconds.
        tell: Receives a line for people at each stage.

    Raises:
        ConfigError: The run is not running.
        RequestError: There is no new checkpoint within `timeout_s`, or the run ended without one.
    """
    before = running(run)
    old = _checkpoint(before)
    _make(run, "checkpoint", timeout_s, tell)
    if before.state != "running":
        tell(
            f"mpips checkpoint: {run.path.name} is {before.state}; the checkpoint follows when it is at work"
        )
    view = _wait(run, timeout_s, lambda view: _checkpoint(view) != old or not view.alive)
    if view is None:
        raise RequestError(
            f"{run.path.name}: no new checkpoint within {timeout_s:g} s; the request stands, see mpips top"
        )
    new = _checkpoint(view)
    if new == old:
        raise RequestError(f"{run.path.name}: ended ({view.state}) before a checkpoint was written")
    return Path(new)


def request_stop(
    run: RunFolder, at_once: bool, timeout_s: float, tell: Callable[[str], None]
) -> RunView:
    """Request the end of a run and return its last view once its supervisor has ended. Blocks.

    Args:
        run: The run.
        at_once: End it without a checkpoint.
        timeout_s: Longest wait, seconds.
        tell: Receives a line for people at each stage.

    Raises:
        ConfigError: The run is not running.
        RequestError: The run has not ended within `timeout_s`.
    """
    running(run)
    _make(run, "stop", timeout_s, tell)
    if at_once:
        # The supervisor counts requests that come almost together as one.
        time.sleep(_SECOND_S)
        if view_of(run).alive:
            _make(run, "stop", timeout_s, tell)
    view = _wait(run, timeout_s, lambda view: not view.alive)
    if view is None:
        raise RequestError(
            f"{run.path.name}: has not ended within {timeout_s:g} s; the request stands, see mpips top; "
            "--now ends it without a checkpoint"
        )
    return view


def request_scale(
    run: RunFolder, shape: JobSize, timeout_s: float, tell: Callable[[str], None]
) -> RunView:
    """Request another size of a job; return the first view of the attempt that has it. Blocks.

    Args:
        run: The run.
        shape: The size.
        timeout_s: Longest wait, seconds.
        tell: Receives a line for people at each stage.

    Raises:
        ConfigError: The run is not running, or it refuses the size.
        RequestError: The job has not got the size within `timeout_s`, or has ended before.
    """
    known = len(running(run).events)
    _make(run, "scale", timeout_s, tell, shape)
    answers = ("scaled", "not scaled")

    def is_met(view: RunView) -> bool:
        found = [event.event for event in view.events[known:] if event.event in (*answers, "began")]
        at_work = "scaled" in found and found[-1] == "began"
        return at_work or "not scaled" in found or not view.alive

    view = _wait(run, timeout_s, is_met)
    if view is None:
        raise RequestError(
            f"{run.path.name}: has not got this size within {timeout_s:g} s; the request stands, see "
            "mpips top"
        )
    for event in view.events[known:]:
        if event.event == "not scaled":
            raise ConfigError(event.cause)
    if not view.alive:
        raise RequestError(f"{run.path.name}: ended ({view.state}) before it changed its size")
    return view


def _checkpoint(view: RunView) -> str:
    return view.status.checkpoint if view.status is not None else ""


def _make(
    run: RunFolder,
    kind: Kind,
    timeout_s: float,
    tell: Callable[[str], None],
    shape: JobSize | None = None,
) -> None:
    """Make a request and wait until the supervisor has received it. Blocks.

    Raises:
        RequestError: The supervisor does not take it within `timeout_s`; it is withdrawn.
    """
    path = RequestFolder(run).make(kind, shape)
    wait = Patience(timeout_s)
    while path.exists():
        if wait.is_over or not view_of(run).alive:
            path.unlink(missing_ok=True)
            raise RequestError(
                f"{run.path.name}: its supervisor has not taken the request; is it stopped, or its host cut "
                "off from the file system? (mpips top)"
            )
        time.sleep(_LOOK_S)
    tell(f"mpips {kind}: {run.path.name} has the request")


def _wait(run: RunFolder, timeout_s: float, is_met: Callable[[RunView], bool]) -> RunView | None:
    """Read the run until `is_met`; return that view, or None after `timeout_s`. Blocks."""
    wait = Patience(timeout_s)
    while True:
        view = view_of(run)
        if is_met(view):
            return view
        if wait.is_over:
            return None
        time.sleep(_LOOK_S)

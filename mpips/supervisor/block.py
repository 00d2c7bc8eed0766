"""Texts that the supervisor prints: the block about a failed attempt, and parts of its other lines."""

from __future__ import annotations

import textwrap
from pathlib import Path

import msgspec

from mpips.checkpoint.find import order
from mpips.checkpoint.reader import open_checkpoint
from mpips.errors import ConfigError, MpipsError
from mpips.monitor.progress import plural, rate_text
from mpips.rundir.directory import RunFolder
from mpips.rundir.files import Progress, StartPoint, Status
from mpips.supervisor.attempt import Ended
from mpips.supervisor.verdict import Death, Verdict

WIDTH = 96  # columns of the block
_LEAST_TEXT = 20  # columns of the text of a row, also at a terminal that is too narrow for it
_DETAIL_LINES = 40  # lines of a traceback that are shown: the last ones


class Newest(msgspec.Struct, frozen=True):
    """The newest checkpoint that can be read.

    Attributes:
        path: Its folder; None: no checkpoint.
        step: Step of the run that it contains; -1: none.
        epoch: Epochs that all workers had completed.
        time_s: Unix time at which it was written.
        has_epochs: The program counts epochs.
    """

    path: Path | None = None
    step: int = -1
    epoch: int = 0
    time_s: float = 0.0
    has_epochs: bool = True


def newest_checkpoint(folder: Path) -> Newest:
    """Return the newest checkpoint in `folder`, from which the next attempt starts; reads manifests only."""
    try:
        names = order(folder).readable if folder.is_dir() else ()
    except ConfigError:
        return Newest()
    if not names:
        return Newest()
    try:
        with open_checkpoint(names[0].path) as checkpoint:
            m = checkpoint.manifest
    except (MpipsError, OSError):
        return Newest()  # the checkpoint was removed meanwhile
    epoch = min((worker.epoch for worker in m.workers), default=0)
    counts = any(worker.counts_epochs for worker in m.workers)
    return Newest(names[0].path, m.step, epoch, m.wall_time_s, counts)


def who(death: Death) -> str:
    """Return the name of what failed first, such as "worker 1 (rank 3, pid 4242) on node2"."""
    if death.rank < 0:
        return f"host {death.host}" if death.host else "unknown"
    text = death.role or "a rank"
    inside = f"rank {death.rank}" + (f", pid {death.pid}" if death.pid else "")
    return f"{text} ({inside})" + (f" on {death.host}" if death.host else "")


def lost(status: Status | None, newest: Newest, ended: Ended, now: float) -> str:
    """Return what must be computed again, in memory that survives and from the newest checkpoint.

    Args:
        status: The last status of the attempt; None: it never came to work.
        newest: The newest checkpoint.
        ended: End of the attempt.
        now: Unix time.
    """
    if status is None:
        return "nothing: it ended before its first step"
    base = max(newest.step, 0)
    steps = max(status.progress.step - base, 0)
    n_workers = sum("worker" in place.role for place in status.ranks)
    seconds = max(0.0, now - max(newest.time_s, now - ended.seconds))
    since = "the beginning" if newest.step < 0 else f"step {newest.step}"
    text = (
        f"about {plural(steps, 'step')} of {plural(n_workers, 'worker')} since {since}, by the last reports, "
        f"{seconds:.1f} s"
    )
    return f"nothing if memory survived; else {text}" if is_in_memory(status, newest) else text


def is_in_memory(status: Status | None, newest: Newest) -> bool:
    """Return True if memory had more than the newest checkpoint; whether it survived, servers find out.

    Memory has the clocks of each worker. Those of an asynchronous job may be far apart, so one worker may be
    beyond the checkpoint when another one has not ended a step.
    """
    if status is None:
        return False
    progress, saved = status.progress, max(newest.step, 0)
    return progress.recoverable > saved or (progress.in_memory and progress.step > saved)


def origin(start: StartPoint) -> str:
    """Return from where an attempt started, for people."""
    if start.source == "nothing":
        return "from the beginning"
    name = f" {Path(start.path).name}" if start.path else ""
    note = f" ({start.note})" if start.note else ""
    return f"from {start.source}{name}: step {start.step}{_epochs(start)}{note}"


def _epochs(of: StartPoint | Newest) -> str:
    """Return the number of complete epochs, for people; "": the program counts none."""
    return f", {plural(of.epoch, 'epoch')} done" if of.has_epochs else ""


def trained(progress: Progress | None) -> str:
    """Return loss and learning rate of the last report before a failure, for people; "": none is known."""
    if progress is None:
        return ""
    parts = []
    if progress.loss is not None:
        parts.append(f"loss {progress.loss:.4g}")
    if progress.learning_rate is not None:
        parts.append(f"lr {rate_text(progress.learning_rate)}")
    return ", ".join(parts)


def failure_block(
    run: RunFolder,
    generation: int,
    verdict: Verdict,
    ended: Ended,
    newest: Newest,
    following: str,
    now: float,
    memory: str = "",
    width: int = WIDTH,
) -> str:
    """Return the block about a failed attempt.

    Args:
        run: The run directory.
        generation: Generation number of the attempt.
        verdict: The class of the failure, and the rank or host that failed first.
        ended: End of the launcher.
        newest: The newest checkpoint.
        following: Next action of the supervisor.
        now: Unix time.
        memory: Contents that stay in shared memory after the last attempt; "": nothing, or another
            attempt follows.
        width: Characters of a line.
    """
    death = verdict.death or Death("unknown")
    rows = [("first to fail", who(death)), ("cause", death.cause)]
    if death.state or death.clock >= 0:
        clock = f"at clock {death.clock}" if death.clock >= 0 else ""
        rows.append(("it was", " ".join(part for part in (death.state, clock) if part)))
    if verdict.kind not in ("configuration error", "missing capability"):
        rows.append(("lost", lost(ended.status, newest, ended, now)))
        saved = "no checkpoint yet"
        if newest.path is not None:
            saved = f"{newest.path} (step {newest.step}{_epochs(newest)})"
        rows.append(("saved", saved))
    if memory:
        rows.append(("memory", memory))
    rows += [("logs", str(run.attempt(generation))), ("next", following)]
    title = f"mpips run: attempt {generation} of {run.path.name} failed after {ended.seconds:.1f} s"
    lines = [f"{title} ({verdict.kind})"]
    for name, text in rows:
        lines += _row(name, text, width)
    if death.details:
        details = death.details.splitlines()
        if len(details) > _DETAIL_LINES:
            details = ["[...]", *details[-_DETAIL_LINES:]]
        lines += ["", *(f"    {line}" for line in details)]
    rule = "-" * width
    return "\n".join([rule, *lines, rule])


def _row(name: str, text: str, width: int) -> list[str]:
    """Return the lines of one row: a name of at most 15 characters, and its text, wrapped."""
    first, *rest = (text or "unknown").splitlines()
    room = max(width - 18, _LEAST_TEXT)
    wrapper = textwrap.TextWrapper(room, break_long_words=False, break_on_hyphens=False)
    parts = wrapper.wrap(first)
    for line in rest:
        parts += wrapper.wrap(line) or [""]
    return [f"  {name if i == 0 else '':<16}{part}" for i, part in enumerate(parts)]

"""The check of the records of a disturbed run: within attempts, and over the restarts between them.

A run with monitor.record = true restarts from checkpoints only, so versions, clocks and numbers of records
begin anew in each attempt. Each one gets the history check (mpips.record.history), and what lies between them
the check over restarts (mpips.record.restarts). The record of an attempt that was killed lacks its last
entries, which are not checked.
"""

from __future__ import annotations

from collections.abc import Sequence

from mpips.chaos.report import CheckedPromise
from mpips.errors import ConfigError
from mpips.monitor.progress import plural
from mpips.record.files import read_all, record_folder, why_left_out
from mpips.record.history import Checked, check_history
from mpips.record.restarts import RecordedAttempt, check_restarts
from mpips.rundir.directory import RunFolder

NAME = "the history of updates is right"
_SHOWN = 5  # breaks that are printed


def check_records(run: RunFolder, generations: Sequence[int], recording: bool) -> CheckedPromise:
    """Check the records of attempts that have ended. Blocks.

    Args:
        run: The run.
        generations: Generation numbers of these attempts, ascending.
        recording: The run records.
    """
    if not recording:
        why = "set monitor.record = true to check that each update was applied exactly once"
        return CheckedPromise(name=NAME, outcome="not checked", detail=why)
    total = Checked(breaks=[], notes=[])
    attempts: list[RecordedAttempt] = []
    n_short = 0  # attempts with an incomplete file
    for generation in generations:
        try:
            attempt, checked = _check_attempt(run, generation)
        except ConfigError as error:
            total.notes.append(f"attempt {generation} is left out: {error}")
            continue
        attempts.append(attempt)
        n_short += any(not file.is_complete for file in (*attempt.servers, *attempt.workers))
        total.breaks += [f"attempt {generation}: {text}" for text in checked.breaks]
        total.n_records += checked.n_records
    restarts = check_restarts(attempts)
    total.breaks += restarts.breaks
    total.notes += restarts.notes
    if total.breaks:
        more = [f"and {n - _SHOWN} more"] if (n := len(total.breaks)) > _SHOWN else []
        detail = "; ".join([*total.breaks[:_SHOWN], *more])
        return CheckedPromise(name=NAME, outcome="broken", detail=detail)
    if not total.n_records:
        why = "; ".join(total.notes) or (
            "records are written in blocks, and no ended attempt has completed one"
            if generations
            else "no attempt has ended"
        )
        return CheckedPromise(name=NAME, outcome="not checked", detail=why)
    counts = (
        f"{total.n_records:,} records of {plural(len(attempts), 'attempt')}, "
        f"{plural(restarts.n_checked, 'restart')} from checkpoints"
    )
    if n_short:
        total.notes.insert(0, f"those of {plural(n_short, 'attempt')} may lack their last entries")
    return CheckedPromise(name=NAME, outcome="held", detail="; ".join([counts, *total.notes]))


def _check_attempt(run: RunFolder, generation: int) -> tuple[RecordedAttempt, Checked]:
    """Return the record of an attempt and the result of its history check.

    Raises:
        ConfigError: The record cannot be read; the message names the file.
    """
    folder = record_folder(run, generation)
    if why := why_left_out(folder):
        raise ConfigError(why)
    servers, workers = read_all(folder)
    return RecordedAttempt(generation, servers, workers), check_history(servers, workers)

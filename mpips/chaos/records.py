"""The check of the records of a disturbed run: within attempts, and over the restarts between them.

An attempt that began anew gets the history check (mpips.record.history). Versions and clocks of an attempt
that continues are those of the one before it, which a record does not repeat. So only the numbers of its
records are checked: a server consumes the records of each worker in order, without a gap, and after a restart
in memory no record that an earlier attempt has consumed. The record of a killed attempt lacks its end, so a
gap between two attempts proves nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from mpips.chaos.report import CheckedPromise
from mpips.errors import ConfigError
from mpips.monitor.progress import plural
from mpips.record.files import RecordContent, read_all, record_folder
from mpips.record.history import check_history
from mpips.record.reading import read_order
from mpips.rundir.directory import RunFolder

NAME = "the history of updates is right"
_SHOWN = 5  # breaks that are printed
_NEW, _MEMORY = "new", "memory"


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
    chain = ConsumedChain()
    breaks: list[str] = []
    notes: list[str] = []
    for generation in generations:
        try:
            servers, workers = read_all(record_folder(run, generation))
            found = [*chain.check(servers)]
            if servers[0].head.start == _NEW:
                found = check_history(servers, workers).breaks
        except ConfigError as error:
            chain.forget()
            notes.append(f"attempt {generation}: {error}")
            continue
        breaks += [f"attempt {generation}: {text}" for text in found]
    if breaks:
        more = [f"and {len(breaks) - _SHOWN} more"] if len(breaks) > _SHOWN else []
        detail = "; ".join([*breaks[:_SHOWN], *more])
        return CheckedPromise(name=NAME, outcome="broken", detail=detail)
    if not chain.n_records:
        why = "; ".join(notes) or (
            "records are written in blocks, and no ended attempt has completed one"
            if generations
            else "no attempt has ended"
        )
        return CheckedPromise(name=NAME, outcome="not checked", detail=why)
    attempts = plural(len(generations) - len(notes), "attempt")
    detail = (
        f"{chain.n_records:,} records of {attempts}, {plural(chain.n_joined, 'restart')} in memory"
    )
    return CheckedPromise(name=NAME, outcome="held", detail="; ".join([detail, *notes]))


class ConsumedChain:
    """The numbers of records that servers have consumed, over the attempts of a run.

    Attributes:
        n_records: Records that were checked.
        n_joined: Restarts in memory over which they were checked.
    """

    def __init__(self) -> None:
        """Begin before the first attempt."""
        self.n_records = self.n_joined = 0
        self._last: dict[tuple[int, int], int] = {}  # newest record by server and worker

    def forget(self) -> None:
        """Note that the record of an attempt is missing."""
        self._last = {}

    def check(self, servers: Sequence[RecordContent]) -> Iterator[str]:
        """Yield what is wrong in the records of the servers of the next attempt.

        Args:
            servers: The files of the servers, by index.

        Raises:
            ConfigError: An entry is damaged.
        """
        if not servers[0].head.start.startswith(_MEMORY):
            # After a start from a checkpoint, workers send records again.
            self._last = {}
        self.n_joined += bool(self._last)
        for s, file in enumerate(servers):
            is_first: dict[int, bool] = {}
            for record in read_order(file):
                place = s, record.worker
                last = self._last.get(place)
                self._last[place] = record.sequence
                self.n_records += 1
                first = is_first.setdefault(record.worker, True)
                is_first[record.worker] = False
                where = f"once: server {s}: record {record.sequence} of worker {record.worker}"
                if last is not None and record.sequence <= last:
                    yield f"{where} was consumed again"
                elif last is not None and not first and record.sequence != last + 1:
                    yield f"{where} was consumed without record {last + 1} before it"

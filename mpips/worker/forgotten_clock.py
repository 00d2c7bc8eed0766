"""The warning for a program that pushes and pulls and never ends a clock.

A program may push several times in a clock, to sum up gradients, and may pull in between. So the warning
comes late: after many rounds in the first clock of a launch, or at the end of the program. A program that has
ended one clock gets none. Pushes and pulls are seen in what channels count, since a call of Python for each
of them would slow down small ones. Pushes count to the tables that need clocks alone: beside a model under
BSP a worker may push samples or rows under ASP for long before its first clock. LocalSGD and groups of
workers send nothing within a clock, so their programs are not watched.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from mpips.model.consistency import ASP, BSP, SSP, Switch
from mpips.model.table import Table
from mpips.terminal.screen import say

if TYPE_CHECKING:
    from mpips.worker.connection import Connection

# Polls, some ms apart, between which the worker has pushed and pulled. Programs that sum up gradients over
# more than that in their first clock are rare.
MANY_ROUNDS = 256
_ADVICE = "call worker.clock() at the end of each step"


def watched(tables: Sequence[Table]) -> list[int]:
    """Return the indices of the tables that `effect` is about: those under BSP, else SSP, else all."""
    for kinds in ((BSP, Switch), (SSP,)):
        if found := [i for i, table in enumerate(tables) if isinstance(table.consistency, kinds)]:
            return found
    return [*range(len(tables))]


def effect(tables: Sequence[Table], saves: bool) -> str:
    """Return the effect of a program without clocks as a clause; "": it has none.

    Args:
        tables: All tables of the job.
        saves: Checkpoints at multiples of a number of steps are requested.
    """
    model = tables[watched(tables)[0]].consistency if tables else ASP()
    if isinstance(model, BSP | Switch):
        name = type(model).__name__
        return f"under {name} pushes add up until the clock ends, so no pull contains an update"
    if isinstance(model, SSP):
        return (
            "the bound of SSP counts clocks, so no worker waits for a slower one, and no checkpoint is "
            "written before the end"
        )
    if saves and all(isinstance(t.consistency, ASP) for t in tables):
        return "a checkpoint is written at the end of a clock, so there is none before the end of the job"
    return ""


class ForgottenClock:
    """Watches the first clock of one worker's program."""

    def __init__(self, connection: Connection, effect: str, tables: Sequence[Table]) -> None:
        """Begin to watch.

        Args:
            connection: The worker's connection.
            effect: See the function of this name; not "".
            tables: All tables: a program may push once to each of them in a single clock.
        """
        self._connection = connection
        self._effect = effect
        self._n_tables, self._watched = len(tables), watched(tables)
        self._first = connection.step
        self._rounds = 0
        self._begun = self._pushes()
        self._seen = self._begun, self._bytes()[1]

    @property
    def is_over(self) -> bool:
        """True once a clock has ended."""
        return self._connection.step != self._first

    def _pushes(self) -> int:
        """Return a number that grows with each push to a table that is watched."""
        found = 0
        for channel in self._connection.channels:
            found += sum(map(channel.counting_writer.pushed_before, self._watched))
        own: dict[str, int] = {}
        for part in self._connection.parts:
            part.count(own)
        return found + own.get("pushed", 0)

    def _bytes(self) -> tuple[int, int]:
        """Return the bytes that the worker has pushed and pulled."""
        total = {"pushed_bytes": 0, "pulled_bytes": 0}
        for channel in self._connection.channels:
            known = channel.counting_writer.known_counters()
            for key in total:
                total[key] += known[key]
        for part in self._connection.parts:
            part.count(total)
        return total["pushed_bytes"], total["pulled_bytes"]

    def poll(self) -> bool:
        """Print the warning on worker 0 when it is due; return True if there is nothing more to watch."""
        if self.is_over:
            return True
        pushes = self._pushes()
        # A program that only reads is watched to its end, so the cheaper half comes first.
        if pushes > self._seen[0] and (pulled := self._bytes()[1]) > self._seen[1]:
            self._rounds += 1
            self._seen = pushes, pulled
        if self._rounds < MANY_ROUNDS:
            return False
        if self._connection.index == 0:
            say(
                "mpips: warning: worker 0 has pushed and pulled many times and never called "
                f"worker.clock(): {self._effect}; {_ADVICE}"
            )
        return True

    def at_end(self) -> str:
        """Return the effect if the program has ended no clock and has pulled between pushes; else ""."""
        if self.is_over or self._pushes() == self._begun:
            return ""
        most = max(c.writer.counters()["pushed"] for c in self._connection.channels)
        for part in self._connection.parts:
            own: dict[str, int] = {}
            part.count(own)
            most = max(most, own.get("pushed", 0))
        pushed, pulled = self._bytes()
        # A program that sums up gradients and ends pulls once for many pushes.
        return self._effect if most > self._n_tables and 2 * pulled >= pushed else ""


def warning_at_end(workers: str, effect: str) -> str:
    """Return the warning at the end of a job. `workers`: such as "worker 0" or "workers 0 and 1"."""
    return f"mpips: warning: {workers} ended without a call of worker.clock(): {effect}; {_ADVICE}"

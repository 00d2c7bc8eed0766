"""One cut on its way, and the pace of a worker's clock, as the coordinator knows them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec

from mpips.model.best_value import BestValue
from mpips.mpi.messages import Saved

_MARGIN_S = 0.05  # s, least distance of a proposed clock from the clocks of the workers
_RATE_S = 0.2  # s, least time over which a clock rate is measured


class ClockPace(msgspec.Struct):
    """The clock of a worker at its last message, and its rate."""

    clock: int = 0
    updated_at: float = 0.0  # running s
    rate: float = 0.0  # clocks per second
    since: tuple[int, float] = (0, 0.0)  # clock and running s where the measurement began

    def update(self, clock: int, now: float) -> None:
        """Store a clock that has arrived, and measure the rate if enough time has passed."""
        self.clock, self.updated_at = max(clock, self.clock), now
        before, at = self.since
        if now - at >= _RATE_S:
            self.rate = (self.clock - before) / (now - at)
            self.since = self.clock, now

    def expected(self, now: float) -> int:
        """Return the clock extrapolated to `now`."""
        return self.clock + int(self.rate * (now - self.updated_at))


def ahead_of(paces: Sequence[ClockPace], margin: int, now: float) -> int:
    """Return a clock that probably no worker has reached yet.

    Args:
        paces: Clocks of the workers at work, one at least.
        margin: Least distance from them, clocks.
        now: Running time, seconds.
    """
    rate = max(p.rate for p in paces)
    return max(p.expected(now) for p in paces) + max(margin, int(rate * _MARGIN_S))


@dataclass
class CutAttempt:
    """The cut under way."""

    id: int  # from 1, one more for each cut of this launch
    reason: str  # as in Ask, or "time", or "planned": the next multiple of `every_steps`
    clock: (
        int  # the clock at which all workers cut; 0: each at its next tick; HERE: where they wait
    )
    since: float  # running s of its begin
    phase: str  # "proposed", "committed", "writing", "abandoned"
    unanswered: set[int] = field(default_factory=set)  # workers whose Agreed is awaited
    refused: set[int] = field(default_factory=set)  # workers that have passed the proposed clock
    taken: set[int] = field(default_factory=set)  # servers that have their copies
    behind: set[int] = field(default_factory=set)  # workers that wait behind their cut records
    saved: dict[int, Saved] = field(default_factory=dict)  # by server
    why: str = ""  # reason of a server that cannot copy; "": workers were late
    best: BestValue | None = (
        None  # value for which the checkpoint is written; all workers wait for it
    )
    folder: str = (
        ""  # where its checkpoint is written in shared memory; "": the folder of checkpoints
    )
    quiet: bool = False  # True: giving it up is part of the protocol, so no warning and no count


def late_text(patience_s: float) -> str:
    """Return why a cut was given up for which workers were late; `patience_s`: seconds that it waited."""
    return (
        f"not all workers reached it within {patience_s:g} s (raise cluster.timeout_s if steps take longer; "
        "use worker.barrier for barriers)"
    )

"""The work of a rank's role, as the rank's messages to and from the scheduler need it."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from mpips.mpi.messages import Figures, ToServer, Trace, TraceEnd


class RoleWork(msgspec.Struct, frozen=True):
    """The parts of a rank's role that its client calls.

    Attributes:
        figures: Returns counts of this rank for its heartbeats. The client calls it while the rank waits for
            anything, so it must not read state that may be in the middle of a change.
        activity: Returns an activity that heartbeats show instead of `Client.state`, or "".
        each_heartbeat: Does short periodic work; called with each heartbeat.
        take_trace: Receives orders to record events; None: there is nothing to record yet.
        take_cut: Receives a server's messages about cuts, and what checkpoints contain beside the tables;
            None on workers.
    """

    figures: Callable[[], Figures | None] = lambda: None
    activity: Callable[[], str] = lambda: ""
    each_heartbeat: Callable[[], None] = lambda: None
    take_cut: Callable[[ToServer], None] | None = None
    take_trace: Callable[[Trace | TraceEnd], None] | None = None

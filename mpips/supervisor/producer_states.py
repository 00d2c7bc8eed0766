"""The decisions about the programs of [producers]: a state machine without processes, files or clocks.

Events are calls with the time; the caller starts and ends the processes.

A member waits until a worker serves all of its queues and fewer than `at_once` members run. When its command
has ended and no process of it is left, it has ended (code 0), or failed. A failure is followed by another
start after a pause, or the member has failed for good: then its producers are ended ("continue"), or the run
is ("restart", "end"). A start whose queues a new launch of the job has replaced did not fail by itself: its
program may not handle MPIPS_REPLACED. Such an end is followed by another start and does not count.

A member that has ended, or failed for good, is over: its producers must be closed. If the job goes back to
an older checkpoint it misses samples of a member that has ended: the member waits and starts again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from mpips.config.producers import ProducersConfig
from mpips.rundir.producers import MemberName

FIRST_PAUSE_S = 1.0  # s before the start after the first failure; doubled for each further one
LONGEST_PAUSE_S = 60.0
UNSERVED_S = 60.0  # s without a served queue after which a line names what is missing

Following = Literal["start", "end of the run", "end of its producers", "nothing"]


@dataclass
class EnsembleMember:
    """The state of one member.

    Attributes:
        number: Its number.
        state: See `MemberRecord`.
        starts: Starts so far.
        failures: Failures that count.
        ready_at: Time before which it does not start.
    """

    number: int
    state: MemberName = "waiting"
    starts: int = 0
    failures: int = 0
    ready_at: float = 0.0


class MemberStates:
    """The states of all members.

    Attributes:
        members: They, by number.
        is_stopping: No member starts any more.
    """

    def __init__(self, config: ProducersConfig) -> None:
        """All members wait."""
        self._config = config
        self.members = [EnsembleMember(number) for number in range(config.members)]
        self.is_stopping = False
        self._unserved = -1, 0.0  # the member of `unserved`, -1: none; and the time since then

    def to_start(self, is_served: Callable[[int], bool], now: float) -> list[EnsembleMember]:
        """Return the members that start now, lower numbers first.

        Args:
            is_served: Returns True if a worker serves all queues of a member.
            now: Time, seconds.
        """
        if self.is_stopping:
            return []
        room = self._config.n_at_once - sum(each.state == "running" for each in self.members)
        found: list[EnsembleMember] = []
        for each in self.members:
            if len(found) >= room:
                break
            if each.state == "waiting" and each.ready_at <= now and is_served(each.number):
                found.append(each)
        return found

    def unserved(self, is_served: Callable[[int], bool], now: float) -> EnsembleMember | None:
        """Return the first member that only its queues have held up for a minute; None: no member.

        Call it often. Arguments as for `to_start`.
        """
        n_running = sum(each.state == "running" for each in self.members)
        found = None
        if not self.is_stopping and n_running < self._config.n_at_once:
            waiting = (m for m in self.members if m.state == "waiting" and m.ready_at <= now)
            found = next((m for m in waiting if not is_served(m.number)), None)
        if found is None or found.number != self._unserved[0]:
            self._unserved = (-1 if found is None else found.number), now
        return found if now - self._unserved[1] >= UNSERVED_S else None

    def started(self, member: EnsembleMember) -> None:
        """Note the start of a member that waited."""
        member.state = "running"
        member.starts += 1

    def ended(
        self,
        member: EnsembleMember,
        code: int,
        now: float,
        *,
        replaced: bool = False,
        futile: bool = False,
        closed: bool = False,
    ) -> Following:
        """Note the end of a member that ran; return what follows.

        Args:
            member: The member; no process of it is left.
            code: Exit code of its command, negative for a signal.
            now: Time, seconds.
            replaced: A new launch of the job has replaced a queue of it since its start.
            futile: Its command cannot be started, so another start would fail alike.
            closed: Its program has ended all of its producers. One that was asked to end may end with code 0
                in the middle of its work.
        """
        if code == 0 and (closed or not self.is_stopping):
            member.state = "ended"
            return "end of its producers"
        if self.is_stopping:
            member.state = "stopped"
            return "nothing"
        if replaced:
            member.state, member.ready_at = "waiting", now
            return "start"
        member.failures += 1
        may_restart = self._config.on_failure == "restart" and not futile
        if may_restart and member.failures <= self._config.max_restarts:
            pause_s = min(FIRST_PAUSE_S * 2 ** (member.failures - 1), LONGEST_PAUSE_S)
            member.state, member.ready_at = "waiting", now + pause_s
            return "start"
        member.state = "failed"
        return "end of its producers" if self._config.on_failure == "continue" else "end of the run"

    def misses_samples(self, member: EnsembleMember, now: float) -> bool:
        """Note that the job has fewer samples of a member that has ended; return True if it starts again."""
        if member.state != "ended" or self.is_stopping:
            return False
        member.state, member.ready_at = "waiting", now
        return True

    def stop(self) -> None:
        """Start no member any more."""
        self.is_stopping = True
        for each in self.members:
            if each.state == "waiting":
                each.state = "stopped"

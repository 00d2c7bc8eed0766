"""Waits of the start-up and of the end, each bounded; an error names the ranks that have not come.

Ranks meet in non-blocking collectives and test them with a deadline. As long as all come in time nothing else
is sent. A rank whose deadline is past asks all others (ASK); whoever waits for the same collective, or for
any later one, tests for such questions beside its own request and answers (HERE). Reading a large file may
take longer than the time limit: a rank that does so within `lengthy` answers BUSY, from a thread, while its
main thread uses the processor now and then. If all that are missing are busy, the wait begins anew. Who does
not answer is late: stopped, dead, cut off, or in one call for longer than the time limit.

Who writes what: the rank that asks sends one ASK to every other rank, a rank that is asked one HERE or BUSY
for each ASK; both go over the communicator of the collective, on a tag of their own, with the number of the
question, and are read in these waits and within `lengthy` only. Nothing depends on their order: every ASK is
answered on its own, and answers to an earlier question are ignored. What stays unread when a wait ends is
read at the beginning of the next one.

Calls without a non-blocking form (windows, splitting) come right after such a wait, within the watchdog's
guard.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NoReturn

import numpy as np
from mpi4py import MPI

_TAG = 31
_ASK, _HERE, _BUSY = 0, 1, 2
_ANSWER_S = 1.0  # for answers; those who answer look every few milliseconds
_BUSY_ANSWER_S = 5.0  # where ranks may be at lengthy work: one call may hold the interpreter's lock
_LOOK_S = 0.02  # between two looks of a rank at lengthy work
_SPEAKER_S = 2.0  # for a lower rank that asked as well, and says the same
_SPINS = 2000
_PAUSE_S = 1e-3


class Attendance:
    """Bounded waits on one communicator. Main thread only."""

    def __init__(
        self,
        comm: MPI.Intracomm,
        timeout_s: float,
        name_of: Callable[[int], str],
        give_up: Callable[[str, int], NoReturn],
    ) -> None:
        """`name_of(rank)`: for errors; `give_up(message, rank)`: ends this process, `rank` is late."""
        self._comm = comm
        self._timeout_s = timeout_s
        self._name_of = name_of
        self._give_up = give_up
        self._status = MPI.Status()
        self._sends: list[tuple[MPI.Request, object]] = []
        self._here: set[int] = set()
        self._busy: set[int] = set()
        self._asked_by: set[int] = set()
        self._question = 0

    @contextmanager
    def lengthy(self, show_heartbeat: Callable[[], None]) -> Iterator[None]:
        """Work in this block may take any time, as long as the main thread uses the processor now and then.

        The work makes no MPI call: a thread answers questions meanwhile. `show_heartbeat` is called about
        once a second, from that thread. Where MPI was started without THREAD_SERIALIZED, work has
        `timeout_s`.
        """
        if MPI.Query_thread() < MPI.THREAD_SERIALIZED:
            yield
            return
        effort, done = Effort(), threading.Event()

        def look() -> None:
            next_sign = 0.0
            while not done.wait(_LOOK_S):
                now = time.monotonic()
                if effort.idle_s() > self._timeout_s:
                    continue
                self._answer(_BUSY)
                if now >= next_sign:
                    next_sign = now + 1.0
                    show_heartbeat()

        thread = threading.Thread(target=look, name="mpips-answers", daemon=True)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()

    def wait(
        self,
        request: MPI.Request,
        what: str,
        lengthy: bool = False,
        phase: str = "start-up",
        meanwhile: Callable[[], object] = lambda: None,
    ) -> None:
        """Wait for a collective that all ranks start. Does not return if one of them does not come.

        Args:
            request: Of the collective.
            what: For the error.
            lengthy: Others may still be at the lengthy work before it.
            phase: For the error.
            meanwhile: Called between two tests of the request; must not block.
        """
        self._asked_by.clear()
        self._answer()
        start = time.monotonic()
        looks = 0
        while not request.Test():
            looks += 1
            if looks < _SPINS:
                continue
            self._answer()
            meanwhile()
            time.sleep(_PAUSE_S)
            if time.monotonic() - start > self._timeout_s:
                self._ask(request, f"{phase} ({what})", _BUSY_ANSWER_S if lengthy else _ANSWER_S)
                start = time.monotonic()

    def _ask(self, request: MPI.Request, what: str, patience_s: float) -> None:
        """Find out who is late and end the process.

        Returns if the collective has ended meanwhile, or all who have not come to it are busy.
        """
        others = set(range(self._comm.size)) - {self._comm.rank}
        self._here.clear()
        self._busy.clear()
        self._question += 1
        for rank in others:
            self._send(rank, _ASK, self._question)
        if self._ends_within(request, patience_s, others):
            return
        late = sorted(others - self._here - self._busy)
        if self._busy and not late:
            return
        if any(rank < self._comm.rank for rank in self._asked_by) and self._ends_within(
            request, _SPEAKER_S
        ):
            return
        names = ", ".join(self._name_of(rank) for rank in late) or "no rank that can be named"
        have = "has" if len(late) < 2 else "have"
        self._give_up(
            f"{what}: {names} {have} not come within {self._timeout_s:g} s",
            late[0] if late else self._comm.rank,
        )

    def _ends_within(
        self, request: MPI.Request, seconds: float, asked: set[int] | None = None
    ) -> bool:
        """Whether the collective ends within a time, or until all who were asked have answered."""
        end = time.monotonic() + seconds
        while time.monotonic() < end and (asked is None or asked - self._here - self._busy):
            if request.Test():
                return True
            self._answer()
            time.sleep(_PAUSE_S)
        return False

    def _answer(self, state: int = _HERE) -> None:
        """Take what has come of questions and answers; `state` is what this rank answers."""
        word = np.empty(2, np.int64)
        while self._comm.Iprobe(MPI.ANY_SOURCE, _TAG, self._status):
            source = self._status.Get_source()
            self._comm.Recv(word, source, _TAG)
            kind, question = word.tolist()
            if kind == _ASK:
                self._asked_by.add(source)
                self._send(source, state, question)
            elif question == self._question:
                (self._here if kind == _HERE else self._busy).add(source)

    def _send(self, rank: int, kind: int, question: int) -> None:
        word = np.array([kind, question], np.int64)
        self._sends.append((self._comm.Isend(word, rank, _TAG), word))


class Effort:
    """The processor time of the thread that makes this, and when it last grew. Another thread may look."""

    def __init__(self) -> None:
        """Begin now."""
        self._clock = time.pthread_getcpuclockid(threading.get_ident())
        self._seen_ns = time.clock_gettime_ns(self._clock)
        self._at = time.monotonic()

    def idle_s(self) -> float:
        """Seconds since a look found that the thread had used the processor."""
        used_ns, now = time.clock_gettime_ns(self._clock), time.monotonic()
        if used_ns != self._seen_ns:
            self._seen_ns, self._at = used_ns, now
        return now - self._at

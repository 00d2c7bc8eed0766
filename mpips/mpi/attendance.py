"""Bounded waits for the collectives of start-up and shutdown; an error names the ranks that are late.

Ranks meet in non-blocking collectives and test them until a deadline. As long as all ranks come in time, no
other message is sent.

A rank whose deadline has passed sends a question (ASK) to all other ranks. Where many deadlines pass at the
same time, low ranks send first: a rank waits a tenth of a second for each binary digit of its number. If a
question of a lower rank arrives meanwhile, it leaves the rest to that rank, and sends its own only if the job
still waits after the time that the lower rank needs. So one late rank costs one question to each rank, not
one of each rank to each.

A rank that waits for the same collective, or for any later one, reads questions between two tests of its own
request and answers HERE. Reading a large file may take longer than the time limit: a rank that reads it
within `lengthy` answers BUSY. A thread sends this answer, as long as the main thread uses the processor now
and then. If all missing ranks are busy, the wait starts again with a new deadline. If all ranks are here, the
last one came just now, and the wait starts again once. A rank that does not answer is late: its process is
stopped, dead or cut off, or has been in one call for longer than the time limit.

Messages: the asking rank sends one ASK to every other rank. A rank that is asked sends one HERE or BUSY for
each ASK. All of them carry the number of the question and use the communicator of the collective, on a tag of
their own. They are read only in these waits and within `lengthy`. Correctness does not depend on their order:
every ASK is answered separately, and answers to an earlier question are ignored. Messages that are unread
when a wait ends are read at the start of the next wait.

MPI calls without a non-blocking form (creating windows, splitting communicators) come directly after such a
wait, within a guard of the watchdog.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NoReturn

import numpy as np
from mpi4py import MPI

from mpips.process import patience
from mpips.process.patience import Patience

_TAG = 31
_ASK, _HERE, _BUSY = 0, 1, 2
_ANSWER_S = 1.0  # s to wait for answers; waiting ranks read questions every few milliseconds
_BUSY_ANSWER_S = 5.0  # s, where ranks may be in `lengthy`: one call may hold the interpreter's lock
_LOOK_S = 0.02  # s between two looks for questions within `lengthy`
_STAGGER_S = 0.1  # s for each binary digit of a rank before it asks; a question arrives sooner
_MOST_NAMED = 16  # late ranks that the error names
_SPEAKER_S = 2.0  # s that a lower rank has to report the same error first
_SPINS = 2000  # tests of a request before the rank sleeps between two of them
_SPINS_PER_ANSWER = 50  # tests between two looks for questions meanwhile
_PAUSE_S = 1e-3  # s between two tests of a request


class Attendance:
    """Bounded waits on one communicator. Main thread only; the module describes the protocol."""

    def __init__(
        self,
        comm: MPI.Intracomm,
        timeout_s: float,
        name_of: Callable[[int], str],
        give_up: Callable[[str, int], NoReturn],
        option: str = "cluster.timeout_s",
    ) -> None:
        """Make the waits of one communicator. Not collective.

        Args:
            comm: Communicator of the collectives; questions and answers also use it.
            timeout_s: Time limit of one wait, seconds.
            name_of: Returns the name of a rank for errors.
            give_up: Ends this process with a message; its second argument is the first late rank.
            option: Name of the option with the time limit, for errors.
        """
        self._comm = comm
        self._timeout_s = timeout_s
        self._name_of = name_of
        self._give_up = give_up
        self._option = option
        self._status = MPI.Status()
        self._sends: list[tuple[MPI.Request, object]] = []
        self._here: set[int] = set()
        self._busy: set[int] = set()
        self._asked_by: set[int] = set()
        self._question = 0
        self._all_were_here = False  # answers to the last question of this wait

    @contextmanager
    def lengthy(self, show_heartbeat: Callable[[], None]) -> Iterator[None]:
        """Allow the block to take any time, as long as the main thread uses the processor now and then.

        The block must not call MPI, because a thread answers questions meanwhile. Where MPI was started
        without THREAD_SERIALIZED there is no such thread, and the block must end within `timeout_s`.

        Args:
            show_heartbeat: Called about once a second, from that thread.
        """
        if MPI.Query_thread() < MPI.THREAD_SERIALIZED:
            yield
            return
        effort, done = Effort(), threading.Event()

        def look() -> None:
            next_sign = 0.0
            while not done.wait(_LOOK_S):
                now = patience.running_s()
                # Do not answer for a main thread that has been idle for too long: it counts as late.
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
        """Wait for a collective that all ranks start. Blocking.

        Does not return if a rank is late: this process then ends by `give_up`.

        Args:
            request: The collective's request.
            what: Names the collective in the error.
            lengthy: True if other ranks may still be in the `lengthy` block before this collective.
            phase: Names the phase of the job in the error.
            meanwhile: Called between two tests of the request; must not block.
        """
        self._asked_by.clear()
        self._all_were_here = False
        self._answer()
        wait = Patience(self._timeout_s)
        looks = 0
        while not request.Test():
            looks += 1
            if looks < _SPINS:
                # A test may take milliseconds where ranks share cores, and a lower rank may ask meanwhile.
                if looks % _SPINS_PER_ANSWER == 0:
                    self._answer()
                continue
            self._answer()
            meanwhile()
            time.sleep(_PAUSE_S)
            if wait.is_over:
                patience_s = _BUSY_ANSWER_S if lengthy else _ANSWER_S
                if not self._ends_while_lower_asks(request, patience_s):
                    self._ask(request, f"{phase} ({what})", patience_s)
                wait = Patience(self._timeout_s)

    def _ends_while_lower_asks(self, request: MPI.Request, patience_s: float) -> bool:
        """Leave the questions to a lower rank if one asks; return False if this rank is to ask."""
        stagger_s = _STAGGER_S * self._comm.rank.bit_length()
        if self._ends_within(request, stagger_s, self._is_asked_by_lower):
            return True
        if not self._is_asked_by_lower():
            return False
        self._ends_within(request, patience_s + _SPEAKER_S)
        # Ask at the next deadline, unless a lower rank asks again.
        self._asked_by.clear()
        return True

    def _is_asked_by_lower(self) -> bool:
        return any(rank < self._comm.rank for rank in self._asked_by)

    def _ask(self, request: MPI.Request, what: str, patience_s: float) -> None:
        """Ask all other ranks where they are, and end the process if some are late.

        Returns if the collective ends meanwhile, if all missing ranks are busy, or the first time that all
        ranks are here.
        """
        others = set(range(self._comm.size)) - {self._comm.rank}
        self._here.clear()
        self._busy.clear()
        self._question += 1
        for rank in others:
            self._send(rank, _ASK, self._question)
        if self._ends_within(request, patience_s, lambda: not others - self._here - self._busy):
            return
        late = sorted(others - self._here - self._busy)
        if not late and (self._busy or not self._all_were_here):
            self._all_were_here = not self._busy
            return
        # Leave the report to a lower rank that has asked, too: when it exits, the launcher ends this rank.
        if self._is_asked_by_lower() and self._ends_within(request, _SPEAKER_S):
            return
        names = ", ".join(self._name_of(rank) for rank in late[:_MOST_NAMED])
        names = names or "no rank that can be named"
        if len(late) > _MOST_NAMED:
            names += f" and {len(late) - _MOST_NAMED} more"
        have = "has" if len(late) < 2 else "have"
        self._give_up(
            f"{what}: {names} {have} not come within {self._timeout_s:g} s; look there for the reason, "
            f"or raise {self._option} if this step takes long",
            late[0] if late else self._comm.rank,
        )

    def _ends_within(
        self,
        request: MPI.Request,
        seconds: float,
        is_enough: Callable[[], bool] = lambda: False,
    ) -> bool:
        """Return True if the collective ends in time.

        Args:
            request: The collective's request.
            seconds: Longest time to wait.
            is_enough: Returns True if there is no need to wait longer; then the result is False.
        """
        wait = Patience(seconds)
        while not wait.is_over and not is_enough():
            if request.Test():
                return True
            self._answer()
            time.sleep(_PAUSE_S)
        return False

    def _answer(self, state: int = _HERE) -> None:
        """Read all questions and answers that have arrived, and answer each question with `state`."""
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
        self._sends = [send for send in self._sends if not send[0].Test()]
        self._sends.append((self._comm.Isend(word, rank, _TAG), word))


class Effort:
    """The processor time of the thread that constructs this object; one other thread may read it."""

    def __init__(self) -> None:
        """Start to observe the calling thread."""
        self._clock = time.pthread_getcpuclockid(threading.get_ident())
        self._seen_ns = time.clock_gettime_ns(self._clock)
        self._at = patience.running_s()

    def idle_s(self) -> float:
        """Return the seconds since a call found that the thread had used the processor."""
        used_ns, now = time.clock_gettime_ns(self._clock), patience.running_s()
        if used_ns != self._seen_ns:
            self._seen_ns, self._at = used_ns, now
        return patience.waited_s(self._at)

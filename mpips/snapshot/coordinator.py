"""The scheduler's part of snapshots: it decides when there is a cut and at which clock, and counts results.

`mpips.snapshot` describes the protocol. Nothing here blocks: `poll` and the messages of workers and servers
drive the coordinator, one step each. Only the beginning and the end of a phase take a time that grows with
the number of workers and servers; polls and single messages do not.

A request to end the job after a checkpoint stays in force until a checkpoint is durable. Only the coordinator
writes and reads the request, and it runs on one thread, the scheduler's, so nothing has to be ordered. Every
cut ends in `_end`. If the cut is durable, `_end` raises LeavingError; otherwise it sets the time of the next
cut. Every durable cut that ends after the request fulfils it, whatever began the cut: a restart from it
repeats only the steps since then.

The pace of the workers and the age of a proposal are in running time (mpips.process.patience): while the job
is suspended no clock goes on, and no answer can come. Pauses and periods are in monotonic time.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from mpips.config.triggers import Triggers
from mpips.errors import CheckpointError, LeavingError
from mpips.model.best_value import BestValue
from mpips.mpi.messages import (
    HERE,
    LAST,
    ONLY,
    Abandon,
    Agreed,
    Ask,
    Commit,
    Propose,
    Saved,
    Taken,
    ToServer,
    ToWorker,
    Waits,
    Write,
)
from mpips.process.patience import is_over, running_s
from mpips.recovery.exchange import Exchange
from mpips.rundir.requests import BY_FILE, SCALE, SCALE_IN_MEMORY
from mpips.snapshot.best import BestRequest
from mpips.snapshot.cut import ClockPace, CutAttempt, ahead_of, late_text
from mpips.snapshot.end_request import EndRequest
from mpips.terminal.screen import say

# Why a launch of a replay ends if its next one continues from the checkpoint.
REPLAYED = "the replay {wrote}, from which its next launch begins"
_MARGIN = 2  # clocks, least distance of a proposed clock from the clocks of the workers
_GROWTH = 4  # factor on the margin after a worker had already passed a proposed clock


class Coordinator:
    """Decides on cuts, one at a time.

    There is one per job, on the scheduler's rank. It is not thread-safe, and no method blocks.

    Attributes:
        statistics: Numbers of cuts by result: "written", "failed" (not written), "given_up" (with a warning);
            "skipped": number of triggers that began no cut; "path": the last checkpoint, if there is one.
    """

    def __init__(
        self,
        triggers: Triggers,
        common_clock: bool,
        before: int,
        n_workers: int,
        n_servers: int,
        send_to_worker: Callable[[int, ToWorker], None],
        send_to_servers: Callable[[ToServer], None],
        timeout_s: float,
        warn: Callable[[str], None] | None = None,
        exchange: Exchange | None = None,
        again: str = "run again to continue",
    ) -> None:
        """Begin without a cut.

        Args:
            triggers: Reasons for checkpoints while the job trains.
            common_clock: True: all workers cut at the same clock (BSP, SSP); False: each at its next tick.
            before: Number of steps of the run before this launch.
            n_workers: Number of workers.
            n_servers: Number of servers.
            send_to_worker: Sends a message to the worker of this index; returns at once.
            send_to_servers: Sends a message to all servers; returns at once.
            timeout_s: Timeout of the job, seconds. A cut that is not agreed to after half of it is given up.
            warn: Prints a warning; None: to stderr.
            exchange: The exchange of the run, for a change of its size; None: no such change is possible.
            again: Text for people on the way to continue the job after a requested end; "": the supervisor
                prints it.
        """
        self._again = f"; {again}" if again else ""
        self._exchange = exchange or Exchange("", "the job has no supervisor")
        self._triggers = triggers
        self._common = common_clock
        self._before = before
        self._working = set(range(n_workers))
        self._n_servers = n_servers
        self._send_to_worker = send_to_worker
        self._send_to_servers = send_to_servers
        self._patience_s = timeout_s / 2
        self._warn = warn or _warn
        self._pace = [ClockPace() for _ in range(n_workers)]
        self._cut: CutAttempt | None = None
        self._last_id = 0
        self._requested: str | None = None  # reason of the next cut
        self._best = BestRequest(timeout_s / 4)
        self._ending = EndRequest()
        self._gathering: set[int] = set()  # workers in a gather where they cannot come to a cut
        self._only = ""  # the end of the job after the cut of `expect_only`; "": there is none
        self._aligned = False  # True: without a common clock, the next cut is at one clock
        self._margin = _MARGIN  # clocks
        self._next_time = time.monotonic() + triggers.every_s if triggers.every_s else None
        self._next_steps = self._multiple_after(0)
        self.statistics: dict[str, Any] = {"written": 0, "failed": 0, "given_up": 0, "skipped": 0}

    def begin_at(self, clock: int) -> None:
        """Set the clock at which the workers begin, about; cuts that were due before it are not taken."""
        self._next_steps = self._multiple_after(clock)
        for pace in self._pace:
            pace.clock, pace.since = clock, (clock, 0.0)

    def expect_only(self, why: str = REPLAYED) -> None:
        """Expect the one cut of a replay, and end the job after its checkpoint.

        `why`: the sentence with which it ends, with "{wrote}" for what was written.

        Workers and servers have the cut (mpips.mpi.messages.ONLY) from the record before they begin, each
        worker its own clock, so no message orders it. It is never given up for another one.
        """
        self._only = why
        self._last_id = ONLY.id
        self._cut = CutAttempt(ONLY.id, "end", 0, running_s(), "committed")
        self._ending.reason = "the end of a recorded attempt"

    @property
    def busy(self) -> bool:
        """True while a cut is under way: messages about it may still be sent to servers and workers."""
        return self._cut is not None

    def note_clock(self, worker: int, clock: int) -> None:
        """Store a worker's clock, from its heartbeat."""
        self._pace[worker].update(clock, running_s())

    def worker_done(self, worker: int) -> None:
        """Note that a worker has finished, which makes it ready for any later cut.

        It still answers a proposal that it was sent: the clock may be one before its last. Under BSP servers
        have taken its pushes of the last clock, and not applied them before the others end that clock, so a
        copy at the proposed one would lack them.

        When all workers have finished, a cut that is not copied yet is given up.
        """
        self._working.discard(worker)
        self._gathering.discard(worker)
        if self._working:
            return
        # All workers have finished: the checkpoint at the end replaces what is not copied yet.
        self._requested = None
        if self._cut is not None and self._cut.phase in ("proposed", "committed"):
            if self._only and self._only != REPLAYED:
                # The replay ends with its workers; servers write their copies then.
                self._cut, self._ending.reason = None, ""
                return
            self._give_up(quiet=True)

    def ask(self, ask: Ask) -> None:
        """Process a request for a checkpoint, from a worker, a signal or this process.

        Requests after the last worker has finished are dropped, and so are repetitions: the same step from
        another worker, the same signal from another rank.

        Args:
            ask: The request; `ask.at` is monotonic time of this process, seconds.
        """
        if not self._working:
            return
        if ask.best is not None:
            # All workers wait for this checkpoint. They do not come to the place of a cut that is not copied
            # yet, so that cut is given up; this checkpoint fulfils its request.
            self._best.wanted = ask.best
            if self._cut is not None and self._cut.phase in ("proposed", "committed"):
                self._give_up(quiet=True)
            return
        if ask.reason == "steps":
            if self._before + ask.clock < self._next_steps:
                return  # another worker has asked at this step already
            self._next_steps = self._multiple_after(ask.clock)
        if ask.reason in ("signal", "end") and not self._ending.note(ask, self._triggers.on_usr1):
            return
        if ask.reason == "end" and self._adopt():
            return
        self._request(ask.reason)

    def _adopt(self) -> bool:
        """End the job after the cut under way, and return True, if that cut does not wait for a later step.

        There may be no time for another cut.
        """
        cut = self._cut
        if cut is None or cut.phase == "abandoned" or (cut.reason == "planned" and not cut.taken):
            return False
        if cut.folder:
            # The cut of an exchange is no durable checkpoint.
            return False
        cut.reason = "end"
        return True

    def _request(self, reason: str) -> None:
        """Make this the reason of the next cut, or count it as skipped if a cut is under way or requested."""
        cut = self._cut
        # Replace a cut that still waits for its step.
        planned = cut is not None and cut.reason == "planned" and not cut.taken
        if (self._requested is None and (cut is None or planned)) or (
            reason in ("signal", "end") and self._ending.reason
        ):
            self._requested = reason
        else:
            self.statistics["skipped"] += 1
        if planned and cut is not None and cut.phase in ("proposed", "committed"):
            self._give_up(quiet=True)

    def poll(self) -> None:
        """Begin a cut that is due, or give up one whose proposal is not answered in time. Call it often."""
        now = time.monotonic()
        if self._next_time is not None and now >= self._next_time and self._working:
            self._next_time = now + self._triggers.every_s
            self._request("time")
        cut = self._cut
        if cut is not None and cut.phase == "proposed" and is_over(cut.since, self._patience_s):
            self._give_up()
        if (
            self._cut is None
            and self._working
            and not self._gathering
            and now >= self._ending.not_before
        ):
            self._begin(running_s())
        self._send_to_working(self._best.due(now, self._cut))

    def _send_to_working(self, message: ToWorker | None) -> None:
        for worker in self._working:
            if message is not None:
                self._send_to_worker(worker, message)

    def _begin(self, now: float) -> None:
        """Begin the requested cut, or plan one at the next multiple of `every_steps`; `now`: running s."""
        if self._best.wanted is not None:
            self._propose("best", HERE, now, self._best.take())
        elif self._requested is not None:
            reason, self._requested = self._requested, None
            at_one_clock = self._common or self._aligned
            self._propose(
                reason,
                self._ahead(now) if at_one_clock else 0,
                now,
            )
        elif self._common and self._triggers.every_steps:
            # Propose it long before a worker reaches it, so that no worker waits for the decision.
            passed = self._next_steps
            self._next_steps = max(
                passed,
                self._multiple_after(self._ahead(now) - 1),
            )
            self.statistics["skipped"] += (self._next_steps - passed) // self._triggers.every_steps
            self._propose("planned", self._next_steps - self._before, now)

    def _ahead(self, now: float) -> int:
        """Return a clock that probably no worker has reached yet."""
        return ahead_of([self._pace[w] for w in self._working], self._margin, now)

    def _multiple_after(self, clock: int) -> int:
        """Return the first multiple of `every_steps` after this clock, in steps of the run; 0: none."""
        n = self._triggers.every_steps
        return ((self._before + clock) // n + 1) * n if n else 0

    def _propose(self, reason: str, clock: int, now: float, best: BestValue | None = None) -> None:
        """Begin a cut: propose a clock to the workers, or commit at once where none can have passed it."""
        self._last_id += 1
        self._cut = cut = CutAttempt(self._last_id, reason, clock, now, "proposed", best=best)
        if best is None and self._ending.reason == SCALE_IN_MEMORY:
            cut.folder = self._exchange.open()
        if clock in (0, HERE):
            self._commit(cut)
            return
        cut.unanswered = set(self._working)
        self._send_to_working(Propose(cut.id, clock))

    def _commit(self, cut: CutAttempt) -> None:
        """Order servers to expect the cut and workers to make it."""
        cut.phase = "committed"
        self._send_to_servers(Commit(cut.id, cut.clock, cut.best, cut.folder))
        self._send_to_working(Commit(cut.id, cut.clock, folder=cut.folder))

    def agreed(self, worker: int, answer: Agreed) -> None:
        """Process a worker's answer to a proposal."""
        self._pace[worker].update(answer.clock, running_s())
        cut = self._cut
        if cut is not None and cut.id == answer.id and cut.phase == "proposed":
            cut.unanswered.discard(worker)
            if not answer.ok:
                cut.refused.add(worker)
            self._decide(cut)

    def _decide(self, cut: CutAttempt) -> None:
        """Commit the proposed cut when all workers at work have agreed; give it up if one has not."""
        if cut.unanswered:
            return
        if not cut.refused:
            self._margin = max(_MARGIN, self._margin // 2)
            self._commit(cut)
            return
        # A worker has passed the proposed clock: propose a later one, with a larger margin.
        self._margin = min(self._margin * _GROWTH, 1 << 20)
        self._requested = self._requested or (cut.reason if cut.reason != "planned" else None)
        self._give_up(quiet=True)

    def _give_up(self, quiet: bool = False) -> None:
        """Give the cut up. Servers that have the Commit answer with Saved before the next cut begins.

        Args:
            quiet: True: neither warn nor count, because the cut is no longer needed or begins again.
        """
        cut = self._cut
        assert cut is not None
        cut.quiet = quiet
        known, cut.phase = cut.phase, "abandoned"
        self._send_to_working(Abandon(cut.id))
        if known == "proposed":
            self._end(cut)
        else:
            self._send_to_servers(Abandon(cut.id))

    def waits(self, worker: int, message: Waits) -> None:
        """Process a worker's report that it waits, before its cut record or behind it.

        If both happen in one cut, no worker in it can continue; see mpips.snapshot. Then the cut is given up
        without a warning and begins again when the gather has ended. Without a common clock the next attempt
        is of the other kind: at one clock if this one was at each worker's next tick, and the reverse.
        """
        if message.how == "over":
            self._gathering.discard(worker)
            return
        if message.how == "before":
            self._gathering.add(worker)
        cut = self._cut
        if self._only or cut is None or cut.id != message.id or cut.phase != "committed":
            return
        if message.how == "behind":
            cut.behind.add(worker)
        # At a cut where all workers wait no worker is in a gather for long.
        if self._gathering and cut.behind and cut.best is None:
            self._aligned = not self._aligned
            self._requested = self._requested or (cut.reason if cut.reason != "planned" else None)
            self._give_up(quiet=True)

    def taken(self, server: int, taken: Taken) -> None:
        """Process a server's report that it has its copy, or that it cannot get one."""
        cut = self._cut
        if cut is None or cut.id != taken.id or cut.phase != "committed":
            return
        if not taken.ok:
            cut.why = taken.why
            self._give_up()
            return
        cut.taken.add(server)
        if len(cut.taken) == self._n_servers:
            cut.phase = "writing"
            self._send_to_servers(Write(cut.id))

    def saved(self, server: int, saved: Saved) -> None:
        """Process a server's report that it has ended its part of the cut.

        Raises:
            LeavingError: All servers have, the checkpoint is durable, and the job was to end after it.
        """
        if saved.id == LAST:
            self._warn(
                f"{saved.error}; the job waits and tries again: free space or remove the cause"
            )
            return
        cut = self._cut
        if cut is None or cut.id != saved.id:
            return
        cut.saved[server] = saved
        if len(cut.saved) == self._n_servers:
            self._end(cut)

    def _end(self, cut: CutAttempt) -> None:
        """End the cut under way: count its result, and warn if it gave no checkpoint.

        Raises:
            LeavingError: The checkpoint is durable and the job was to end after it.
        """
        self._cut = None
        self._send_to_working(self._best.end(cut))
        if cut.reason == "planned" and cut.phase == "writing":
            self._next_steps = self._multiple_after(cut.clock)
        if cut.phase == "abandoned":
            if not cut.quiet:
                self.statistics["given_up"] += 1
                why = cut.why or late_text(self._patience_s)
                self._report_failure(f"a checkpoint was given up: {why}")
            elif self._ending.reason and self._requested is None:
                self._requested = "end"
            return
        error = next((s.error for _, s in sorted(cut.saved.items()) if s.error), "")
        if cut.folder:
            if not error and self._ending.reason == SCALE_IN_MEMORY:
                raise LeavingError(f"{SCALE}: shared memory holds the job", in_memory=True)
            # Write a file at once. A signal after the request may come before the node's end.
            self._exchange.refuse(error or "a signal has asked for a checkpoint meanwhile")
            self._requested = "end"
            return
        if error:
            self.statistics["failed"] += 1
            self._report_failure(error)
            return
        self.statistics["written"] += 1
        self.statistics["path"] = cut.saved[0].path
        # A checkpoint is durable although old ones could not be removed.
        for _, saved in sorted(cut.saved.items()):
            if saved.note:
                self._warn(saved.note)
        if self._ending.reason:
            raise LeavingError(self._why_leaving(cut))

    def _why_leaving(self, cut: CutAttempt) -> str:
        """Return why the job ends after the checkpoint of this cut, which is in the folder of checkpoints."""
        reason, wrote = self._ending.reason, f"wrote checkpoint {cut.saved[0].path}"
        if self._only:
            return self._only.format(wrote=wrote)
        if reason == SCALE_IN_MEMORY:
            why = self._exchange.why_not or "it was being written when the request came"
            return f"{SCALE}: {wrote}{BY_FILE}{why}"
        again = "" if reason == SCALE else f", exit {LeavingError.exit_code}{self._again}"
        return f"{reason}: {wrote}{again}"

    def _report_failure(self, why: str) -> None:
        """Warn that a cut gave no checkpoint; if the job is to end, request another one after a pause.

        Raises:
            CheckpointError: The cut was the only one of a replay.
        """
        if self._only:
            raise CheckpointError(f"the replay cannot write its checkpoint: {why}")
        if not self._ending.reason:
            self._warn(f"{why}; training continues")
            return
        pause_s = self._ending.pause(time.monotonic())
        self._warn(f"{why}; the job is still to end and tries again in {pause_s:g} s")
        self._requested = self._requested or "end"


def _warn(sentence: str) -> None:
    say(f"mpips: warning: {sentence}")

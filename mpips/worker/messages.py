"""Messages of one worker to another: what Worker.send and Worker.recv do.

A message is received in the clock in which it was sent. So none is under way at the place of a cut, which is
at one clock of all workers, and a restart from a checkpoint repeats whole exchanges. Three rules keep that:

- A head contains the clock of the sender's program. A receive at another clock raises ConfigError.
- Without a common clock (all tables under ASP) each worker is cut at a clock of its own. Such a job may send
  messages only if it writes no checkpoints.
- A launch that continues in memory continues each worker where it was, perhaps at different clocks. The first
  message of a launch therefore refuses its memory: a later launch starts from a checkpoint.

While the worker waits here, it takes part in checkpoints as in a gather (`mpips.snapshot`), for the same
reason: it waits for workers, which may be held at their cut records.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from mpips.errors import ConfigError, StallError
from mpips.mpi.array_mail import MOST_DIMENSIONS
from mpips.process.patience import Patience
from mpips.terminal.screen import say

if TYPE_CHECKING:
    from mpips.mpi.array_mail import AnyArray, ArrayMail, ArrivedArray
    from mpips.worker.data_plane import WorkerWaits

# Bytes of messages to one worker that it has not received, above which `send` waits.
MOST_BYTES = 256 << 20
_KINDS = "biufc"  # kinds of dtypes that travel: bool, integers, floats, complex
_ASK_EVERY = 1 / 64  # share of the time limit between two questions to a late worker
_YIELDS = 5  # looks for a message between which a wait only yields the core
_PAUSE_S = 0.0002  # s between two later looks while values travel
# Where fewer cores than workers compute, a look every 0.2 ms takes an eighth of a core from them. The pause
# is therefore a share of what the wait has taken, so that no message is later by more than this share.
_PAUSE_SHARE = 1 / 32
_LONGEST_PAUSE_S = 0.002  # s, its limit


class ArrayMessages:
    """The messages of one worker. Not thread-safe.

    Attributes:
        text_of: Returns what a message with a tag contains, for errors; the tag itself as default.
    """

    def __init__(
        self,
        connection: WorkerWaits,
        mail: ArrayMail | None,
        names: Sequence[str],
        cuts_apart: bool,
        refuse_memory: Callable[[], None],
    ) -> None:
        """Use a mail.

        Args:
            connection: The worker's connection, whose waits and cuts are used.
            mail: Messages to other workers; None: this worker is the only one.
            names: Names of all workers, for errors.
            cuts_apart: Checkpoints are written, and each worker is cut at a clock of its own.
            refuse_memory: Keeps later launches from continuing in the memory of this one. Called before the
                first message.
        """
        self._connection = connection
        self._mail = mail
        self._names = names
        self._cuts_apart = cuts_apart
        self._refuse_memory = refuse_memory
        self._has_begun = False
        self.text_of: Callable[[int], str] = "tag {}".format

    def send(self, array: Any, to: int, tag: int) -> None:
        """Send a copy of an array; see Worker.send."""
        mail, to, tag = self._checked("send", to, tag)
        values = np.asarray(array)
        if values.dtype.kind not in _KINDS or values.ndim > MOST_DIMENSIONS:
            raise ConfigError(
                f"send to {self._names[to]}: an array of {values.dtype} with {values.ndim} dimensions: it "
                f"must contain numbers, in at most {MOST_DIMENSIONS} dimensions"
            )
        connection = self._connection
        if mail.unreceived_bytes(to) > MOST_BYTES:
            self._wait(
                to,
                lambda: mail.unreceived_bytes(to) <= MOST_BYTES,
                f"sending to worker {to} ({self.text_of(tag)})",
                lambda: (
                    f"{self._names[to]} has not received {mail.unreceived_bytes(to) >> 20} MiB of messages"
                ),
            )
        if mail.dropped_by is not None:
            raise ConfigError(self._dropped())
        mail.send(to, tag, connection.step, values)
        mail.glance()
        connection.leave()

    def recv(self, out: AnyArray | None, source: int, tag: int) -> AnyArray:
        """Receive an array; see Worker.recv."""
        mail, source, tag = self._checked("recv", source, tag)
        if out is not None and not (isinstance(out, np.ndarray) and out.flags.writeable):
            raise ConfigError(f"recv from {self._names[source]}: out must be a writeable array")
        mail.poll()
        message = mail.find(source, tag)
        if message is None or not message.complete():
            self._wait(
                source,
                lambda: self._has_come(source, tag),
                f"receiving from worker {source} ({self.text_of(tag)})",
                lambda: self._missing(source, tag),
            )
            message = mail.find(source, tag)
        assert message is not None
        self._check(message, out)
        mail.take(message)
        if out is not None:
            np.copyto(out, message.array)
        self._connection.leave()
        return message.array if out is None else out

    def poll(self) -> None:
        """Advance messages while the worker does something else. Cheap; for every wait."""
        if self._mail is not None:
            self._mail.glance()

    def advance(self) -> None:
        """Do the same as `poll` if this worker has exchanged arrays. Free otherwise; for every clock."""
        if self._has_begun and self._mail is not None:
            self._mail.glance()

    def end(self) -> None:
        """Note that the worker's program has ended: it receives nothing more. Returns at once."""
        if self._mail is not None:
            self._mail.end()

    def settle(self) -> None:
        """Wait until no message of this worker is under way. Call it when all workers have ended. Blocks.

        Raises:
            StallError: Some message was not taken within the job's timeout.
        """
        mail = self._mail
        if mail is None:
            return
        wait = Patience(self._connection.timeout_s)
        while not mail.is_idle:
            mail.poll()
            if wait.is_over:
                late = ", ".join(self._names[worker] for worker in mail.late())
                raise StallError(f"the last messages were not taken; late: {late}")
            time.sleep(_PAUSE_S)
        if mail.n_dropped:
            say(f"mpips: warning: {self._dropped()}")

    def _checked(self, what: str, worker: int, tag: int) -> tuple[ArrayMail, int, int]:
        """Return the mail and the arguments, if they are right and nothing forbids messages."""
        n, own = len(self._names), self._connection.index
        if self._mail is None:
            raise ConfigError(
                f"{what}: the job has one worker, which has no other worker to exchange arrays with"
            )
        if not _is_index(worker) or not 0 <= worker < n or worker == own:
            others = " or ".join(str(w) for w in range(n) if w != own) if n <= 4 else ""
            raise ConfigError(
                f"{what}: worker {worker!r}: must be the index of another worker, "
                + (others or f"0 to {n - 1}, not {own}")
            )
        if not _is_index(tag) or not 0 <= tag < 1 << 63:
            raise ConfigError(f"{what}: tag = {tag!r}: must be a whole number of 0 or more")
        self.begin(what)
        return self._mail, int(worker), int(tag)

    def begin(self, what: str) -> None:
        """Note that workers exchange values in each clock, before they do. `what` names the exchange.

        Later launches of a run then start from a checkpoint, where all workers are at one clock.

        Raises:
            ConfigError: The job's checkpoints have each worker at a clock of its own.
        """
        if self._has_begun or self._mail is None:
            return
        if self._cuts_apart:
            raise ConfigError(
                f"{what}: all tables are under ASP, so a checkpoint has each worker at a clock of its "
                "own, and messages would be lost at a restart: give a table BSP or SSP, or write no "
                "checkpoints"
            )
        self._refuse_memory()
        self._has_begun = True

    def _check(self, message: ArrivedArray, out: AnyArray | None) -> None:
        """Raise ConfigError if a message is of another clock, or does not fit `out`."""
        head, found = message.head, message.array
        where = f"recv from {self._names[head.sender]} ({self.text_of(head.tag)})"
        if head.clock != self._connection.step:
            raise ConfigError(
                f"{where}: this worker is at clock {self._connection.step}, and the message was sent at "
                f"clock {head.clock}: a message must be received at the clock at which it was sent"
            )
        if out is not None and (out.dtype, out.shape) != (found.dtype, found.shape):
            raise ConfigError(
                f"{where}: out is of {out.dtype} and shape {out.shape}, and the message of {found.dtype} "
                f"and shape {found.shape}: they must be equal"
            )

    def _has_come(self, source: int, tag: int) -> bool:
        assert self._mail is not None
        message = self._mail.find(source, tag)
        if message is not None:
            return message.complete()
        answer = self._mail.answer_of(source)
        # Notes of a worker arrive in their order, so all its messages came before this answer.
        if answer is not None and answer.has_ended:
            raise ConfigError(self._missing(source, tag))
        return False

    def _wait(
        self, worker: int, done: Callable[[], bool], state: str, late: Callable[[], str]
    ) -> None:
        """Wait for another worker.

        Args:
            worker: Its index.
            done: Returns True when the wait is over.
            state: Activity of this worker meanwhile.
            late: Returns the message of an error.
        """
        connection, mail = self._connection, self._mail
        assert mail is not None
        control = connection.control
        control.state, mail.awaited = state, worker
        mail.forget_answer(worker)
        interval_s = _ASK_EVERY * connection.timeout_s
        question, n_looks = Patience(interval_s), 0
        whole = Patience(connection.timeout_s)

        def is_over() -> bool:
            nonlocal question, n_looks
            control.poll()
            mail.poll()
            if done():
                return True
            connection.check_cut_in_gather()
            if question.is_over:
                question = Patience(interval_s)
                mail.ask(worker)
            n_looks += 1
            pause_s = _PAUSE_S if mail.is_moving else pause_after(whole.age_s)
            time.sleep(pause_s if n_looks > _YIELDS else 0)
            return done()

        try:
            connection.wait_until(is_over, late)
        finally:
            # A program may catch the error and go on: cuts must not wait for this receive.
            mail.awaited = None
            connection.snapshot.end_gather()
            control.state = "computing"

    def _missing(self, source: int, tag: int) -> str:
        """Return the message that nothing has come, with what the sender does, as far as is known."""
        assert self._mail is not None
        begun = self._mail.find(source, tag)
        what = (
            f"has sent no message with {self.text_of(tag)}"
            if begun is None
            else f"has not sent all of a message with {self.text_of(tag)}"
        )
        others = sorted(set(self._mail.tags_of(source)) - {tag})
        if others:
            what += f" (messages with {_listed(map(self.text_of, others[:4]))} wait to be received)"
        return f"{self._names[source]} {what}{self._doing(source)}"

    def _doing(self, worker: int) -> str:
        """Return the clause that contains the activity of a late worker, and of those it waits for."""
        assert self._mail is not None
        silent_s, answer = self._mail.silent_s(worker), self._mail.answer_of(worker)
        if silent_s > self._connection.timeout_s / 8:
            return f"; it does not answer, for {silent_s:.1f} s"
        if answer is None:
            return ""
        rows = [doing if w == worker else f"{self._names[w]}: {doing}" for w, doing in answer.rows]
        return f"; {'; '.join(rows)}"

    def _dropped(self) -> str:
        """Return the message that workers have ended without receiving messages."""
        assert self._mail is not None
        assert self._mail.dropped_by is not None
        n = self._mail.n_dropped
        return (
            f"{n} message{'s' if n > 1 else ''} of worker {self._connection.index} "
            f"{'were' if n > 1 else 'was'} not received: the program of "
            f"{self._names[self._mail.dropped_by]} ended before"
        )


def pause_after(waited_s: float) -> float:
    """Return the pause, in seconds, of a worker that has waited so long for a message."""
    return min(max(_PAUSE_S, _PAUSE_SHARE * waited_s), _LONGEST_PAUSE_S)


def _listed(words: Iterable[str]) -> str:
    *first, last = words
    return f"{', '.join(first)} and {last}" if first else last


def _is_index(value: object) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool)

"""The gate: which of two threads of a worker's process may call MPI.

MPI runs with MPI_THREAD_SERIALIZED: several threads may call it, but never two at once. A worker has two
threads that do: the program's thread, and the progress thread (progress.py). The gate is open or closed. The
progress thread calls MPI only while it is open, the program's thread only while it is closed.

    program's thread    close():  is_open = False; take and give back the lock; is_closed = True
                        open():   is_closed = False; is_open = True
    progress thread     a step:   with the lock: if is_open: call MPI without waiting

A step begins only if it reads `is_open` with the lock, so a step that began before `close` has ended when
`close` has taken the lock, and none begins after that until `open`. The interpreter's lock orders reads and
writes of the flags. A signal handler that raises may interrupt `close` and `open` anywhere: `is_closed` is
False until `close` has come to its end, so the next `close` starts again. The lock is never held between two
calls of mpips, so no exception leaves it locked. The wait in `close` ends with the step, which does not wait;
a step whose MPI call never returns ends the process (a guard of the watchdog).

The gate is closed unless something opens it: a look-ahead, when it yields a batch, and pulls, pushes and
clocks at their end while there is a look-ahead or torch's backward sends gradients (`Connection.leave`); and
waits for something else while there are orders (`Connection.poll`, at its end).
Every function of mpips that calls MPI in a worker's process calls `close` first:

    transport.remote    RemoteChannel: each public method but `advance`, some by RingPuts or by RemoteReads;
                        and the properties `writer`, `counting_writer` and `area`, since the progress thread
                        uses the writer
    mpi.control         Endpoint: send_to_all, receive, receive_none    (control messages, heartbeats)
    mpi.mail            Mail: tell, send, receive, poll                 (gathers, reductions, barriers)
    mpi.array_mail      ArrayMail: send, poll, end, ask, take           (Worker.send, Worker.recv)
    mpi.contributions   Contributions: _send, _drop_sent, is_received   (replicated tables)

`complete` of values in mail.py and array_mail.py, and `_take` in contributions.py run behind `poll` of the
same object, and nothing opens the gate in between. Calls of MPI before a worker's program begins or after it
has ended (start-up, the agreement on errors, shutdown) run without a progress thread: `Roles` ends it first.
Servers and schedulers have none. The watchdog's thread makes no MPI call. tests/mpi/test_progress.py finds
every call of MPI in a worker's process while it runs, and checks which thread makes it and whether the gate
is closed.

A program that calls MPI itself does so within `Worker.paused()`, or has no progress thread.
"""

from __future__ import annotations

import threading

from mpips.process import forked


class Gate:
    """The gate of one process. The program's thread calls `open` and `close`, at any time.

    Attributes:
        lock: Held by the progress thread during a step.
        thread: The progress thread, if it has been started.
        is_served: True while a progress thread takes care of transfers behind each call of mpips.
    """

    def __init__(self) -> None:
        """Make a closed gate."""
        self.is_served = False
        self.lock = threading.Lock()
        self.thread: threading.Thread | None = None
        self._is_open = False
        self._is_closed = True
        self._error: BaseException | None = None
        forked.register(self)

    @property
    def is_open(self) -> bool:
        """True if a step may begin; the progress thread reads it with the lock."""
        return self._is_open

    def open(self) -> None:
        """Let the progress thread call MPI, until `close`."""
        self._is_closed = False
        self._is_open = True

    def close(self) -> None:
        """Keep the progress thread from calling MPI; wait until its step has ended. Cheap if it is closed.

        Raises:
            BaseException: The error that has ended the progress thread; once.
        """
        if self._is_closed:
            return
        assert threading.current_thread() is not self.thread, "a step must not wait for its own end"
        self._is_open = False
        with self.lock:
            pass
        self._is_closed = True
        self.check()

    def fail(self, error: BaseException) -> None:
        """Store the error that ends the progress thread; the next `close` raises it."""
        self._error = error

    def check(self) -> None:
        """Raise the error that has ended the progress thread, once."""
        error, self._error = self._error, None
        if error is not None:
            raise error

    def disown(self) -> None:
        """Close the gate in a forked child, which has no progress thread; one may have held the lock."""
        self.is_served, self.thread = False, None
        self.lock = threading.Lock()
        self._is_open, self._is_closed, self._error = False, True, None

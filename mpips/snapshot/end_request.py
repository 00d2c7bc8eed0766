"""The request to end a job after a checkpoint, which stays in force until a checkpoint is durable."""

from __future__ import annotations

from mpips.mpi.messages import Ask

_ONE_SIGNAL_S = 1.0  # s within which requests of signals, from all ranks, count as one signal
_FIRST_PAUSE_S = 1.0  # s before the next attempt of a job that is to end; doubles with each failure
_LONGEST_PAUSE_S = 30.0  # s, limit of that pause


class EndRequest:
    """Signals that have requested a checkpoint, and the pauses between attempts of a job that is to end.

    Attributes:
        reason: Signal for which the job is to end after a checkpoint; "": none.
        not_before: Monotonic time before which no cut begins, seconds.
    """

    def __init__(self) -> None:
        """Begin without a request."""
        self.reason = ""
        self.not_before = 0.0
        self._pause_s = _FIRST_PAUSE_S
        self._signal_at = float("-inf")  # monotonic s of the last signal

    def note(self, ask: Ask, on_usr1: str) -> bool:
        """Store the request of a signal; return False if it repeats a request that is stored already.

        Args:
            ask: The request.
            on_usr1: The action after the checkpoint that SIGUSR1 requests: "continue" or "exit".
        """
        leave = ask.reason == "end" or on_usr1 == "exit"
        if ask.at < self._signal_at + _ONE_SIGNAL_S and (self.reason or not leave):
            return False
        self._signal_at = ask.at
        if leave:
            self.reason = ask.why or "a signal"
        return True

    def pause(self, now: float) -> float:
        """Let no cut begin for a while after a failure; return the pause, seconds. `now`: monotonic time."""
        pause_s = self._pause_s
        self.not_before = now + pause_s
        self._pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
        return pause_s

"""The record of a run by its supervisor: status.json between attempts, events.jsonl, and lines for people.

While an attempt is at work, its scheduler writes status.json; the supervisor writes it before and after. A
run directory that cannot be written to (a full disk, say) ends no run: the supervisor warns once and
continues.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable

import msgspec

from mpips.rundir.directory import RunFolder
from mpips.rundir.files import Event, StartPoint, Status


class RunRecord:
    """Writes the state of a run into its directory, and prints lines for people. Main thread only.

    Attributes:
        restarts: Restarts after failures up to now, for status.json.
    """

    def __init__(self, run: RunFolder, tell: Callable[[str], None]) -> None:
        """Write nothing yet. `tell` prints text for people."""
        self._tell = tell
        self.restarts = 0
        self._run = run
        self._warned = False
        self._printed: set[str] = set()

    def tell(self, text: str) -> None:
        """Print text for people. Errors of writing are ignored: the log may lie on a disk that is full."""
        with contextlib.suppress(OSError, ValueError):
            self._tell(text)

    def tell_once(self, line: str) -> None:
        """Print a line unless it was printed before."""
        if line not in self._printed:
            self._printed.add(line)
            self.tell(line)

    def warn(self, failure: str) -> None:
        """Print once that the run directory cannot be written to; nothing if `failure` is ""."""
        if failure and not self._warned:
            self._warned = True
            self.tell(
                f"mpips run: warning: {failure}; the run continues, but status.json and the lease are not "
                "updated: free space or make the directory writable"
            )

    def write_status(
        self, state: str, generation: int, last: Status | None = None, message: str = ""
    ) -> None:
        """Write status.json while no rank is there that would.

        Args:
            state: See `mpips.rundir.files.Status`.
            generation: Generation number of the attempt.
            last: The last status that its scheduler wrote.
            message: A sentence on the state.
        """
        before = last or Status(state=state, generation=generation, time_s=0.0, start=StartPoint())
        status = msgspec.structs.replace(
            before,
            state=state,
            generation=generation,
            time_s=time.time(),
            restarts=self.restarts,
            message=message,
            ranks=before.ranks if last is not None else (),
        )
        try:
            self._run.write_status(status)
        except OSError as error:
            self.warn(str(error))

    def note(
        self, event: str, generation: int, step: int = 0, cause: str = "", source: str = ""
    ) -> None:
        """Add a line to events.jsonl.

        Args:
            event: See `mpips.rundir.files.Event`.
            generation: Generation number of the attempt.
            step: The last step that it reported.
            cause: One sentence.
            source: See `mpips.rundir.files.Event`.
        """
        line = Event(
            time_s=time.time(),
            generation=generation,
            event=event,
            step=step,
            source=source,
            cause=cause,
        )
        try:
            self._run.note(line)
        except OSError as error:
            self.tell(
                f"mpips run: warning: {self._run.events_file}: cannot be written: {error.strerror}; this "
                "event is missing there"
            )

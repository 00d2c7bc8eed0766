"""When a job makes checkpoints while it trains."""

from __future__ import annotations

import signal
import threading
import time
from dataclasses import dataclass
from types import FrameType, TracebackType

from mpips.errors import ConfigError

ON_USR1 = ("continue", "exit")


@dataclass(frozen=True)
class Triggers:
    """What asks for a checkpoint, besides the end of training and a call.

    Attributes:
        every_steps: At each multiple of so many steps of the run; 0: not for this reason. Where workers
            keep no common clock (ASP), when the first of them comes there.
        every_s: After so many seconds; 0: not for this reason.
        on_usr1: What follows the checkpoint that SIGUSR1 asks for: "continue" or "exit" (code 75).
    """

    every_steps: int = 0
    every_s: float = 0.0
    on_usr1: str = "continue"

    def check(self, prefix: str = "") -> Triggers:
        """Itself, if all values are possible.

        Raises:
            ConfigError: Names the option, its value and what is accepted.
        """
        if self.every_steps < 0:
            raise ConfigError(f"{prefix}every_steps = {self.every_steps}: 0 and more is accepted")
        if not 0 <= self.every_s < 1e9:
            raise ConfigError(f"{prefix}every_s = {self.every_s:g}: 0 and more is accepted")
        if self.on_usr1 not in ON_USR1:
            names = ", ".join(ON_USR1)
            raise ConfigError(f"{prefix}on_usr1 = {self.on_usr1!r}: {names} are accepted")
        return self


class UserSignal:
    """SIGUSR1 in this process, while the block lasts. The handler only takes note of the time.

    Where this is not the main thread, the signal stays as it is.
    """

    def __init__(self, wanted: bool) -> None:
        """`wanted` False: the block changes nothing."""
        self._wanted = wanted and threading.current_thread() is threading.main_thread()
        self._at = 0.0

    def __enter__(self) -> UserSignal:
        """Take the signal over."""
        if self._wanted:
            self._old = signal.signal(signal.SIGUSR1, self._note)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        """Give it back."""
        if self._wanted:
            signal.signal(signal.SIGUSR1, self._old)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._at = time.time()

    def take(self) -> float:
        """When it came, in seconds since 1970, if it came since the last call; else 0."""
        at, self._at = self._at, 0.0
        return at

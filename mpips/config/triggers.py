"""When a job makes checkpoints while it trains."""

from __future__ import annotations

from dataclasses import dataclass, replace

from mpips.errors import ConfigError

ON_USR1 = ("continue", "exit")
SUPERVISED_EVERY_S = 600.0  # between checkpoints of a run of `mpips run` that says nothing of them


@dataclass(frozen=True)
class Triggers:
    """What asks for a checkpoint, besides the end of training and a call.

    Attributes:
        every_steps: At each multiple of so many steps of the run; 0: not for this reason. Where workers
            keep no common clock (ASP), when the first of them comes there.
        every_s: After so many seconds; 0: not for this reason.
        on_usr1: What follows the checkpoint that SIGUSR1 asks for: "continue" or "exit" (code 75).
        grace_s: How long a last checkpoint may take after SIGTERM or Ctrl-C; 0: there is none.
    """

    every_steps: int = 0
    every_s: float = 0.0
    on_usr1: str = "continue"
    grace_s: float = 25.0

    def supervised(self) -> Triggers:
        """The same, or with checkpoints every ten minutes where there are none while training."""
        if self.every_steps or self.every_s:
            return self
        return replace(self, every_s=SUPERVISED_EVERY_S)

    def check(self, prefix: str = "") -> Triggers:
        """Itself, if all values are possible.

        Raises:
            ConfigError: Names the option, its value and what is accepted.
        """
        if self.every_steps < 0:
            raise ConfigError(f"{prefix}every_steps = {self.every_steps}: must be 0 or more")
        if not 0 <= self.every_s < 1e9:
            raise ConfigError(f"{prefix}every_s = {self.every_s:g}: must be 0 or more")
        if not 0 <= self.grace_s <= 3600:
            raise ConfigError(f"{prefix}grace_s = {self.grace_s:g}: must be from 0 to 3600")
        if self.on_usr1 not in ON_USR1:
            names = ", ".join(ON_USR1)
            raise ConfigError(f"{prefix}on_usr1 = {self.on_usr1!r}: must be one of {names}")
        return self

"""The events that make a job write checkpoints while it trains."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

import msgspec
from msgspec import Meta

from mpips.config.conversion import checked
from mpips.errors import ConfigError

SUPERVISED_EVERY_S = 600.0  # s; time between checkpoints under `mpips run` if the job sets none

EverySteps: TypeAlias = Annotated[
    int,
    Meta(
        ge=0,
        description="Steps of the run between checkpoints: one is written at each multiple. Under ASP, where "
        "workers have no common clock, the first worker that reaches the multiple counts. 0: off.",
    ),
]
EverySeconds: TypeAlias = Annotated[
    float, Meta(ge=0, lt=1e9, description="Seconds between checkpoints. 0: off.")
]
OnUsr1: TypeAlias = Annotated[
    Literal["continue", "exit"],
    Meta(
        description="SIGUSR1 to any rank, or to mpirun, requests a checkpoint. Afterwards the job continues, "
        "or exits with code 75."
    ),
]
Grace: TypeAlias = Annotated[
    float,
    Meta(
        ge=0,
        le=3600,
        description="Seconds that the last checkpoint may take after SIGTERM or Ctrl-C. If it is written in "
        "time, the job exits with code 75. Choose less than the time that the batch system leaves before "
        "SIGKILL. 0: no last checkpoint, the job ends at once.",
    ),
]
Incremental: TypeAlias = Annotated[
    int,
    Meta(
        ge=0,
        le=100,  # a reader has the files of all links of a chain open
        description="N: every N-th checkpoint has whole tables, and those between only the rows and pieces "
        "of tables that have changed since the one before. They need the older ones, which `keep_last` does "
        "not remove. 0 and 1: all are whole.",
    ),
]

Compact: TypeAlias = Annotated[
    bool,
    Meta(
        description="With `incremental`: when a chain has N checkpoints, a process of low priority beside "
        "server 0 makes its last link whole, and the chain goes on from there. Servers then write whole "
        "tables only where a chain cannot go on, and after 2 N checkpoints of a chain (at most 100) that "
        "is not whole by then."
    ),
]


class Triggers(msgspec.Struct, frozen=True):
    """Events that request a checkpoint, besides the end of training and `Worker.checkpoint`, and its form.

    Attributes:
        every_steps: Steps of the run between checkpoints; 0: off. Under ASP, where workers have no common
            clock, the first worker that reaches a multiple counts.
        every_s: Seconds between checkpoints; 0: off.
        on_usr1: Action after the checkpoint that SIGUSR1 requests: "continue" or "exit" (code 75).
        grace_s: Seconds that the last checkpoint may take after SIGTERM or Ctrl-C; 0: no last
            checkpoint is written.
        incremental: N: every N-th checkpoint is whole, those between are links of a chain; 0 and 1: all are
            whole.
        compact: True: chains of N checkpoints are made whole in the background, and go on.
    """

    every_steps: EverySteps = 0
    every_s: EverySeconds = 0.0
    on_usr1: OnUsr1 = "continue"
    grace_s: Grace = 25.0
    incremental: Incremental = 0
    compact: Compact = False

    def supervised(self, leaves_on_usr1: bool = False) -> Triggers:
        """Return these triggers, with a checkpoint every ten minutes if none is written while training.

        Args:
            leaves_on_usr1: True: SIGUSR1 ends the job after its checkpoint, whatever `on_usr1` is.
        """
        found = self
        if not self.every_steps and not self.every_s:
            found = msgspec.structs.replace(found, every_s=SUPERVISED_EVERY_S)
        if leaves_on_usr1:
            found = msgspec.structs.replace(found, on_usr1="exit")
        return found

    def check(self, prefix: str = "") -> Triggers:
        """Return these triggers if all values are accepted.

        Args:
            prefix: Text in front of the name of the option in errors, with a dot at its end.

        Raises:
            ConfigError: Names the option, its value and what is accepted.
        """
        found = checked(self, prefix.removesuffix("."))
        if found.compact and found.incremental < 2:
            raise ConfigError(
                f"{prefix}compact = true needs {prefix}incremental = 2 or more: without it no checkpoint is "
                "a link of a chain"
            )
        return found

"""The switch of a job's tables from BSP to ASP at one server; native server_switch.cpp has the argument."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from mpips import _native
from mpips.errors import ConfigError
from mpips.model.consistency import UNEVEN, Switch
from mpips.model.job_tables import switch_of
from mpips.model.python_rule import PythonRule
from mpips.model.table import Table

# The measure of a plateau; see native/src/server/plateau.hpp.
EVERY = 8  # clocks from pair to pair
PAIRS = 8  # pairs of clocks of an estimate
RATIO = 1.0  # least ratio of the variance of a gradient of all workers to its squared norm
# The measure of uneven workers; see native/src/server/evenness.hpp.
FIRST = 16  # clocks of the first window
LONGEST = 256  # clocks of the longest windows
GAIN = 1.1  # least ratio of gradients per second under ASP to that under BSP


class SwitchDecision(NamedTuple):
    """The decision on the clock of the switch.

    Attributes:
        clock: Clock of the run at which ASP begins.
        reason: The measurement behind it; "" if another server, or an earlier launch, has measured.
    """

    clock: int
    reason: str


class SwitchControl:
    """Reports the switch, and if it is decided on the decision on its clock. For the server's loop alone.

    Attributes:
        decision: The decision that this server has taken or received in this launch; None: no such decision.
    """

    def __init__(
        self, core: _native.ServerCore, index: int, switch: Switch, tables: Sequence[Table]
    ) -> None:
        """Let server 0 measure, if its clock is decided on.

        Args:
            core: The native server, with all tables, before it starts.
            index: Index of the server.
            switch: The model of the job's tables.
            tables: All tables of the job.

        Raises:
            ConfigError: Server 0 has no part of a table that it can measure.
        """
        self._core = core
        self._is_adaptive, self._at = switch.is_adaptive, switch.at
        self.decision: SwitchDecision | None = None
        if not self._is_adaptive or index != 0:
            return
        if switch.at == UNEVEN:
            core.find_uneven(FIRST, LONGEST, GAIN)
            return
        if not any(measures(core, i, table) for i, table in enumerate(tables)):
            raise ConfigError(
                "Switch at a plateau: server 0, which measures it, has no part of a table with an optimizer "
                "of mpips; use fewer servers, or give the clock of the switch as a number"
            )
        core.find_plateau(EVERY, PAIRS, RATIO)

    def begin(self) -> None:
        """Take the state with which the launch begins: the core has started, or has taken over memory."""
        self._known = self._core.switch_at()
        self._has_switched = self._core.has_switched()

    def set(self, clock: int) -> None:
        """Begin with the clock of the run that was decided on before this launch, from a checkpoint."""
        if self._is_adaptive:
            self._core.set_switch(clock)
            self.begin()

    def hold(self, clock: int | None) -> None:
        """Decide on nothing and begin with a recorded decision, before any worker is at work.

        Args:
            clock: Clock of the run at which ASP begins; None: the recorded attempt had no decision.
        """
        if self._is_adaptive:
            self._core.hold_switch()
        if clock is not None:
            self.set(clock)

    @property
    def decided(self) -> int:
        """The clock of the run that was decided on; -1: it is fixed, or not decided on yet."""
        return (self._core.switch_at() or -1) if self._is_adaptive else -1

    @property
    def has_switched(self) -> bool:
        """True if the tables are under ASP."""
        return self._core.has_switched()

    def poll(self) -> list[str]:
        """Return lines for people about a decision, and about the switch, that are new. Cheap."""
        lines = []
        if not self._known and self._core.switch_at():
            self._known = self._core.switch_at()
            self.decision = SwitchDecision(self._known, self._reason())
            if self.decision.reason:
                lines.append(
                    f"clock of Switch(at={self._at!r}) is {self._known}: from this step of the run on "
                    f"consistency is ASP, BSP before it: {self.decision.reason}"
                )
        if not self._has_switched and self._core.has_switched():
            self._has_switched = True
            lines.append(
                f"consistency is ASP from step {self._known} of the run on, BSP before it: all workers "
                "have come to the clock of the switch"
            )
        return lines

    def _reason(self) -> str:
        if (last := self._core.evenness()) is not None:
            return (
                f"under ASP workers would push {last.gain:.2f} times as many gradients per second: of a "
                f"clock of {_ms(last.clock_s)} they need {_ms(last.fastest_s)} to {_ms(last.slowest_s)}, "
                f"worker {last.slowest} most, by {last.clocks} clocks at server 0"
            )
        found = self._core.plateau()
        if found is None or not any(found):
            return ""
        signal, noise = found
        return (
            f"the variance of the gradient of all workers is {noise:.4g}, its squared norm {signal:.4g}, by "
            "pairs of clocks at server 0"
        )


def _ms(seconds: float) -> str:
    """Return a time in milliseconds with three digits."""
    return f"{1e3 * seconds:.3g} ms"


def measures(core: _native.ServerCore, index: int, table: Table) -> bool:
    """Return True if a server measures its part of a table: it has one, and its pushes are gradients."""
    return core.optimizer(index) is not None and not isinstance(table.optimizer, PythonRule)


def switch_control(
    core: _native.ServerCore, index: int, tables: Sequence[Table]
) -> SwitchControl | None:
    """Return the control of a server; None: no table is under Switch."""
    switch = switch_of(tables)
    return None if switch is None else SwitchControl(core, index, switch, tables)

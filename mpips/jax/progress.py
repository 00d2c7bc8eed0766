"""The automatic reports of a JAX script: the learning rates at the newest step.

The scheduler counts steps by the clocks of workers. mpips sees neither the loss nor the data of a jitted
function: a script reports them by `mpips.report`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from mpips.session.library_progress import Known, LibraryProgress
from mpips.session.script import Script


class StepProgress(LibraryProgress):
    """The reports of one JAX script. No method blocks."""

    def __init__(self, script: Script, rates: Callable[[], Sequence[float]]) -> None:
        """Report nothing yet. `rates` returns the learning rates of the pytrees."""
        super().__init__(script)
        self._rates = rates

    def note_step(self) -> None:
        """Note a step."""
        self.n_steps += self.is_observed

    def known(self) -> Known:
        """See LibraryProgress."""
        return Known(rates=self._rates())

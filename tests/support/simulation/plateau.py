"""The clock of a Switch that is decided on, in histories: a short measure, and what the checker needs of it.

Every first estimate counts as a plateau or as uneven workers, so that server 0 decides within the few clocks
of a history. The checker asks server 0 for the clock, whatever workers and other servers have read.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

from mpips import _native
from mpips.model.consistency import Switch
from mpips.server import switch_control


class DrawnSwitch(switch_control.SwitchControl):
    """The control of a server, with a measure that the seed draws.

    Attributes:
        first: The core of server 0 in the newest launch; None: no launch has had such tables.
        decided: The clock of the run that the checker has seen decided; 0: none.
    """

    first: _native.ServerCore | None = None
    decided = 0
    draws = random.Random()

    def __init__(self, core: Any, index: int, switch: Switch, tables: Any) -> None:
        """Draw the numbers of the measure, and note server 0."""
        if index == 0:
            DrawnSwitch.first = core
        every, pairs = self.draws.choice((2, 2, 3)), self.draws.choice((1, 1, 2, 4))
        with (
            mock.patch.object(switch_control, "EVERY", every),
            mock.patch.object(switch_control, "PAIRS", pairs),
            mock.patch.object(switch_control, "RATIO", 0.0),
            mock.patch.object(switch_control, "FIRST", 2 * pairs),
            mock.patch.object(switch_control, "LONGEST", 2 * pairs),
            mock.patch.object(switch_control, "GAIN", 0.0),
        ):
            super().__init__(core, index, switch, tables)


@contextmanager
def drawn_switch(seed: int) -> Iterator[None]:
    """Within the block servers of histories decide soon."""
    DrawnSwitch.decided = 0
    DrawnSwitch.first, DrawnSwitch.draws = None, random.Random(f"measures {seed}")
    with mock.patch.object(switch_control, "SwitchControl", DrawnSwitch):
        yield


def end_of_bsp(consistency: Switch, clocks_before: int) -> int:
    """Return the clock of an era at which BSP ends; a huge one if it is not decided on yet."""
    if not isinstance(consistency.at, str):
        return max(0, consistency.at - clocks_before)
    at = _decided_now()
    return max(0, at - clocks_before) if at else 1 << 62


def check_start(consistency: object, is_warm: bool, clocks_before: int) -> None:
    """Check that a launch begins with the decision of the run, if it has the memory or the clocks behind it.

    Args:
        consistency: The model of the tables.
        is_warm: The launch continues in memory.
        clocks_before: Clocks of the run before its era.
    """
    if not isinstance(consistency, Switch) or not consistency.is_adaptive:
        DrawnSwitch.decided = 0
        return
    before, now = DrawnSwitch.decided, _decided_now()
    has_begun = is_warm or clocks_before >= before
    assert not before or not has_begun or now == before, (
        f"the run switches at clock {now}, and an earlier launch has decided on {before}"
    )


def _decided_now() -> int:
    """Return the clock of the run that is decided on; 0: none. Note it."""
    assert DrawnSwitch.first is not None
    DrawnSwitch.decided = DrawnSwitch.first.switch_at()
    return DrawnSwitch.decided

"""Defects of the decision on the clock of a switch that are planted into mpips; see planted.py."""

from __future__ import annotations

from typing import Any
from unittest import mock

from mpips import _native
from mpips.worker import agreed_switch
from simulation.plateau import DrawnSwitch


def _ticks_name_no_switch() -> list[Any]:
    """The ticks of workers do not name the clock on which server 0 has decided."""
    return [mock.patch.object(_native.RingWriter, "set_switch")]


def _ends_clocks_before_the_switch_is_known() -> list[Any]:
    """A worker does not wait for the decisions on the clock behind its own."""
    return [mock.patch.object(agreed_switch, "LEAD", 1000)]


def _forgets_the_clock_of_the_switch() -> list[Any]:
    """A job that starts from a checkpoint decides again."""
    return [mock.patch.object(DrawnSwitch, "set")]


PLATEAU_DEFECTS = (
    _ticks_name_no_switch,
    _ends_clocks_before_the_switch_is_known,
    _forgets_the_clock_of_the_switch,
)

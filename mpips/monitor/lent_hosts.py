"""Text about the hosts of an elastic run, for `mpips top`, `mpips ls` and the page of `mpips web`."""

from __future__ import annotations

import time
from collections.abc import Sequence

from mpips.monitor.progress import plural
from mpips.rundir.members import MemberRow
from mpips.terminal.units import age_text

_SHOWN = 4  # hosts of a source that are named


def host_lines(members: Sequence[MemberRow], now: float) -> list[str]:
    """Return a line for each source of hosts of a run that is alive.

    Args:
        members: The sources.
        now: Unix time, to which ages and the rest of time limits are relative.
    """
    return [f"{'hosts':<10}{_text(row, now)}" for row in members if row.state != "left"]


def _text(row: MemberRow, now: float) -> str:
    """Return one source, such as "node1, node2 (8 slots) in use, there for 5 min, until 12:30:00"."""
    names = ", ".join(row.hosts[:_SHOWN])
    if len(row.hosts) > _SHOWN:
        names += f" and {len(row.hosts) - _SHOWN} more"
    text = f"{names} ({plural(row.slots, 'slot')}) {row.state}"
    if row.state in ("in use", "ready", "leaving") and row.since_s:
        text += f", there for {age_text(now - row.since_s)}"
    if row.until_s is not None:
        text += f", until {time.strftime('%H:%M:%S', time.localtime(row.until_s))}"
    return f"{text}: {row.cause}" if row.cause else text

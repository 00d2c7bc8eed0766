"""Text about the programs of [producers], for `mpips top` and `mpips ls`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import get_args

from mpips.monitor.progress import plural
from mpips.rundir.producers import MemberName, MemberRecord

_SHOWN = 2  # members that have failed and are named


def producer_lines(members: Sequence[MemberRecord]) -> list[str]:
    """Return a line with the states of all members, and one for each of the first that have failed."""
    if not members:
        return []
    names: tuple[MemberName, ...] = get_args(MemberName)
    counts = {name: sum(each.state == name for each in members) for name in names}
    parts = [f"{n} {name}" for name, n in counts.items() if n]
    produced = sum(sum(each.produced) for each in members)
    restarts = sum(each.failures for each in members)
    parts += [f"{produced:,} samples"]
    parts += [plural(restarts, "failure")] if restarts else []
    lines = [f"{'producers':<10}{', '.join(parts)}"]
    failed = [each for each in members if each.cause]
    lines += [f"{'':<10}{each.cause}" for each in failed[:_SHOWN]]
    if len(failed) > _SHOWN:
        lines.append(f"{'':<10}and {len(failed) - _SHOWN} more, in producers.json")
    return lines

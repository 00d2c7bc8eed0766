"""The programs of [producers] of a run, for the page: a row for each member, and the logs of all."""

from __future__ import annotations

import re
from contextlib import suppress
from typing import Any

from mpips.errors import ConfigError
from mpips.monitor.logs import LogFile
from mpips.rundir.directory import RunFolder
from mpips.rundir.producers import MemberRecord, member_log, read_producers
from mpips.rundir.reading import names_in

_LOG = re.compile(r"member-(0|[1-9][0-9]{0,8})\.log")
# A cause ends with paths, which a page for others does not show.
_PATHS = re.compile(r"; log: | \(command ", re.S)
MOST_MEMBERS = 400  # rows and logs that are shown


def members_of(run: RunFolder) -> dict[str, Any]:
    """Return the first members as rows, and the number of all; {}: the run has none, or no state of them."""
    record = None
    with suppress(ConfigError, OSError):
        record = read_producers(run)
    if record is None or not record.members:
        return {}
    rows = [_row_of(member) for member in record.members[:MOST_MEMBERS]]
    return {"count": len(record.members), "rows": rows}


def _row_of(member: MemberRecord) -> dict[str, Any]:
    return {
        "member": member.member,
        "state": member.state,
        "restarts": max(member.starts - 1, 0),
        "failures": member.failures,
        "produced": sum(member.produced),
        "values": ", ".join(f"{name} = {value}" for name, value in member.values.items()),
        "cause": _PATHS.split(member.cause)[0],
    }


def member_logs(run: RunFolder) -> list[LogFile]:
    """Return the logs of the first members that have one.

    Raises:
        OSError: Their folder cannot be read, or it is a symbolic link.
    """
    try:
        found = map(_LOG.fullmatch, names_in(member_log(run, 0).parent, run.path))
    except FileNotFoundError:
        return []
    numbers = sorted(int(match[1]) for match in found if match is not None)
    return [
        LogFile(f"member {number}", member_log(run, number), run.path)
        for number in numbers[:MOST_MEMBERS]
    ]

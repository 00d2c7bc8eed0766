"""The exchange of a run: a checkpoint in shared memory, from which a launch of another size starts.

Memory that servers leave (mpips.recovery.memory) has the shape of their launch: its shards, and the rings of
its workers. A launch with other numbers of workers or servers cannot continue in it. So where a job changes
its size, its servers write the consistent cut into a folder in /dev/shm instead of the folder of checkpoints:
the exchange. It has the format of a checkpoint and is written and read by the same code, so the rules for
other numbers of workers and servers are those of checkpoints: values, optimizer states, residuals,
vocabularies, positions in the data and clocks. Nothing of it is on a disk.

All ranks of both launches must be on one node, and its memory must have room for a second copy of the tables
and, while servers write, for a third one. Otherwise the servers write a checkpoint as usual, and the reason
is printed.

Writers and readers. The servers of the old launch write a folder with a temporary name and rename it when it
is complete, so a launch that dies while it writes leaves no exchange that is read. The ranks of the old
launch leave only after that name exists. The ranks of the next launch only read it. They remove it at the end
of a start-up, in `Takeover.join`, after `memory.json` names that launch as the last one that has completed
its start-up: from then on a later launch continues in its memory. So at every moment at least one complete
copy of all acknowledged updates is there:

    until the exchange has its name             the memory of the old launch
    until `memory.json` names the new launch    the exchange, which any number of launches may read
    after it                                    the memory of the new launch

An exchange may also be stale, where the old launch died after it had its name but before all ranks had left.
Its memory then has more than the exchange. A launch of the old size continues in that memory and removes the
exchange by the same step of its start-up. A launch that must start from a checkpoint takes the exchange or
the newest file, whichever is newer.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from mpips.transport.region import EXCHANGE, SHM, new_name, own_folders


def find_exchange(token: str) -> Path | None:
    """Return the folder of a run's exchange on this node, or None.

    Args:
        token: Token of the run.
    """
    return next((path for part, path in own_folders(token) if part == EXCHANGE), None)


def remove_exchange(token: str) -> None:
    """Remove a run's exchange on this node, complete or not, if there is one. Blocks."""
    for part, path in own_folders(token):
        if part == EXCHANGE:
            shutil.rmtree(path, ignore_errors=True)


class Exchange:
    """The exchange that a launch may write, as its coordinator of cuts uses it.

    Only the thread of the scheduler uses it.

    Attributes:
        why_not: The reason why there can be no exchange, for people; "": there can be one.
    """

    def __init__(self, token: str, why_not: str = "") -> None:
        """Make nothing yet.

        Args:
            token: Token of the run.
            why_not: The reason why there can be none.
        """
        self._token = token
        self.why_not = why_not

    def open(self) -> str:
        """Return the path of the folder, made if it is missing; "" if there can be no exchange."""
        if self.why_not:
            return ""
        try:
            found = find_exchange(self._token)
            if found is None:
                found = SHM / new_name(self._token, EXCHANGE)
                found.mkdir(mode=0o700)
        except OSError as error:
            self.refuse(f"{SHM} cannot be written to: {error.strerror}")
            return ""
        return str(found)

    def refuse(self, why: str) -> None:
        """Remove what was written, and let `open` return "" from here on.

        Args:
            why: The reason, for people.
        """
        self.why_not = why
        remove_exchange(self._token)

"""The parts of what a worker's tables do together, each a folder of its own: one line here for each.

The module `start` of such a folder has two functions.

    memory(job)     the memory that the part takes on each node, for `mpips plan`
    connect(start)  makes the part of this rank's worker and puts it into `start.made`; collective, blocks

While the job is at work, a part is a `TablePart` (mpips.worker.table_part) of the worker's connection.
"""

from __future__ import annotations

from typing import Protocol

from mpips.worker.groups import start as groups
from mpips.worker.image import start as image
from mpips.worker.node_rows import start as node_rows
from mpips.worker.replicated import start as replicated
from mpips.worker.start import JobStart, NodeBytes, Planned


class PartStart(Protocol):
    """The interface of a part before the job is at work."""

    def memory(self, job: Planned) -> list[NodeBytes]:
        """Return the memory that the part takes on each node."""

    def connect(self, p: JobStart, /) -> None:
        """Make the part. Collective; blocks. The first error of any rank is raised on all ranks."""


# Residuals belong to the worker that leads its group.
PARTS: list[PartStart] = [replicated, groups, node_rows, image]


def memory(job: Planned) -> list[NodeBytes]:
    """Return the memory that all parts take on each node."""
    of_parts = [part.memory(job) for part in PARTS]
    return [
        NodeBytes(
            sum(m.shared for m in node), sum(m.private for m in node), sum(m.later for m in node)
        )
        for node in zip(*of_parts, strict=True)
    ]

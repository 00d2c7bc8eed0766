"""The limits that a job meets with more ranks: how many ranks of the same kind each of them allows.

Ranks are added node by node, as many on each as in the plan; the number of servers stays as it is configured,
or grows with the ranks by its default. Numbers of bytes are those of the functions that a job itself uses.
"""

from __future__ import annotations

import resource
from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec

from mpips import _native
from mpips.config.options import SessionOptions
from mpips.model.buffers import BufferShares
from mpips.model.placement import MOST_NUMBERED, ring_geometry
from mpips.model.table import DenseTable, Table
from mpips.mpi.roles import default_servers
from mpips.plan.needs import Needs

MOST_RANKS = 1 << 20  # limits beyond this number of ranks are not looked for
_OTHER_FILES = 256  # open files of a rank besides its connections


class Limit(NamedTuple):
    """A limit of the number of ranks.

    Attributes:
        n_ranks: Greatest number of ranks; MOST_RANKS: that many or more.
        what: Description of the capacity that is used up then.
    """

    n_ranks: int
    what: str


class Growth(msgspec.Struct, frozen=True):
    """A job of which only the number of ranks changes.

    Attributes:
        tables: Tables of the job.
        options: Options of the session.
        shares: Sizes of the buffers of the plan. More ranks get no more.
        needs: Needs of the plan.
        n_ranks: Number of ranks of the plan.
        per_node: Ranks on a node.
        n_samples: Samples of the training data.
        journal: Servers write a journal.
    """

    tables: Sequence[Table]
    options: SessionOptions
    shares: BufferShares
    needs: Needs
    n_ranks: int
    per_node: int
    n_samples: int
    journal: bool

    def servers(self, n_ranks: int) -> int:
        """Return the number of servers."""
        n_nodes = -(-n_ranks // self.per_node)
        return self.options.servers or default_servers(n_ranks, n_nodes)

    def workers(self, n_ranks: int) -> int:
        """Return the number of workers."""
        return max(1, n_ranks - 1 - self.servers(n_ranks))

    def shared(self, n_ranks: int) -> int:
        """Return the bytes in /dev/shm of the fullest node."""
        n_servers, n_workers = self.servers(n_ranks), self.workers(n_ranks)
        held = sum(server.parameters for server in self.needs.servers) // n_servers
        layout = self._layout(n_servers, n_workers, self.shares.rings)
        each = layout.total_bytes + held + (_native.journal_bytes(layout) if self.journal else 0)
        here = -(-n_servers // -(-n_ranks // self.per_node))
        mine = self.needs.worker_staging + (self.needs.worker_residuals if self.journal else 0)
        return here * each + (self.per_node - here) * mine

    def least_buffers(self, n_ranks: int) -> int:
        """Return the bytes of buffers with which a node of the job can do at least."""
        n_servers, options = self.servers(n_ranks), self.options
        here = -(-n_servers // -(-n_ranks // self.per_node))
        rings = self._layout(n_servers, self.workers(n_ranks), 0).tables_offset
        return here * rings + (self.per_node - here) * ((options.staging_mib or 1) << 20)

    def _layout(self, n_servers: int, n_workers: int, rings: int) -> _native.Layout:
        """Return the layout of a server without tables, whose rings have so many bytes together."""
        longest = max((t.n_elements for t in self.tables if isinstance(t, DenseTable)), default=0)
        geometry = ring_geometry(
            self.tables,
            -(-longest // n_servers),
            n_workers,
            self.shares.n_slots,
            self.shares.slot_bytes,
            rings,
        )
        return _native.Layout(n_workers, len(self.tables), geometry, [])

    def memory(self, n_ranks: int) -> int:
        """Return the bytes of memory of the fullest node, /dev/shm included."""
        private = max(s.private * len(self.needs.servers) for s in self.needs.servers)
        here = -(-self.servers(n_ranks) // -(-n_ranks // self.per_node))
        data = self.needs.worker_data * self.workers(self.n_ranks) // self.workers(n_ranks)
        data += self.needs.worker_common + (0 if self.journal else self.needs.worker_residuals)
        program = self.per_node * (self.needs.program + data)
        return self.shared(n_ranks) + program + here * private // self.servers(n_ranks)


def limits(job: Growth, shm: int, memory: int, open_files: int | None = None) -> list[Limit]:
    """Return the limits, the one that is met first at the front.

    Args:
        job: The job.
        shm: Bytes of /dev/shm of a node.
        memory: Bytes of memory of a node.
        open_files: Files that a process may have open; None: as on this machine.
    """
    files = open_files or resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    checks: list[tuple[str, Callable[[int], bool]]] = [
        (
            f"/dev/shm of a node has {shm / 2**30:,.1f} GiB for rings, parameters and staging",
            lambda n: job.shared(n) <= shm,
        ),
        (
            f"a node has {memory / 2**30:,.1f} GiB of memory",
            lambda n: job.memory(n) <= memory,
        ),
        (
            f"a server has a connection to each worker and may open {files:,} files (over TCP)",
            lambda n: files == resource.RLIM_INFINITY or n + _OTHER_FILES <= files,
        ),
        (
            f"records can number {MOST_NUMBERED:,} workers",
            lambda n: job.workers(n) <= MOST_NUMBERED,
        ),
        (
            f"the training data has {job.n_samples:,} samples, and every worker needs one",
            lambda n: job.workers(n) <= job.n_samples,
        ),
    ]
    budget = job.options.node_buffers_mib
    if budget is not None:
        checks.append(
            (
                f"cluster.node_buffers_mib = {budget:,} for the buffers of a node",
                lambda n: job.least_buffers(n) <= budget << 20,
            )
        )
    found = [Limit(_greatest(fits, 2), what) for what, fits in checks]
    return sorted(found)


def _greatest(fits: Callable[[int], bool], least: int) -> int:
    """Return the greatest number of ranks that fits; `least` if not even that does."""
    if fits(MOST_RANKS):
        return MOST_RANKS
    low, high = least, MOST_RANKS
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low

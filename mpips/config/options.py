"""Options of a session: the [cluster] table of a job file, and keyword arguments of `mpips.run`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal, NamedTuple

import msgspec
from msgspec import Meta

from mpips.config.conversion import checked


class TransportTraits(NamedTuple):
    """The properties of a transport that start-up needs before workers and servers are connected.

    Attributes:
        needs_window: It uses an MPI window over the servers' regions, which all ranks make together.
        shares_memory: Workers on the node of a server use the server's shared memory.
    """

    needs_window: bool
    shares_memory: bool


# By the names that SessionOptions.transport accepts. With shm, too, a window is made.
TRANSPORTS = {
    "auto": TransportTraits(needs_window=True, shares_memory=True),
    "shm": TransportTraits(needs_window=True, shares_memory=True),
    "rma": TransportTraits(needs_window=True, shares_memory=False),
    "p2p": TransportTraits(needs_window=False, shares_memory=False),
    "local": TransportTraits(needs_window=False, shares_memory=True),
}


class SessionOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """[cluster], or keyword arguments of `mpips.run`: servers, transport and memory of a session."""

    servers: Annotated[
        int,
        Meta(
            ge=0,
            le=65535,
            description="Number of server ranks. 0: a quarter of the ranks, at least one per node.",
        ),
    ] = 0
    transport: Annotated[
        Literal["auto", "shm", "rma", "p2p", "local"],
        Meta(
            description="Transport between workers and servers. auto: shm within a node, rma between nodes, "
            "p2p where the MPI cannot make a window. Any other name is used for all pairs; local is for a "
            "job of one rank."
        ),
    ] = "auto"
    timeout_s: Annotated[
        float,
        Meta(
            ge=0.1,
            le=1e7,
            description="Seconds after which a wait ends with an error. Choose more than the longest step "
            "takes.",
        ),
    ] = 300.0
    node_buffers_mib: Annotated[
        Annotated[int, Meta(ge=1, le=1 << 24)] | None,
        Meta(
            description="MiB of shared memory on a node that buffers take at most, beside the tables: rings, "
            "rendezvous buffers, staging memory, and rows that workers of a node sum or read for each other. "
            "`mpips plan` prints the share of each. The last bits of results can depend on it, as on "
            "`group_rows_mib`. Default: the sum of the defaults of all, which grows with the ranks."
        ),
    ] = None
    ring_slots: Annotated[
        Annotated[int, Meta(ge=2, le=1 << 16)] | None,
        Meta(
            description="Records that a worker can have in flight at one server. Default: 32, fewer where "
            "many workers share a server's 512 MiB for rings, or its share of `node_buffers_mib`."
        ),
    ] = None
    slot_kib: Annotated[
        Annotated[int, Meta(ge=1, le=1 << 16)] | None,
        Meta(
            description="Size of a record in KiB. Larger pushes are sent in segments. Default: 128, less for "
            "small dense tables, or where many workers share a server's memory for rings."
        ),
    ] = None
    staging_mib: Annotated[
        Annotated[int, Meta(ge=1, le=1 << 24)] | None,
        Meta(
            description="MiB that `Worker.allocate` can allocate in one worker. Pages are taken when they "
            "are allocated. Default: 1024, or a share of `node_buffers_mib`."
        ),
    ] = None
    seed: Annotated[
        int,
        Meta(
            ge=0,
            le=2**63 - 1,
            description="Seed of the initial values, and of the order of samples in `mpips train`.",
        ),
    ] = 0
    topology: Annotated[
        Literal["flat", "node", "auto"] | tuple[tuple[int | tuple[int, ...], ...], ...],
        Meta(
            description="Workers whose updates are summed before they are sent: of dense tables and rows "
            "under BSP, and of dense tables under SSP and ASP with plain SGD. flat: none. node: those of a "
            "node. auto: those of a node where that is faster, by measured bandwidths. A list such as "
            "[[0, 1, 2], [3, 4, 5]]: groups by index of the worker. [[[0, 1], [2, 3]]]: one group whose two "
            "subgroups sum first, such as the nodes of a rack. The last bits of results depend on it."
        ),
    ] = "flat"
    group_rows_mib: Annotated[
        Annotated[int, Meta(ge=0, le=1 << 20)] | None,
        Meta(
            description="MiB of shared memory of each worker in a group, for the rows of embedding tables "
            "under BSP that it pushes in two clocks. Rows beyond half of it are pushed by the worker itself. "
            "0: groups sum no rows. The last bits of results depend on it. Default: 16, or a share of "
            "`node_buffers_mib`."
        ),
    ] = None
    checksums: Annotated[
        bool,
        Meta(
            description="Add checksums also to records within a node, and to large updates between nodes, "
            "whose arrival the worker waits for. All other records between nodes always have checksums."
        ),
    ] = False

    REMOVED: ClassVar[Mapping[str, str]] = {
        "remote_staging_mib": "rendezvous buffers have a share of node_buffers_mib; set that, or delete it",
        "lookahead_mib": "rows that workers of a node read for each other have a share of node_buffers_mib; "
        "set that, or delete it",
    }

    @property
    def sums_rows(self) -> bool:
        """True if groups of workers sum rows of embedding tables, where there are such rows."""
        return self.group_rows_mib != 0

    @property
    def slot_bytes(self) -> int:
        """Size of a record in bytes; 0: `mpips.model.placement.ring_geometry` chooses it."""
        return (self.slot_kib or 0) << 10

    def check(self) -> SessionOptions:
        """Return these options if all values are accepted.

        Raises:
            ConfigError: Names the option, its value and what is accepted.
        """
        return checked(self)

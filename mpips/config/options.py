"""How a session runs: the values of the [cluster] table of a job, and keyword arguments of `run`."""

from __future__ import annotations

import difflib

import msgspec

from mpips.errors import ConfigError

TRANSPORTS = ("auto", "shm", "rma", "p2p", "local")


class SessionOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Options of a session.

    Attributes:
        servers: Number of server ranks; 0 chooses: a quarter of the ranks, at least one a node.
        transport: "auto" (shm on a node, rma between nodes, p2p where no window can be made), or one
            of "shm", "rma", "p2p", "local" for all pairs.
        timeout_s: Seconds after which a wait ends with an error. Longer than the longest step.
        ring_slots: Records that a worker may have under way at a server.
        slot_kib: KiB of one record; larger pushes are sent in segments.
        staging_mib: MiB that `Worker.allocate` can give out; pages are taken when allocated.
        remote_staging_mib: MiB of each server for large dense pushes of workers on other nodes; each of
            them gets room for two of the longest, or its share of this. 0: such pushes go through rings.
        seed: Of initial values, and of the order of samples in `mpips train`.
        checksums: Also on records within a node, and on large updates between nodes that are waited for
            until they have arrived; all other remote records have them anyway.
    """

    servers: int = 0
    transport: str = "auto"
    timeout_s: float = 300.0
    ring_slots: int = 32
    slot_kib: int = 128
    staging_mib: int = 1024
    remote_staging_mib: int = 256
    seed: int = 0
    checksums: bool = False

    def check(self) -> SessionOptions:
        """Itself, if all values are possible.

        Raises:
            ConfigError: Names the option, its value and what is accepted.
        """
        if self.transport not in TRANSPORTS:
            near = difflib.get_close_matches(self.transport, TRANSPORTS, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise ConfigError(
                f"transport = {self.transport!r}: must be one of {', '.join(TRANSPORTS)}{hint}"
            )
        bounds = {
            "servers": (0, 65535),
            "timeout_s": (0.1, 1e7),
            "ring_slots": (2, 1 << 16),
            "slot_kib": (1, 1 << 16),
            "staging_mib": (1, 1 << 24),
            "remote_staging_mib": (0, 1 << 24),
            "seed": (0, 2**63 - 1),
        }
        for name, (low, high) in bounds.items():
            value = getattr(self, name)
            if not low <= value <= high:
                raise ConfigError(f"{name} = {value}: must be from {low} to {high}")
        return self

"""Sizes of the buffers of a job: decided at start-up, and the same for all attempts of a run.

The sizes of a job with `cluster.node_buffers_mib` depend on the spread of its ranks over the nodes. A later
attempt continues in memory with rings of the former sizes, even where the ranks of a lost node are elsewhere.
So a run directory stores the first decision. An attempt with the same tables, options and numbers of workers
and servers uses it again, even if a node then exceeds the budget.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from mpips.errors import ConfigError
from mpips.rundir.directory import Supervised, read_json, replace_json
from mpips.rundir.files import BuffersChoice

if TYPE_CHECKING:
    from mpips.model.buffers import BufferShares
    from mpips.mpi.one_rank import Ranks
    from mpips.worker.buffers import JobBuffers


def decide_shares(
    ranks: Ranks, buffers: JobBuffers, run: Supervised | None, digest: str
) -> tuple[BufferShares, list[str]]:
    """Return the sizes of the buffers of a job with a budget, and notes for people. Collective; blocks.

    Args:
        ranks: All ranks.
        buffers: The buffers of the job.
        run: The supervised run of which this launch is an attempt.
        digest: Checksum of tables, options and groups, the same on all ranks.

    Raises:
        ConfigError: The budget is too small.
    """
    a = ranks.assignment
    key = f"{digest} {len(a.servers)} {len(a.workers)}"
    stored = _stored(ranks, run, key)
    if stored is not None:
        return stored, []
    shares = buffers.shares()
    return shares, _store(ranks, run, BuffersChoice(digest=key, shares=shares))


def _stored(ranks: Ranks, run: Supervised | None, key: str) -> BufferShares | None:
    """Return the decision of an earlier attempt, or None. Collective."""
    if run is None:
        return None

    def read() -> dict[str, Any] | None:
        if not ranks.is_scheduler:
            return None
        try:
            found = read_json(run.folder.buffers_file, BuffersChoice)
        except ConfigError:
            return None  # damaged: decide anew
        if found is None or found.digest != key:
            return None
        plain: dict[str, Any] = msgspec.to_builtins(found)
        return plain

    rows = ranks.agree("reading buffers.json", read)
    row = next((row for row in rows if row is not None), None)
    return None if row is None else msgspec.convert(row, BuffersChoice).shares


def _store(ranks: Ranks, run: Supervised | None, choice: BuffersChoice) -> list[str]:
    """Write the decision into the run directory; return notes for people. Collective."""
    if run is None:
        return []

    def write() -> str:
        path = run.folder.buffers_file
        if ranks.is_scheduler:
            try:
                replace_json(path, choice, durable=True)
            except OSError as error:
                return f"{path}: cannot be written ({error.strerror}): a restart decides anew"
        return ""

    return [note for note in ranks.agree("writing buffers.json", write) if note]

"""The arithmetic of every rank: roles and placement at the start of a job, the plan of a checkpoint."""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Callable
from typing import Generic, TypeVar

import msgspec

from mpips.checkpoint.manifest import MOST_APPLIED, ShardEntry, WorkerState
from mpips.checkpoint.plan import Hello, plan_tables
from mpips.checkpoint.shards import ManifestHead
from mpips.config.options import SessionOptions
from mpips.model.optimizer import Adam
from mpips.model.placement import Placement, place
from mpips.model.table import DenseTable, EmbeddingTable, Table
from mpips.mpi.roles import Assignment, assign

_RANKS_PER_NODE = 48
_OPTIONS = SessionOptions()
_TABLES: list[Table] = [
    DenseTable("dense", (1 << 26,), Adam(1e-3)),
    EmbeddingTable("rows", 16, Adam(1e-3)),
]
_CURSOR = {"epoch": 3, "step": 12_345, "at": 678}
_RANDOM = {"bit_generator": "PCG64", "state": {"state": 2**127 - 1, "inc": 2**127 - 1}}
Value = TypeVar("Value")


def measure(n_workers: int, n_servers: int) -> dict[str, float]:
    """Return what start-up and a checkpoint of a job of this size cost one rank. Blocks for seconds.

    Args:
        n_workers: Number of workers.
        n_servers: Number of servers.

    Returns:
        `startup_s` and `startup_bytes`, for roles and placement, `checkpoint_s` and `checkpoint_bytes`, for
        the plan of a checkpoint: seconds of processor time, and bytes that the result takes in memory;
        `manifest_bytes`, size of the workers' states in a manifest.
    """
    size = 1 + n_servers + n_workers
    node_of = [rank // _RANKS_PER_NODE for rank in range(size)]
    names = [f"node{k:05}" for k in range(node_of[-1] + 1)]
    roles = _Work(lambda: assign(node_of, names, n_servers))
    placement = _Work(lambda: _place(roles.value))
    checkpoint = _Work(lambda: _plan(placement.value, n_workers))
    return {
        "startup_s": roles.seconds + placement.seconds,
        "startup_bytes": roles.n_bytes + placement.n_bytes,
        "checkpoint_s": checkpoint.seconds,
        "checkpoint_bytes": checkpoint.n_bytes,
        "manifest_bytes": float(len(msgspec.json.encode(_workers(n_workers)))),
    }


class _Work(Generic[Value]):
    """A piece of work: its value, its processor time, and the memory that the value takes."""

    def __init__(self, work: Callable[[], Value]) -> None:
        start = time.thread_time()
        self.value = work()
        self.seconds = time.thread_time() - start
        # Do it again for its memory, because the count of allocations takes time.
        tracemalloc.start()
        second = work()
        self.n_bytes = float(tracemalloc.get_traced_memory()[0])
        tracemalloc.stop()
        del second


def _place(a: Assignment) -> Placement:
    placement = place(
        _TABLES,
        len(a.servers),
        len(a.workers),
        _OPTIONS.ring_slots,
        _OPTIONS.slot_bytes,
        a.near_workers(_OPTIONS.transport),
        256 << 20,
    )
    # A worker asks each server's layout for its own mailbox.
    for layout in placement.layouts:
        layout.mailbox_offset(len(a.workers) - 1)
    return placement


def _workers(n: int) -> list[WorkerState]:
    return [WorkerState(worker=w, clock=9, cursor=_CURSOR, random=_RANDOM) for w in range(n)]


def _plan(placement: Placement, n_workers: int) -> object:
    """Plan the file from the messages of all servers, as every server does."""
    head = ManifestHead("run", 0, 0, 0.0, _TABLES, _workers(n_workers), {})
    few = n_workers * placement.n_servers <= MOST_APPLIED
    dense = {part.server: part for part in placement.dense["dense"]}
    hellos = []
    for server in range(placement.n_servers):
        part = dense[server]
        shards = {
            "dense": [ShardEntry(server=server, version=0, start=part.start, stop=part.stop)],
            "rows": [ShardEntry(server=server, version=0, rows=1000)],
        }
        hellos.append(Hello(("run", 0, 0), "none", shards, [0] * n_workers if few else []))
    return hellos, plan_tables(head, hellos)

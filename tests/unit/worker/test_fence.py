"""Before the tick of a clock is sent to one server, what stands before it is in the memory of all."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from fake_network import KINDS, remote
from harness import TIMEOUT_S, dense, rows

from mpips.errors import StallError
from mpips.model.placement import place
from mpips.scheduler.own_worker import OwnWorker
from mpips.server.server import Server
from mpips.transport.region import Regions, new_token
from mpips.worker.connection import Connection
from mpips.worker.connection_options import ConnectionOptions
from mpips.worker.worker import Worker

N_SLOTS = 64
PUSH_DENSE, PUSH_ROWS, TICK = 1, 2, 4
FIRST = 1  # flag of a record


class TwoServers:
    """Worker 0 and two servers that consume nothing, so that their memory tells what has arrived."""

    def __init__(
        self, kind: str, seed: int, writes_position: bool, timeout_s: float = TIMEOUT_S
    ) -> None:
        self.tables = [dense(2000), rows(4)]
        placement = place(self.tables, 2, 1, N_SLOTS, 8192)
        self.regions = Regions(new_token(), shared=False)
        self.ends = [self._end(s, placement) for s in range(2)]
        pairs = [remote(end, seed=seed + s, kind=kind) for s, end in enumerate(self.ends)]
        self.networks = [network for network, _ in pairs]
        # What one server's worker waits for gives time to the other's messages as well.
        self.networks[0].networks = self.networks[1].networks = self.networks
        for network in self.networks:
            network.on_piece = self.check
        self.connection = Connection(
            0,
            ["worker 0"],
            self.tables,
            [channel for _, channel in pairs],
            OwnWorker(),
            None,
            timeout_s,
            ConnectionOptions(writes_position=writes_position),
        )
        self.worker = Worker(self.connection, self.tables, placement)
        self.pushes: list[int] = []  # records of pushes of each clock, at either server
        self.early = 0  # looks at a tick that had overtaken what stands before it

    def _end(self, index, placement):
        server = Server(index, self.tables, placement, self.regions, 0, True, None)
        return SimpleNamespace(
            server=server,
            region=server.region,
            layout=server.layout,
            tables=self.tables,
            n_workers=1,
            drain=lambda: 0,
        )

    def records(self, end):
        """(kind, clock) of the records that stand in a ring, up to the first gap."""
        layout, ring = end.layout, end.layout.geometry
        box = end.region.view(layout.mailbox_offset(0), ring.mailbox_bytes, False)
        found = []
        for q in range(N_SLOTS):
            stamp = ring.stamps_offset + q * ring.record_stride
            slot = ring.slots_offset + q * ring.record_stride
            if int(box[stamp : stamp + 8].view(np.uint64)[0]) != q + 1:
                break
            found.append((int(box[slot + 3]), int(box[slot + 32 : slot + 40].view(np.uint64)[0])))
        return found

    def check(self):
        there = [self.records(end) for end in self.ends]
        for mine, other in (there, there[::-1]):
            ticks = [clock for kind, clock in mine if kind == TICK]
            if ticks:
                pushed = [r for r in other if r[0] in (PUSH_DENSE, PUSH_ROWS) and r[1] <= ticks[-1]]
                self.early += len(pushed) < sum(self.pushes[: ticks[-1] + 1])

    def run(self, clocks):
        worker, keys = self.worker, np.arange(40)
        for clock in range(clocks):
            worker.table("w").push(np.ones(2000, np.float32))
            worker.table("e").push(keys, np.ones((40, 4), np.float32))
            # Both tables lie half on each server; each part is one record.
            self.pushes.append(2)
            worker.clock()
            assert worker.now == clock + 1
            for _ in range(20):
                self.networks[0].wander()


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("kind", KINDS)
def test_no_tick_overtakes_what_stands_before_it_at_another_server(kind, seed):
    job = TwoServers(kind, seed, writes_position=True)
    job.run(8)
    assert job.early == 0


@pytest.mark.parametrize("kind", KINDS)
def test_without_memory_that_outlives_the_launch_no_worker_waits(kind):
    overtaken = 0
    for seed in range(6):
        job = TwoServers(kind, seed, writes_position=False)
        job.run(8)
        overtaken += job.early
    # The check above can fail: here ticks do overtake.
    assert overtaken > 0


def test_a_server_that_confirms_nothing_is_named():
    job = TwoServers("rma", 0, writes_position=True, timeout_s=0.5)
    job.networks[1].fenced = lambda: False
    with pytest.raises(StallError, match=r"server 1 has not confirmed that records of worker 0"):
        job.run(1)


@pytest.mark.parametrize("kind", KINDS)
def test_a_fence_that_is_asked_for_while_one_is_open_covers_later_records(kind):
    """A wait that has given up leaves its fence open, and its program goes on."""
    job = TwoServers(kind, 0, writes_position=True)
    channel, network, end = job.connection.channels[0], job.networks[0], job.ends[0]
    network.wander = lambda: None
    channel.writer.tick(0)
    channel.begin_fence()
    assert not channel.wait_fence(0.0)
    channel.writer.tick(1)
    channel.begin_fence()
    network.wander = lambda: network.arrive(min(1, len(network.messages)))
    assert channel.wait_fence(TIMEOUT_S)
    assert job.records(end) == [(TICK, 0), (TICK, 1)]
    channel.begin_fence()
    assert not network.messages, "nothing was written since, so there is nothing to ask"

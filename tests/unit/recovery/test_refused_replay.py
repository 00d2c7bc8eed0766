"""Repeated pushes after a warm restart beside updates that are refused, and in a ring without room."""

from __future__ import annotations

import itertools
import types
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from harness import dense
from journal_rig import Rig

from mpips.model.consistency import ASP, BSP
from mpips.scheduler.own_worker import OwnWorker
from mpips.transport.channel import ShmChannel
from mpips.transport.region import unlink_job
from mpips.worker.connection import Connection
from mpips.worker.paths.ring import RingPath
from mpips.worker.worker import Worker

PROGRAM = [1.0, np.nan, 10.0, np.inf]
NUMBERS = itertools.count()  # of memory in this process
MODELS = {"asp": ASP(), "bsp": BSP("sum")}
Push = Callable[[np.ndarray], None]


@pytest.fixture
def make_rig() -> Iterator[Callable[..., Rig]]:
    rigs: list[Rig] = []

    def make(model: Any, **options: Any) -> Rig:
        rigs.append(Rig(dense(8, "a", consistency=model), **options))
        return rigs[-1]

    yield make
    for rig in rigs:
        rig.leave()
        unlink_job(rig.token)


def through_the_ring(rig: Rig) -> Push:
    """Push as to a server on another node."""
    channel = types.SimpleNamespace(writer=rig.writer)
    path = RingPath(types.SimpleNamespace(channels=[channel], now=0), 0, 0, True)

    def push(update: np.ndarray) -> None:
        if path.push(update, None, True) is None:
            raise ValueError

    return push


def through_a_handle(rig: Rig, staged: bool = False) -> Push:
    """Push as to a server on this node."""
    staging = rig.regions.create_sparse(f"w0-{next(NUMBERS)}", 1 << 16)
    rig.core.set_staging(0, staging)
    channel = ShmChannel(rig.server.region, rig.layout, rig.writer, 1, True)
    connection = Connection(0, ["worker 0"], rig.tables, [channel], OwnWorker(), staging, 5.0)
    worker = Worker(connection, rig.tables, rig.placement)
    handle = worker.table("a")

    def push(update: np.ndarray) -> None:
        if staged:
            memory = worker.allocate(8)
            memory[:] = update
            update = memory
        handle.push(update)

    return push


WAYS: dict[str, Callable[[Rig], Push]] = {
    "ring": through_the_ring,
    "handle": through_a_handle,
    "staged": lambda rig: through_a_handle(rig, staged=True),
}


def outcomes(push: Push) -> list[bool]:
    """Run a program that goes on without updates that are refused; return which were sent."""
    sent = []
    for value in PROGRAM:
        try:
            push(np.full(8, value, np.float32))
            sent.append(True)
        except ValueError:
            sent.append(False)
    return sent


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
def test_an_update_that_is_refused_is_none_of_the_repeated_pushes(make_rig, model, way):
    rig = make_rig(model, n_slots=16)
    assert outcomes(WAYS[way](rig)) == [True, False, True, False]
    rig.drain()
    for generation in (1, 2):
        rig.repeat(generation)
        assert rig.writer.replays
        assert outcomes(WAYS[way](rig)) == [True, False, True, False]
        rig.drain()
    rig.writer.tick(0)
    rig.drain()
    assert rig.core.dense_values(0)[0] == -11


@pytest.mark.parametrize("staged", [False, True])
def test_a_push_that_the_server_has_needs_no_room(make_rig, staged):
    """Its ring is full of later records, which wait for another worker, which may wait for this one."""
    rig, update = make_rig(BSP("sum"), n_slots=4, n_workers=2), np.ones(8, np.float32)
    for writer in rig.writers:
        assert writer.push_dense(0, 0, update, None, 0) == 8
        assert writer.tick(0)
    rig.drain()
    while writer.applied >= 0 and writer.credits:
        assert writer.push_dense(0, 1, update, None, 0) == 8  # behind worker 0, whose turn it is
    rig.drain()
    del writer
    rig.repeat()
    writer = rig.writers[1]

    def push(clock: int) -> bool | None:
        if staged:
            return writer.push_staged(0, clock, 0, None, 8) or None
        return writer.push_whole(0, clock, update, True)

    assert writer.credits == 0
    assert push(0)
    writer.tick(0)
    assert [push(1) for _ in range(4)] == [True] * 4
    assert push(1) is None  # a new one

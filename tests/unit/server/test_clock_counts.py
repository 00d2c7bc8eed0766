"""The lowest clock that servers publish is that of all workers, in whatever order they tick and finish."""

from __future__ import annotations

import random

import numpy as np
import pytest
from harness import Rig, dense
from journal_rig import Rig as JournalRig

from mpips import _native
from mpips.model.consistency import ASP, BSP, SSP
from mpips.transport.region import unlink_job

FINISHED = 2**64 - 1
CLOCKS = 6


def published(server, layout, n_workers):
    """Return the lowest clock in the head of table 0, and the clocks of all workers."""
    head = _native.read_head(server.region, layout.head_offset(0))
    raw = server.region.view(layout.clocks_offset, n_workers * _native.CLOCK_LINE_BYTES, False)
    lines = np.array(raw).view(np.uint64).reshape(n_workers, -1)
    return head[1], [int(clock) for clock in lines[:, 0]]


def play(rng, writers, drain, check, clocks=None):
    """Let workers tick and finish at random, and check after each look of the server."""
    clocks = clocks or [0] * len(writers)
    working = list(range(len(writers)))
    while working:
        w = rng.choice(working)
        if clocks[w] < CLOCKS and rng.random() < 0.9:
            if not writers[w].tick(clocks[w]):
                drain()
                continue
            clocks[w] += 1
        elif writers[w].finish(clocks[w]):
            working.remove(w)
        if rng.random() < 0.5:
            drain()
            check()
    drain()
    check()


@pytest.mark.parametrize("model", [ASP(), SSP(2), BSP(), BSP(backup=1), BSP(backup=2)], ids=str)
@pytest.mark.parametrize("seed", range(5))
def test_the_lowest_published_clock_is_that_of_the_slowest_worker(model, seed):
    rig = Rig(dense(4, consistency=model), n_workers=5, n_slots=4)

    def check():
        least, clocks = published(rig, rig.layout, 5)
        assert least == min(clocks)

    play(random.Random(seed), rig.writers, rig.drain, check)
    assert published(rig, rig.layout, 5) == (FINISHED, [FINISHED] * 5)
    closed = rig.core.version(0)
    assert closed == (0 if not isinstance(model, BSP) else closed)
    assert closed >= (CLOCKS - 1 if isinstance(model, BSP) and not model.backup else 0)


@pytest.mark.parametrize("model", [ASP(), BSP(), BSP(backup=1)], ids=str)
@pytest.mark.parametrize("seed", range(4))
def test_counts_of_a_server_that_was_taken_over_go_on(model, seed, request):
    rng = random.Random(seed)
    rig = JournalRig(dense(4, consistency=model), n_workers=3, n_slots=16)
    request.addfinalizer(lambda: unlink_job(rig.token))
    for w in range(3):
        for clock in range(rng.randrange(3) + (w == 0)):
            assert rig.writers[w].tick(clock)
        if rng.random() < 0.3:
            rig.drain()
    rig.drain()
    positions = rig.repeat(skips_clocks=bool(getattr(model, "backup", 0)))

    def check():
        least, clocks = published(rig.server, rig.layout, 3)
        assert least == min(clocks)

    check()
    play(rng, rig.writers, rig.drain, check, [at["clock"] for at in positions])
    assert published(rig.server, rig.layout, 3)[0] == FINISHED

"""push_pull over a network that delays, reorders and tears: whole values of the clock in any order."""

from __future__ import annotations

import numpy as np
import pytest
from fake_network import KINDS, Network, by_turns, remote
from harness import Rig, dense, floats, rows

from mpips.errors import ConfigError, MpipsError
from mpips.model.consistency import BSP
from mpips.transport.remote import RemoteChannel
from mpips.worker.by_use import PullsByUse
from mpips.worker.paths import rendezvous
from mpips.worker.worker import Worker, connection_of

# One record, several, several messages, and a rendezvous in several segments. bf16 has small whole numbers.
LENGTHS = (5, 700, 9_000, 70_001, 5_001, 20_000)
CODECS: list[dict[str, str]] = [
    {},
    {},
    {},
    {},
    {"compression": "bf16"},
    {"pull_compression": "bf16"},
]
NAMES = [f"t{i}" for i in range(len(LENGTHS))]
N_WORKERS = 3
N_CLOCKS = 3
KEYS = np.arange(4)
LONG = 400_000  # more than the messages that may be under way


def update(w: int, clock: int, i: int) -> np.ndarray:
    return floats(LENGTHS[i], 1000 * w + 10 * clock + i)


def make_rig(n_slots: int, slot_bytes: int) -> Rig:
    tables = [
        dense(n, name, consistency=BSP("sum"), **codec)
        for n, name, codec in zip(LENGTHS, NAMES, CODECS, strict=True)
    ]
    return Rig(
        *tables,
        rows(2, consistency=BSP("sum")),
        n_workers=N_WORKERS,
        n_slots=n_slots,
        slot_bytes=slot_bytes,
        remote=range(N_WORKERS),
        remote_staging_bytes=N_WORKERS * (1 << 20),
    )


def program(worker: Worker, channel: RemoteChannel, seed: int) -> int:
    """Push and pull by use, in an order of its own; the steps of a progress thread are between its calls."""
    random = np.random.default_rng([seed, worker.index])
    totals = [np.zeros(n, np.float32) for n in LENGTHS]
    staged = [worker.allocate(n) for n in LENGTHS]
    n_looks, pulls = 0, None

    def compute() -> None:
        for _ in range(int(random.integers(0, 4))):
            channel.advance()

    for clock in range(N_CLOCKS):
        own = random.permutation(len(LENGTHS))[: int(random.integers(1, len(LENGTHS) + 1))]
        updates = {NAMES[i]: update(worker.index, clock, i) for i in own}
        others = [NAMES[i] for i in range(len(LENGTHS)) if i not in own]
        if random.random() < 0.5:
            if pulls is not None:
                pulls.finish()
            for i in own:
                staged[i][:] = updates[NAMES[i]]
                updates[NAMES[i]] = staged[i]
        worker.table("e").push(KEYS, np.full((4, 2), 1 + worker.index, np.float32))
        for name in others:
            worker.table(name).push(update(worker.index, clock, NAMES.index(name)))
        outs = {NAMES[i]: np.full(LENGTHS[i], np.nan, np.float32) for i in own}
        pulls = worker.push_pull(updates, outs if random.random() < 0.5 else None)
        for i in range(len(LENGTHS)):
            totals[i] -= sum(update(w, clock, i) for w in range(N_WORKERS))
        compute()
        if random.random() < 0.3:
            found = worker.table("e").pull(KEYS)
            assert (found == -(clock + 1) * sum(range(1, N_WORKERS + 1))).all()
        for i in random.permutation(len(LENGTHS))[: int(random.integers(0, len(LENGTHS)))]:
            by_use = NAMES[i] in updates and random.random() < 0.8
            values = pulls.wait(NAMES[i]) if by_use else worker.table(NAMES[i]).pull()
            assert (values == totals[i]).all()
            n_looks += 1
            compute()
    for i, name in enumerate(NAMES):
        assert (worker.table(name).pull() == totals[i]).all()
    connection_of(worker).finish()
    return n_looks


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("ring", [(4, 1024), (32, 16 << 10)], ids=["small", "large"])
def test_workers_with_different_orders_over_a_bad_network_get_the_values_of_the_clock(
    seed: int, kind: str, ring: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rendezvous, "SEGMENT_FLOATS", 20_000)
    rig = make_rig(*ring)
    made = [remote(rig, w, 10 * seed + w, kind=kind)[1] for w in range(N_WORKERS)]
    workers = [rig.worker(w, channel=channel, timeout_s=30.0) for w, channel in enumerate(made)]
    pairs = zip(workers, made, strict=True)
    n_looks = by_turns(rig, seed, [lambda w=w, c=c: program(w, c, seed) for w, c in pairs])
    assert sum(n_looks) > 0
    for i, name in enumerate(NAMES):
        assert rig.core.stats(i)["pushed"] == N_CLOCKS * N_WORKERS, name


@pytest.fixture
def lone() -> tuple[Rig, Network, Worker]:
    """Return a rig, and one of its two workers over a network on which nothing moves by itself."""
    rig = Rig(
        dense(LONG, consistency=BSP("sum")),
        dense(3, "x", consistency=BSP("sum")),
        n_workers=2,
        n_slots=64,
        slot_bytes=16 << 10,
        staging_bytes=4 << 20,
    )
    network, channel = remote(rig, drain=False)
    network.late = True
    return rig, network, rig.worker(channel=channel, timeout_s=5.0)


def test_a_heartbeat_does_not_wait_for_orders(lone: tuple[Rig, Network, Worker]) -> None:
    _, network, worker = lone
    network.pace, network.drains = 0.0, False
    network.wander = lambda: None  # type: ignore[method-assign]
    worker.push_pull({"w": floats(LONG)})
    connection = connection_of(worker)
    orders = connection.channels[0].orders
    assert orders is not None
    figures = connection.figures()
    assert not orders.is_empty
    assert figures.records == connection.channels[0].counting_writer.next_sequence > 0


def test_orders_go_on_while_the_worker_waits_for_something_else(
    lone: tuple[Rig, Network, Worker],
) -> None:
    rig, network, worker = lone
    worker.push_pull({"w": floats(LONG)})
    connection = connection_of(worker)
    orders = connection.channels[0].orders
    assert orders is not None
    n_polls = 0

    def done() -> bool:
        nonlocal n_polls
        n_polls += 1
        network.arrive()
        rig.drain()
        return orders.is_empty

    assert not orders.is_empty
    connection.wait_until(done, lambda: "orders")
    assert n_polls < 100


def test_a_push_that_closes_a_table_waits_for_its_values(lone: tuple[Rig, Network, Worker]) -> None:
    """Else the server could send some of the values of the clock before, and some of this clock."""
    rig, network, worker = lone
    network.late = False
    network.drains = True
    table, other = worker.table("w"), rig.worker(1)
    out = np.full(LONG, np.nan, np.float32)
    connection = connection_of(worker)
    PullsByUse.asked(connection, {"w": (table, out)})
    assert np.isnan(out).any()
    assert table.order(np.ones(LONG, np.float32), 0)
    assert (out == 0).all()
    update = other.allocate(LONG)
    update[:] = 1.0
    other.table("w").push(update, closes=True)
    worker.clock()
    other.clock()
    assert (table.pull() == -2).all()
    assert (out == 0).all()


@pytest.mark.parametrize("place", ["begin_orders", "advance_orders"])
def test_an_order_that_is_cut_off_counts_once(
    place: str, lone: tuple[Rig, Network, Worker], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*arguments: object) -> None:
        raise KeyboardInterrupt

    _, _, worker = lone
    table, connection = worker.table("w"), connection_of(worker)
    with monkeypatch.context() as patch:
        patch.setattr(connection.channels[0], place, interrupted)
        with pytest.raises(KeyboardInterrupt):
            table.order(floats(LONG), 0)
    if place == "begin_orders":
        assert table.order(floats(LONG), 0)
    else:
        with pytest.raises(MpipsError, match="an earlier push to table 'w' of worker 0 was inter"):
            table.order(floats(LONG), 0)


def test_values_that_another_request_fails_to_ask_for_are_still_waited_for(
    lone: tuple[Rig, Network, Worker],
) -> None:
    _, network, worker = lone
    network.late = False
    connection, table = connection_of(worker), worker.table("w")
    out, wrong = np.full(LONG, np.nan, np.float32), np.empty(4, np.float32)
    with pytest.raises(ValueError, match="shape"):
        PullsByUse.asked(connection, {"w": (table, out), "x": (worker.table("x"), wrong)})
    assert connection.coming is not None
    connection.coming.finish()
    assert (out == 0).all()


def test_only_tables_with_an_update_can_be_waited_for(lone: tuple[Rig, Network, Worker]) -> None:
    _, network, worker = lone
    network.late = False
    pulls = worker.push_pull({"w": floats(LONG)})
    for look in (pulls.wait, pulls.test):
        with pytest.raises(ConfigError, match="must be one of the tables of push_pull: w"):
            look("x")

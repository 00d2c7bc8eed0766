"""Placement of tables: every element on exactly one server, no overlap in a region."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from harness import dense, make_writer, rows
from hypothesis import given, settings
from hypothesis import strategies as st

from mpips import _native
from mpips.errors import ConfigError
from mpips.model import placement as placement_module
from mpips.model.consistency import BSP
from mpips.model.optimizer import SGD, Adagrad, Adam, RowAdagrad
from mpips.model.placement import (
    LEAST_RING_BYTES,
    RINGS_BYTES,
    area_bytes,
    embedding_memory,
    place,
)
from mpips.model.row_limits import Idle, MaxBytes, MaxRows, MinCount
from mpips.model.stages import servers_of
from mpips.model.table import DenseTable, EmbeddingTable
from mpips.mpi.roles import assign
from mpips.scheduler.own_worker import OwnWorker
from mpips.server.server import Server
from mpips.transport.channel import LocalChannel
from mpips.transport.region import Regions, new_token
from mpips.worker.connection import Connection
from mpips.worker.worker import Worker, connection_of

SIZES = st.lists(st.integers(1, 70_000), min_size=1, max_size=6)


def tables_of(sizes, stages=(None,)):
    partitions = itertools.cycle(["range", "layer"])
    rules = itertools.cycle([SGD(), Adam()])
    return [
        DenseTable(f"t{i}", (n,), optimizer=rule, partition=partition, stage=stage)
        for i, (n, partition, rule, stage) in enumerate(
            zip(sizes, partitions, rules, itertools.cycle(stages), strict=False)
        )
    ]


@settings(deadline=None)
@given(
    sizes=SIZES,
    n_servers=st.integers(1, 9),
    stages=st.sampled_from([(None,), (0, 1), (None, 0, 1, 2), (2, 1, 0)]),
)
def test_every_element_lies_on_exactly_one_server(sizes, n_servers, stages):
    placement = place(tables_of(sizes, stages), n_servers, 2, 4, 1024)
    for i, n in enumerate(sizes):
        parts = placement.dense[f"t{i}"]
        edges = sorted((part.start, part.stop) for part in parts)
        assert [edges[0][0], *(stop for _, stop in edges)] == [
            *(start for start, _ in edges),
            n,
        ]
        assert all(start < stop for start, stop in edges)
        servers = [part.server for part in parts]
        assert len(set(servers)) == len(servers)
        assert set(servers) <= set(range(n_servers))
        if i % 2:
            assert len(parts) == 1


def test_tables_of_a_stage_lie_on_its_servers_if_each_stage_has_as_many():
    tables = tables_of([70_000] * 4, (None, 0, 1, 1))

    def servers(n_servers):
        dense = place(tables, n_servers, 2, 4, 1024).dense
        return [sorted({part.server for part in dense[table.name]}) for table in tables]

    # As many servers as stages, and twice as many. The second and last table are not cut into pieces.
    assert servers(2) == [[0, 1], [0], [1], [1]]
    whole, first, second, third = servers(4)
    assert whole == [0, 1, 2, 3]
    assert second == [1, 3]
    assert len(first) == len(third) == 1
    assert first[0] in (0, 2)
    assert third[0] in (1, 3)
    # With other numbers all servers take part.
    assert servers(3)[2] == [0, 1, 2]
    assert servers(1) == [[0]] * 4


def test_the_servers_of_a_stage_are_on_the_nodes_of_its_workers():
    for n_stages, pipelines in ((2, 1), (4, 1), (3, 2)):
        n = n_stages * pipelines
        node_of = [0, *(rank // 2 for rank in range(2 * n))]
        roles = assign(node_of, [f"node{k}" for k in range(n)], n)
        for stage in range(n_stages):
            its = servers_of(stage, n_stages, n)
            workers = [w for w in range(n) if w % n_stages == stage]
            assert [node_of[roles.servers[k]] for k in its] == [
                node_of[roles.workers[w]] for w in workers
            ]


@settings(deadline=None)
@given(
    sizes=SIZES,
    n_servers=st.integers(1, 4),
    n_workers=st.integers(1, 7),
    n_slots=st.integers(2, 33),
    lines=st.integers(4, 40),
    replies=st.booleans(),
    remote=st.sets(st.integers(0, 6)),
)
def test_no_two_parts_of_a_region_overlap(
    sizes, n_servers, n_workers, n_slots, lines, replies, remote
):
    tables = tables_of(sizes) + ([rows(1, "e")] if replies else [])
    near = [[w for w in range(n_workers) if w not in remote]] * n_servers
    placement = place(tables, n_servers, n_workers, n_slots, 64 * lines, near, 1 << 20)
    for server, layout in enumerate(placement.layouts):
        ring = layout.geometry
        pieces = [(0, 64), (layout.awaited_offset, 64)]
        pieces.append((layout.clocks_offset, n_workers * _native.CLOCK_LINE_BYTES))
        pieces += [(layout.head_offset(t), _native.HEAD_BYTES) for t in range(len(tables))]
        for w in range(n_workers):
            at = layout.mailbox_offset(w)
            assert at % 4096 == 0
            inner = [
                0,
                64,
                ring.results_offset + 8 * n_slots,
                ring.answer_bytes,
                ring.stamps_offset,
            ]
            for i in range(n_slots):
                stamp = ring.stamps_offset + i * ring.record_stride
                slot = ring.slots_offset + i * ring.record_stride
                inner += [stamp, stamp + 8, slot, slot + ring.slot_bytes]
            inner += [ring.replies_offset]
            inner += [ring.replies_offset + replies * n_slots * ring.slot_bytes, ring.mailbox_bytes]
            assert inner == sorted(inner)
            pieces.append((at, ring.mailbox_bytes + layout.area_bytes(w)))
            assert w in remote or layout.area_bytes(w) == 0
        shared_end = max(start + size for start, size in pieces)
        assert shared_end <= layout.tables_offset
        assert layout.tables_offset % 4096 == 0
        for t, n in enumerate(sizes):
            part = [p for p in placement.dense[f"t{t}"] if p.server == server]
            if not part:
                continue
            versions, values, n_blocks = layout.dense_offsets(t)
            held = part[0].stop - part[0].start
            assert n_blocks == -(-held // _native.BLOCK_FLOATS)
            assert values % 64 == 0
            pieces += [(versions, 16 * n_blocks), (values, 4 * held * (1 + 2 * (t % 2)))]
            assert n >= held
        pieces.sort()
        assert all(a + size <= b for (a, size), (b, _) in itertools.pairwise(pieces))
        assert sum(pieces[-1]) <= layout.total_bytes


@pytest.mark.parametrize(
    ("shards", "n_remote", "limit", "expected"),
    [
        ([16 << 20], 1, 256 << 20, 32 << 20),  # two of the longest
        ([16 << 20, 300_000], 4, 256 << 20, 32 << 20),
        ([(16 << 20) + 4], 1, 256 << 20, (32 << 20) + 8192),  # in whole pages
        ([16 << 20], 10, 256 << 20, 26_841_088),  # an equal share of the limit
        ([64 << 20, 1 << 20], 8, 256 << 20, 32 << 20),  # enough for the shorter push
        ([64 << 20], 8, 256 << 20, 0),  # not enough for one push
        ([100_000], 1, 256 << 20, 0),  # small pushes go through the ring
        ([16 << 20], 0, 256 << 20, 0),
        ([16 << 20], 1, 0, 0),
        ([], 3, 256 << 20, 0),
    ],
)
def test_area_holds_two_of_the_longest_pushes_or_a_share(shards, n_remote, limit, expected):
    assert area_bytes(shards, n_remote, limit) == expected


def test_placement_is_the_same_wherever_it_is_computed():
    one, other = (place(tables_of([5, 900, 70_000]), 3, 4, 8, 1024) for _ in range(2))
    assert one.dense == other.dense
    offsets = [
        [(p.total_bytes, p.tables_offset, p.mailbox_offset(3)) for p in x.layouts]
        for x in (one, other)
    ]
    assert offsets[0] == offsets[1]


@pytest.mark.parametrize("dim", [119, 120, 1000])
def test_row_that_does_not_fit_into_a_slot_is_refused_with_the_size_it_needs(dim):
    if dim == 119:
        place([rows(dim)], 1, 1, 4, 1024)
        return
    needed = -(-(8 + 8 * dim + 64) // 1024)
    with pytest.raises(
        ConfigError, match=rf"row of {dim} floats .*slot_kib = 1; set slot_kib to {needed} or more$"
    ):
        place([rows(dim)], 1, 1, 4, 1024)


@pytest.mark.parametrize("tables", [[dense(1 << 20)], [rows(16)], [dense(1 << 20), rows(300)]])
def test_rings_of_few_workers_are_large_and_those_of_many_share_the_memory_of_a_server(tables):
    found = [place(tables, 1, n, None, 0).layouts[0].geometry for n in (1, 60, 1000, 10_000)]
    few, more, many, most = found
    assert (few.n_slots, few.slot_bytes) == (more.n_slots, more.slot_bytes) == (32, 128 << 10)
    assert 1000 * many.mailbox_bytes <= RINGS_BYTES
    assert most.mailbox_bytes <= LEAST_RING_BYTES
    assert most.n_slots >= 4
    assert all(g.slot_bytes >= 8 + 2 * 4 * 300 + 64 for g in found)


def test_a_layout_is_made_of_the_workers_of_one_node_only(monkeypatch):
    passed = []
    layout = _native.Layout

    def note(n_workers, n_tables, geometry, extents, area, without):
        passed.append((area, len(without)))
        return layout(n_workers, n_tables, geometry, extents, area, without)

    monkeypatch.setattr(placement_module._native, "Layout", note)
    near = [range(4 * (s % 250), 4 * (s % 250) + 4) for s in range(500)]
    place([dense(1 << 26)], 500, 1000, None, 0, near, 1 << 30)
    assert all(area > 0 for area, _ in passed)
    assert [n for _, n in passed] == [4] * 500


def test_slots_are_as_large_as_the_pushes_of_small_tables():
    small, bsp = (place([dense(n)], 1, 2, None, 0).layouts[0].geometry for n in (10, 5000))
    assert (small.n_slots, small.slot_bytes) == (32, 16 << 10)  # takes a cursor
    assert bsp.payload_capacity == 2 * 4 * 5000  # values and base values in one record


def test_configured_rings_stay_as_they_are_for_any_number_of_workers():
    geometry = place([dense(10)], 1, 10_000, 32, 128 << 10).layouts[0].geometry
    assert (geometry.n_slots, geometry.slot_bytes) == (32, 128 << 10)
    geometry = place([dense(1 << 20)], 1, 10_000, 32, 0).layouts[0].geometry
    assert geometry.n_slots == 32
    assert geometry.slot_bytes < 16 << 10
    geometry = place([dense(1 << 20)], 1, 10_000, None, 64 << 10).layouts[0].geometry
    assert (geometry.n_slots, geometry.slot_bytes) == (2, 64 << 10)


def test_slots_take_rows_that_are_longer_than_the_usual_slot():
    geometry = place([rows(99_999)], 1, 10_000, None, 0).layouts[0].geometry
    assert geometry.slot_bytes >= 8 + 2 * 4 * 99_999 + 64


def test_geometry_refuses_rings_that_cannot_work():
    for slots, slot_bytes in [(1, 1024), (4, 128), (4, 1000)]:
        with pytest.raises(ValueError, match="must have at least 2 slots"):
            place([dense(1)], 1, 1, slots, slot_bytes)


@pytest.mark.parametrize("n_servers", [1, 2, 5])
def test_worker_and_servers_agree_on_who_holds_what(n_servers):
    tables = [
        DenseTable("w", (70, 50), optimizer=SGD(lr=1.0), consistency=BSP("sum"), init="uniform(1)"),
        DenseTable("one", (3,), optimizer=SGD(lr=1.0), consistency=BSP("sum"), partition="layer"),
        rows(3, consistency=BSP("sum"), init="uniform(1)"),
    ]
    placement = place(tables, n_servers, 1, 4, 1024)
    regions = Regions(new_token(), shared=False)
    channels, servers = [], []
    for s in range(n_servers):
        server = Server(s, tables, placement, regions, 3, True, None)
        writer = make_writer(server.region, placement.layouts[s], 0, len(tables))
        channels.append(LocalChannel(server.region, placement.layouts[s], writer, 1, server.drain))
        servers.append(server)
    worker = Worker(
        Connection(0, ["worker 0"], tables, channels, OwnWorker(), None, 20.0),
        tables,
        placement,
    )
    keys = np.array([3, 10**12, -5, 3, 77, 78, 79])
    handles = [worker.table(name) for name in ("w", "one", "e")]
    start = [handles[0].pull(), handles[1].pull(), handles[2].pull(keys)]
    assert start[0].any()
    handles[0].push(np.arange(3500, dtype=np.float32).reshape(70, 50))
    handles[1].push(np.ones(3, np.float32))
    result = handles[2].push(keys, np.ones((7, 3), np.float32))
    worker.clock()
    owners = set(placement.partitioners["e"].owners(keys).tolist())
    assert result.wait().applied == len(owners)
    change = start[0] - np.arange(3500, dtype=np.float32).reshape(70, 50)
    assert handles[0].pull().tobytes() == change.tobytes()
    assert handles[1].pull().tolist() == [-1.0] * 3
    counts = np.array([[2], [1], [1], [2], [1], [1], [1]], np.float32)
    assert handles[2].pull(keys).tobytes() == (start[2] - counts).tobytes()
    assert sum(server.core.n_rows(2) for server in servers) == 6
    # The initial values do not depend on the number of servers.
    alone = Server(0, tables, place(tables, 1, 1, 4, 1024), regions, 3, True, None)
    assert alone.core.dense_values(0).tobytes() == start[0].tobytes()
    connection_of(worker).finish()
    assert all(server.core.finished(0) for server in servers)


@pytest.mark.parametrize(
    "options",
    [
        {"optimizer": SGD()},
        {"optimizer": Adagrad()},
        {"optimizer": Adam()},
        {"optimizer": RowAdagrad(), "row_dtype": "bf16"},
        {"optimizer": Adagrad(), "evict": Idle(9)},
        {"optimizer": SGD(), "evict": MaxRows(1_000_000), "row_dtype": "bf16"},
    ],
    ids=["sgd", "adagrad", "adam", "row-adagrad-bf16", "idle", "most-bf16"],
)
@pytest.mark.parametrize("n_rows", [1000, 57_000, 400_000])
def test_embedding_rows_take_the_memory_that_was_planned(options, n_rows):
    table = EmbeddingTable("t", 16, **options)
    server = Server(
        0, [table], place([table], 1, 1, 4, 65536), Regions(new_token(), False), 0, True, None
    )
    layout = server.layout
    writer = make_writer(server.region, layout, 0, 1)
    keys = np.arange(n_rows, dtype=np.int64) * 7919
    zeros = np.zeros((n_rows, 16), np.float32)
    done = 0
    while done < n_rows:
        done = writer.push_rows(0, 0, keys, zeros, None, done)
        server.drain()
    writer.tick(0)
    server.drain()
    assert server.core.n_rows(0) == n_rows
    plan = embedding_memory(table, n_rows, 1)
    taken = server.core.memory_bytes(0)
    # A new table has a megabyte each for rows and keys, and with limits for uses and sets.
    first = (2 + 2 * (table.evict is not None)) << 20
    assert plan.total_bytes <= taken <= 1.0625 * plan.total_bytes + first
    assert embedding_memory(table, n_rows, 4).rows == -(-n_rows // 4)


def test_limits_of_rows_are_planned() -> None:
    few = EmbeddingTable("t", 16, SGD(), evict=MaxRows(1000), admit=MinCount(2, memory_mib=4))
    plan = embedding_memory(few, 1_000_000, 2)
    assert plan.rows == 500
    assert plan.row_bytes == 500 * (64 + 12) + (4 << 20) + 8 * 25
    half = EmbeddingTable("t", 16, SGD(), evict=MaxBytes(1), row_dtype="bf16")
    whole = EmbeddingTable("t", 16, SGD(), evict=MaxBytes(1))
    assert half.row_bytes < whole.row_bytes
    assert embedding_memory(half, 10**9, 1).rows > embedding_memory(whole, 10**9, 1).rows


@pytest.mark.parametrize(
    ("n_workers", "n_tables", "match"),
    [(65537, 1, "workers"), (1, 65537, "tables")],
)
def test_more_workers_or_tables_than_records_can_number_are_refused(n_workers, n_tables, match):
    table = DenseTable("w", (8,))
    with pytest.raises(ConfigError, match=f"65,537 {match}: a job takes at most 65,536"):
        place([table] * n_tables, 1, n_workers, 4, 1024)

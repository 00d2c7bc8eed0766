"""A thousand embedding tables on one server: addresses, descriptors, memory, and growth that moves memory."""

from __future__ import annotations

import ctypes
import os
import resource

import numpy as np
import pytest
from harness import Rig, dense, python, rows

from mpips import _native
from mpips.errors import ConfigError, RegionError
from mpips.model.initializer import Initializer
from mpips.model.optimizer import Adam
from mpips.model.placement import place
from mpips.model.python_rule import PythonRule
from mpips.model.table import DenseTable, EmbeddingTable
from mpips.server.durability import Durability, check_journal
from mpips.server.server import Server
from mpips.transport import region
from mpips.transport.region import (
    Regions,
    allow_open_files,
    embedding_memory,
    new_token,
    persistent,
)

PAGE = os.sysconf("SC_PAGE_SIZE")
N_TABLES = 1000


@pytest.fixture(autouse=True)
def limits():
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def push_and_pull(worker, drain) -> None:
    """Push a row of its own number to every table."""
    for i in range(N_TABLES):
        worker.table(f"e{i}").push(np.array([i]), np.full((1, 4), i, np.float32))
        if i % 16 == 15:
            drain()
    drain()


def found(core) -> list[tuple[int, float]]:
    result = []
    for i in range(N_TABLES):
        keys, values = core.embedding_rows(i)
        result.append((int(keys[0]), float(values[0, 0])))
    return result


EXPECTED = [(i, float(-i)) for i in range(N_TABLES)]


def test_a_thousand_tables_in_private_memory():
    rig = Rig(*(rows(name=f"e{i}") for i in range(N_TABLES)), n_slots=64)
    push_and_pull(rig.worker(local=False), rig.drain)
    assert found(rig.core) == EXPECTED


@pytest.mark.parametrize("journal", [False, True])
def test_a_thousand_tables_in_shared_memory(journal):
    # Set the limits that login shells and daemons have.
    resource.setrlimit(
        resource.RLIMIT_NOFILE, (1024, resource.getrlimit(resource.RLIMIT_NOFILE)[1])
    )
    tables = [rows(name=f"e{i}") for i in range(N_TABLES)]
    placement = place(tables, 1, 1, 64, 1024)
    token = persistent(new_token()) if journal else new_token()
    regions = Regions(token, shared=True)
    first = Durability(journal=journal)
    server = Server(0, tables, placement, regions, 0, True, None, first)
    try:
        if journal:
            server.begin_journal()
        layout = placement.layouts[0]
        writer = _native.RingWriter(
            server.region, layout.mailbox_offset(0), layout.geometry, 0, 0, True, N_TABLES
        )
        for i in range(N_TABLES):
            update = np.full((1, 4), i, np.float32)
            assert writer.push_rows(i, 0, np.array([i]), update, None, 0) == 1
            if i % 16 == 15:
                server.drain()
        server.drain()
        assert found(server.core) == EXPECTED
        used = sum(path.stat().st_blocks * 512 for _, path in region.own_segments(token))
        assert used < 400 << 20
        if not journal:
            return
        del server, writer
        again = Server(
            0, tables, placement, Regions(token, True), 0, True, None, Durability(1, True, True)
        )
        again.finish_recovery(lambda w, g: regions.create_sparse("none", 1))
        assert found(again.core) == EXPECTED
    finally:
        regions.unlink()


def test_a_small_hard_limit_of_open_files_is_one_sentence():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with pytest.raises(RegionError, match=rf"the limit of open files is {hard}, but this server"):
        allow_open_files(hard)
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == (soft, hard)


def test_the_limit_of_open_files_is_raised_no_further_than_needed():
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (512, hard))
    allow_open_files(10)
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == 512
    allow_open_files(1000)
    assert 1000 < resource.getrlimit(resource.RLIMIT_NOFILE)[0] <= 2000


@pytest.mark.parametrize("embedding", [False, True])
def test_only_embedding_tables_need_spare_open_files(embedding):
    """A hard limit just above what is open lets a job of dense tables run."""
    table = EmbeddingTable("e", 2) if embedding else DenseTable("w", (9,))
    placement = place([table], 1, 1, 4, 1 << 12)
    regions = Regions(new_token(), True)
    few = len(os.listdir("/proc/self/fd")) + 20
    limits = (few, few)
    try:
        # A real hard limit could not be raised again after the test.
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(resource, "getrlimit", lambda which: limits)
            if embedding:
                with pytest.raises(RegionError, match=rf"the limit of open files is {few}, but"):
                    Server(0, [table], placement, regions, 0, True, None)
            else:
                Server(0, [table], placement, regions, 0, True, None)
    finally:
        regions.unlink()


@pytest.mark.parametrize("n", [0, 1, 8, 26, 1000, 10_000])
def test_addresses_of_all_tables_fit_beside_those_of_a_copy(n):
    sizes = embedding_memory(n)
    total = n * (2 * sizes.reserve + sizes.buffers)
    assert 2 * total + 4 * region.MOST_RESERVED < 100 << 40
    assert sizes.first <= sizes.reserve


@pytest.mark.parametrize("split", [False, True])
@pytest.mark.parametrize("shared", [False, True])
def test_memory_that_outgrows_its_addresses_moves_and_keeps_what_it_holds(shared, split):
    """`split`: the kernel holds the memory as two mappings, and moves one at a time."""
    regions = Regions(new_token(), shared=shared)
    try:
        memory = regions.create("s0", 8 * PAGE, 16 * PAGE)
        memory.view(0, 8 * PAGE, True)[:] = np.arange(8 * PAGE) % 251
        memory.grow(16 * PAGE)
        before = memory.address
        if split:
            libc = ctypes.CDLL(None, use_errno=True)
            at = ctypes.c_void_p(memory.address + 3 * PAGE)
            assert libc.madvise(at, ctypes.c_size_t(PAGE), 16) == 0  # MADV_DONTDUMP
        memory.grow(17 * PAGE)
        assert memory.address != before
        assert memory.n_bytes == 17 * PAGE
        assert (memory.view(0, 8 * PAGE, False) == np.arange(8 * PAGE) % 251).all()
        memory.view(16 * PAGE, PAGE, True)[:] = 1
        moved = memory.address
        memory.grow(30 * PAGE)
        assert memory.address == moved, "there is room for twice as much"
    finally:
        regions.unlink()


def test_where_address_space_is_short_less_is_reserved():
    code = """
        import resource
        from mpips.transport.region import Regions, new_token
        pages = int(open("/proc/self/statm").read().split()[0])
        limit = pages * resource.getpagesize() + (8 << 30)
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        memory = Regions(new_token(), shared=False).create("s0", 1 << 20, 1 << 40)
        memory.view(0, 1, True)[0] = 1
        memory.grow(1 << 30)
        print(memory.n_bytes >> 20)
    """
    done = python(code)
    assert (done.stdout, done.stderr) == ("1024\n", "")


@pytest.mark.parametrize("journal", [False, True])
def test_a_table_that_moves_holds_the_same_rows_and_is_taken_over(journal, monkeypatch):
    """Compare with a table that has room, push by push, with and without a journal."""
    monkeypatch.setattr(region, "_ROW_ADDRESSES", 2 << 18)
    tables = [EmbeddingTable("e", 16, Adam(), consistency=rows().consistency)]
    placement = place(tables, 1, 1, 16, 16 << 10)
    token = persistent(new_token())
    regions = Regions(token, shared=True)
    server = Server(0, tables, placement, regions, 0, True, None, Durability(journal=journal))
    rig = Rig(*tables, n_slots=16, slot_bytes=16 << 10)
    try:
        if journal:
            server.begin_journal()
        layout = placement.layouts[0]
        writer = _native.RingWriter(
            server.region, layout.mailbox_offset(0), layout.geometry, 0, 0, True, 1
        )
        rng = np.random.default_rng(5)
        for _ in range(60):
            keys = rng.integers(0, 20_000, 200)
            values = rng.standard_normal((200, 16)).astype(np.float32)
            keys, first = np.unique(keys, return_index=True)
            for w, drain in ((writer, server.drain), (rig.writers[0], rig.drain)):
                assert w.push_rows(0, 0, keys, values[first], None, 0) == len(keys)
                drain()
        expected = [a.tolist() for a in rig.core.embedding_rows(0)]
        assert len(expected[0]) * 49 * 4 > 2 * (2 << 17), "it has moved"
        assert [a.tolist() for a in server.core.embedding_rows(0)] == expected
        if journal:
            del server, writer
            regions = Regions(token, True)
            again = Server(0, tables, placement, regions, 0, True, None, Durability(1, True, True))
            again.finish_recovery(lambda w, g: regions.create_sparse("none", 1))
            assert [a.tolist() for a in again.core.embedding_rows(0)] == expected
    finally:
        region.unlink_job(token)


def add_up(values, state, gradient, step):
    values -= gradient


def test_a_journal_that_moves_is_found_again(monkeypatch):
    monkeypatch.setattr("mpips.server.server.MOST_RESERVED", 0)
    rule = PythonRule(add_up)
    tables = [EmbeddingTable("e", 64, rule, consistency=rows().consistency)]
    placement = place(tables, 1, 1, 4, 1 << 20)
    token = persistent(new_token())
    regions = Regions(token, shared=True)
    server = Server(0, tables, placement, regions, 0, True, None, Durability(journal=True))
    try:
        server.begin_journal()
        layout = placement.layouts[0]
        writer = _native.RingWriter(
            server.region, layout.mailbox_offset(0), layout.geometry, 0, 0, True, 1
        )
        # The journal saves all rows of a push at once. At first it has 256 KiB for them.
        for n in (10, 2000, 3000):
            update = np.ones((n, 64), np.float32)
            assert writer.push_rows(0, 0, np.arange(n), update, None, 0) == n
            server.drain()
        path = region.find_segment(token, "s0-journal")
        assert path is not None
        assert path.stat().st_size > 3000 * 256, "it has grown"
        del server, writer
        regions = Regions(token, True)
        again = Server(0, tables, placement, regions, 0, True, None, Durability(1, True, True))
        again.finish_recovery(lambda w, g: regions.create_sparse("none", 1))
        keys, values = again.core.embedding_rows(0)
        assert (keys == np.arange(3000)).all()
        assert values[:, 0].tolist() == [-3.0] * 10 + [-2.0] * 1990 + [-1.0] * 1000
    finally:
        region.unlink_job(token)


def test_a_shard_that_a_journal_cannot_describe_is_refused_before_memory_is_made():
    large = DenseTable("w", (1 << 35,), init="zeros")
    placement = place([large], 1, 1, 4, 1024)
    regions = Regions(persistent(new_token()), shared=True)
    with pytest.raises(ConfigError, match="server 0 holds 34,359,738,368 elements; with warm"):
        Server(0, [large], placement, regions, 0, True, None, Durability(journal=True))
    # With two servers each holds one half.
    check_journal(0, [large], place([large], 2, 1, 4, 1024))
    with pytest.raises(ConfigError, match="32767 tables: warm restart takes 32766 at most"):
        check_journal(0, [large] * 32767, placement)


def test_values_of_a_long_table_need_no_fans():
    initializer = Initializer.parse("uniform(0.5)")
    assert initializer.native(3, 1 << 40, 1 << 40).seed == 3
    with pytest.raises(ConfigError, match=r"must be from 0 to 2\*\*32 - 1"):
        Initializer.parse("xavier").native(3, 1 << 40, 1)


def test_an_update_too_long_for_one_record_takes_the_general_way(monkeypatch):
    """An update of 2^32 elements does so, because that number does not fit into a record."""
    monkeypatch.setattr("mpips.worker.paths.shared.ONE_RECORD", 999)
    rig = Rig(dense(1000, "long"), dense(999, "short"), n_slots=16)
    worker = rig.worker()
    for name, n, in_place in (("long", 1000, False), ("short", 999, True)):
        update = worker.allocate(n)
        update[:] = np.arange(n)
        before = rig.writers[0].next_sequence
        worker.table(name).push(update).wait()
        records = rig.writers[0].next_sequence - before
        assert (records == 1) is in_place
        assert (worker.table(name).pull() == -np.arange(n)).all()

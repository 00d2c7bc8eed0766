"""Look-ups of other processes at a server: what they see while rows change, move and leave, and attacks."""

from __future__ import annotations

import contextlib
import mmap
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import numpy as np
import pytest

from mpips import _native
from mpips.model.consistency import ASP, BSP
from mpips.model.row_limits import Idle
from mpips.server.look_ups import MOST_KEYS, N_SLOTS, answering, part_of
from mpips.transport.region import find_segment
from tests.support.harness import Rig, dense, rows

WAIT_S = 60.0
KEYS = np.arange(-3, 5, dtype=np.int64)


class Port:
    """The file of look-ups of a rig, mapped as by another process.

    Attributes:
        memory: All of it, uint8; may be written.
        client: A client.
    """

    def __init__(self, rig: Rig, generation: int = 0) -> None:
        path = find_segment(rig.regions.token, part_of(0, generation))
        assert path is not None
        with open(path, "r+b") as file:
            self.memory = np.frombuffer(mmap.mmap(file.fileno(), 0), np.uint8)
        self.client = _native.LookUpClient(self.memory, 1)

    def ask(self, table: int, keys: np.ndarray, dim: int, max_s: float = WAIT_S):
        """Return (status, version, clock), rows and marks."""
        found, has = np.full((len(keys), dim), 99, np.float32), np.full(len(keys), 9, np.uint8)
        return self.client.ask(table, keys, found, has, max_s), found, has

    def slots(self) -> list[np.ndarray]:
        """Return the words of the line of each slot, uint64, shape (8,): views."""
        return [self.memory[at : at + 64].view(np.uint64) for at in self._places()]

    def keys(self, slot: int) -> np.ndarray:
        """Return the keys of a slot, a view."""
        return self.memory[self._places()[slot] + 64 :][: 8 * MOST_KEYS].view(np.int64)

    def _places(self) -> list[int]:
        start = -(-(128 + len(self.client.text)) // 64) * 64
        stride = -(-(64 + 9 * self.client.n_keys) // 64) * 64 + self.client.rows_bytes
        return [start + i * stride for i in range(N_SLOTS)]

    def ring(self) -> None:
        """Set the bell."""
        self.memory[64:72].view(np.uint64)[0] = 1


@contextlib.contextmanager
def answered(rig: Rig) -> Iterator[Port]:
    """Let the server of a rig answer during the block; nobody drains it yet."""
    try:
        with answering(rig.server, rig.tables, rig.placement, rig.regions, 0):
            yield Port(rig)
    finally:
        rig.regions.unlink()


@pytest.mark.parametrize("dtype", ["float32", "bf16"])
def test_rows_are_those_of_a_pull_and_missing_ones_are_marked(dtype: str) -> None:
    rig = Rig(dense(), rows(5, init="normal(1)", row_dtype=dtype), shared=True)
    worker = rig.worker(0)
    worker.table("e").push(KEYS[2:5], np.full((3, 5), 0.3, np.float32))
    worker.clock()
    expected, before = worker.table("e").pull(KEYS), rig.table_rows(1)
    with answered(rig) as port:
        rig._has_local = False
        with rig.serving():
            (status, version, clock), found, has = port.ask(1, KEYS, 5)
            assert (status, version, clock) == ("answered", 1, 1)
            assert has.tolist() == [0, 0, 1, 1, 1, 0, 0, 0]
            assert (found == expected).all()
            # A look-up makes no rows, and without keys it returns the state of any table.
            assert port.ask(0, KEYS[:0], 1)[0] == ("answered", 0, 1)
        assert rig.table_rows(1) == before


def test_all_keys_of_a_request_are_of_one_moment_while_workers_push() -> None:
    n, pushes = 300, 400
    keys = np.arange(n, dtype=np.int64)
    # A push is in several records.
    rig = Rig(rows(16), shared=True, slot_bytes=4096, n_slots=8)
    worker = rig.worker(0, local=False)
    seen: list[float] = []
    with answered(rig) as port, rig.serving():
        done = threading.Event()

        def look() -> None:
            last = False
            while not last:
                last = done.is_set()
                (status, version, _), found, _ = port.ask(0, keys, 16)
                assert status == "answered"
                # Every value of every row is that of one version, however many pushes go on.
                assert (found == -float(version)).all(), (version, np.unique(found))
                seen.append(float(version))

        errors: list[BaseException] = []

        def guarded() -> None:
            try:
                look()
            except BaseException as error:
                errors.append(error)

        thread = threading.Thread(target=guarded)
        thread.start()
        # The first look is before all pushes, and the last one behind them.
        while not seen and not errors:
            time.sleep(0.001)
        for _ in range(pushes):
            pushed = worker.table("e").push(keys, np.ones((n, 16), np.float32))
        pushed.wait()
        done.set()
        thread.join(WAIT_S)
        assert not errors, errors
    assert seen == sorted(seen)
    assert (seen[0], seen[-1]) == (0, pushes)


def test_rows_that_leave_are_missing_and_those_that_move_are_right() -> None:
    rig = Rig(rows(4, consistency=BSP(), init="constant(7)", evict=Idle(2)), shared=True)
    worker = rig.worker(0)
    table, expected = worker.table("e"), {}
    everything = np.arange(40, dtype=np.int64)
    with answered(rig) as port:
        for clock in range(30):
            pushed = np.unique((np.arange(6) * (clock % 7) + clock) % 40).astype(np.int64)
            update = np.repeat(pushed[:, None] + 1.0, 4, axis=1).astype(np.float32)
            table.push(pushed, update)
            worker.clock()
            for key in pushed.tolist():
                value = expected.get(key, (7.0, 0))[0]
                expected[key] = (value - key - 1, clock)
            rig.drain()
            expected = {k: (v, last) for k, (v, last) in expected.items() if clock - last < 2}
            # A push of the next clock tells the server of this one.
            table.pull(everything)
            found, has = look(rig, port, everything, 4)
            there = np.flatnonzero(has)
            rows_there = {int(everything[i]): float(found[i, 0]) for i in there}
            assert rows_there == {k: v for k, (v, _) in expected.items()}, clock
            assert (found[has == 0] == 7.0).all()
            assert (found == found[:, :1]).all()
    assert rig.core.stats(0)["rows_evicted"] > 10


def look(rig: Rig, port: Port, keys: np.ndarray, dim: int):
    """Look keys up while this thread's server is drained for a moment; return rows and marks."""
    found: list = []
    thread = threading.Thread(target=lambda: found.extend(port.ask(0, keys, dim)))
    thread.start()
    end = time.monotonic() + WAIT_S
    while thread.is_alive() and time.monotonic() < end:
        rig.core.drain(0.001, 100)
    thread.join(1)
    assert found[0][0] == "answered"
    return found[1], found[2]


def test_more_requests_than_slots_are_all_answered() -> None:
    rig = Rig(rows(2), shared=True)
    worker = rig.worker(0)
    worker.table("e").push(
        np.arange(64), np.repeat(np.arange(64.0, dtype=np.float32)[:, None], 2, 1)
    )
    worker.clock()
    rig._has_local = False
    results: dict[int, bool] = {}
    with answered(rig) as port, rig.serving():

        def many(i: int) -> None:
            own = Port(rig)
            good = True
            for n in range(30):
                keys = np.array([i, (i + n) % 64], np.int64)
                head, found, _ = own.ask(0, keys, 2)
                good &= head[0] == "answered" and found[:, 0].tolist() == [-keys[0], -keys[1]]
            results[i] = good

        threads = [threading.Thread(target=many, args=(i,)) for i in range(3 * N_SLOTS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(WAIT_S)
        assert port.client.is_open
    assert results == dict.fromkeys(range(3 * N_SLOTS), True)


def test_a_server_without_memory_for_look_ups_warns_and_works(capsys) -> None:
    rig = Rig(rows(2), shared=True)
    with answered(rig):
        # The file is there already.
        with answering(rig.server, rig.tables, rig.placement, rig.regions, 0):
            rig.core.drain(0.001, 100)
        assert find_segment(rig.regions.token, part_of(0, 0)) is not None
    assert "warning: server 0 answers no look-ups (mpips serve): " in capsys.readouterr().err


def test_a_server_that_ends_says_so_and_one_that_hangs_is_late() -> None:
    rig = Rig(rows(2), shared=True)
    with answered(rig) as port:
        assert port.ask(0, KEYS, 2, 0.02)[0][0] == "late"
        # The request was withdrawn: the slot is free for others.
        assert all(line[0] == 0 for line in port.slots())
        assert port.client.is_open
    assert not port.client.is_open
    assert port.ask(0, KEYS, 2)[0][0] == "closed"


def test_damaged_requests_are_refused_and_slots_of_lost_clients_taken_over() -> None:
    rig = Rig(rows(2), dense(), shared=True)
    with answered(rig) as port, rig.serving():
        lines = port.slots()
        # Another checksum; too many keys; an unknown table; a dense table; rows of another length.
        for line in lines:
            line[2], line[3], line[0] = 1 << 32, 12345, (7 << 2) | 2
        port.ring()
        end = time.monotonic() + WAIT_S
        while any(line[0] != (7 << 2) | 3 for line in lines):
            assert time.monotonic() < end
            time.sleep(0.001)
        assert all(line[6] & 0xFFFFFFFF == 1 for line in lines)  # garbled

        # All slots belong to clients that have stopped just now: nobody takes them.
        for line in lines:
            line[0], line[1] = (9 << 2) | 1, time.monotonic_ns()
        assert port.ask(0, KEYS, 2, 0.02)[0][0] == "late"
        # Whatever a client had reached before it stopped, its slot is taken over.
        for i, phase in enumerate((1, 2, 3)):
            lines[i][0] = (9 << 2) | phase
            lines[i][1] = time.monotonic_ns() - 11 * 10**9
            assert port.ask(0, KEYS, 2)[0][0] == "answered", phase
            assert lines[i][0] == 0
            lines[i][0], lines[i][1] = (9 << 2) | 1, time.monotonic_ns()
        for line in lines:
            line[0] = 0

        assert port.ask(2, KEYS, 2)[0][0] == "refused"
        assert port.ask(1, KEYS, 2)[0][0] == "refused"
        lines[1][0], lines[1][2] = (5 << 2) | 2, (MOST_KEYS + 1) << 32
        port.ring()
        while lines[1][0] != (5 << 2) | 3:
            assert time.monotonic() < end
            time.sleep(0.001)
        assert lines[1][6] & 0xFFFFFFFF == 2  # refused


def test_a_request_that_a_stopped_client_damages_is_asked_again() -> None:
    rig = Rig(rows(2), shared=True)
    worker = rig.worker(0)
    worker.table("e").push(KEYS[2:5], np.repeat(KEYS[2:5, None], 2, 1).astype(np.float32))
    worker.clock()
    with answered(rig) as port:
        found: list = []
        thread = threading.Thread(target=lambda: found.extend(port.ask(0, KEYS, 2)))
        thread.start()
        lines, end = port.slots(), time.monotonic() + WAIT_S
        while not (asked := [i for i, line in enumerate(lines) if line[0] & np.uint64(3) == 2]):
            assert time.monotonic() < end
            time.sleep(0.001)
        # The client that had the slot before goes on, and stores a key of its own request.
        port.keys(asked[0])[3] = 77
        while thread.is_alive():
            assert time.monotonic() < end
            rig.core.drain(0.001, 100)
        assert found[0][0] == "answered"
        assert found[1][:, 0].tolist() == [0, 0, 1, 0, -1, 0, 0, 0]
        assert found[2].tolist() == [0, 0, 1, 1, 1, 0, 0, 0]
        # A withdrawn request is answered by nobody.
        assert port.ask(0, KEYS, 2, 0.02)[0][0] == "late"
        rig.core.drain(0.01, 100)
        assert [int(line[0]) for line in lines] == [0] * N_SLOTS


def test_rows_that_do_not_fit_into_a_slot_are_refused() -> None:
    rig = Rig(rows(100), shared=True)
    with answered(rig) as port, rig.serving():
        # The client asks for rows of one value.
        assert port.client.rows_bytes < 400 * MOST_KEYS
        assert port.ask(0, np.arange(MOST_KEYS), 1)[0] == ("refused", 0, 0)
        assert port.ask(0, np.arange(port.client.rows_bytes // 400), 1)[0][0] == "answered"


def test_a_killed_client_delays_nobody() -> None:
    program = """
import mmap, sys, numpy as np
from mpips import _native
with open(sys.argv[1], "r+b") as file:
    client = _native.LookUpClient(np.frombuffer(mmap.mmap(file.fileno(), 0), np.uint8), 7)
keys, found, has = np.arange(900), np.empty((900, 2), np.float32), np.empty(900, np.uint8)
while client.ask(0, keys, found, has, 60.0)[0] == "answered":
    print("answered", flush=True)
"""
    rig = Rig(rows(2), shared=True)
    with answered(rig) as port:
        path = find_segment(rig.regions.token, part_of(0, 0))
        with rig.serving():
            command = [sys.executable, "-c", program, str(path)]
            with subprocess.Popen(command, stdout=subprocess.PIPE) as client:
                assert client.stdout is not None
                assert client.stdout.readline() == b"answered\n"
                client.kill()
            for _ in range(50):
                (status, *_), found, has = port.ask(0, KEYS, 2)
                assert status == "answered"
                assert not found.any()
                assert not has.any()
        # At most one slot is lost, until its claim is too old.
        left = [line for line in port.slots() if line[0] != 0]
        assert len(left) <= 1
        for line in left:
            assert time.monotonic_ns() - int(line[1]) < WAIT_S * 1e9


def test_memory_that_is_no_port_is_refused() -> None:
    empty = np.zeros(4096, np.uint8)
    with pytest.raises(ValueError, match="no look-ups are answered here yet"):
        _native.LookUpClient(empty, 1)
    rig = Rig(rows(2), shared=True)
    with answered(rig) as port:
        port.memory[8:12].view(np.uint32)[0] = 77
        with pytest.raises(ValueError, match="look-ups have format 77, this mpips has format 1"):
            _native.LookUpClient(port.memory, 1)
        port.memory[8:12].view(np.uint32)[0] = 1
        with pytest.raises(ValueError, match="sizes of the memory of look-ups do not agree"):
            _native.LookUpClient(port.memory[:8192], 1)


def test_a_block_of_a_dense_table_is_never_torn() -> None:
    n = 40_000
    rig = Rig(dense(n, consistency=ASP()), shared=True, staging_bytes=1 << 20)
    worker = rig.worker(0, local=False)
    versions, at, n_blocks = rig.layout.dense_offsets(0)
    region = rig.region.view(0, rig.region.n_bytes, False)
    out = np.empty(n, np.float32)
    seen, errors, done = set(), [], threading.Event()

    def read() -> None:
        last = False
        while not last:
            last = done.is_set()
            assert _native.copy_dense_at(region, versions, at, out, WAIT_S)
            for start in range(0, n, 16384):
                block = out[start : start + 16384]
                if not (block == block[0]).all():
                    errors.append((start, np.unique(block)))
                seen.add(float(block[0]))

    thread = threading.Thread(target=read)
    with rig.serving():
        thread.start()
        while not seen:
            assert thread.is_alive()
            time.sleep(0.001)
        for _ in range(300):
            pushed = worker.table("w").push(np.ones(n, np.float32))
        pushed.wait()
        done.set()
        thread.join(WAIT_S)
    rig.regions.unlink()
    assert n_blocks == 3
    assert not errors, errors[:3]
    assert {0.0, -300.0} <= seen


@pytest.mark.parametrize("n", [511, 513, 20_001])
def test_a_dense_table_is_read_to_any_place(n: int) -> None:
    """Each distance of the two places modulo a page of 4 KiB; some are copied from the end to the begin."""
    n_words = -(-n // 16384) * 16  # one for each block
    region = np.zeros(n_words + 4 * n + 8192, np.uint8)
    at = n_words + (-(region.ctypes.data + n_words)) % 4096
    values = region[at : at + 4 * n].view(np.float32)
    values[:] = np.arange(1, n + 1)
    region[:n_words].view(np.uint64)[1::2] = ~np.uint64(0)
    memory = np.zeros(4 * n + 3 * 4096, np.uint8)
    page = (-memory.ctypes.data) % 4096 + 4096
    for behind in (*range(-72, 72, 4), 2048):
        memory[:] = 255
        out = memory[page + behind : page + behind + 4 * n].view(np.float32)
        assert _native.copy_dense_at(region, 0, at, out, WAIT_S)
        assert (out == values).all(), behind
        assert (memory[: page + behind] == 255).all(), behind
        assert (memory[page + behind + 4 * n :] == 255).all(), behind


def test_a_block_that_a_killed_server_was_changing_is_not_read() -> None:
    words = np.zeros(1024, np.uint8)
    words[:16].view(np.uint64)[:] = 3, ~np.uint64(3)
    out = np.empty(4, np.float32)
    assert not _native.copy_dense_at(words, 0, 64, out, 0.01)
    words[:16].view(np.uint64)[:] = 4, ~np.uint64(4)
    assert _native.copy_dense_at(words, 0, 64, out, 0.01)
    with pytest.raises(IndexError, match="out of range"):
        _native.copy_dense_at(words, 0, 1020, out, 0.01)

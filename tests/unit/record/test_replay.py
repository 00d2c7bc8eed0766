"""A recorded job is repeated with the same bits, whatever the timing; another program is found."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import numpy as np
import pytest
from harness import TIMEOUT_S, Rig, dense
from record_rig import Job, content, draw_tables, read_files, switching, varint, zigzag

from mpips import _native
from mpips.checkpoint import open_checkpoint
from mpips.errors import DifferenceError
from mpips.model.consistency import ASP
from mpips.model.optimizer import Adam
from mpips.model.placement import place
from mpips.model.table import DenseTable, EmbeddingTable
from mpips.mpi.messages import ONLY, Saved, Taken
from mpips.record.files import RecordedTable, ReplayBreak
from mpips.record.history import check_history
from mpips.record.reading import read_steps
from mpips.rundir.directory import RunFolder
from mpips.server.server import Server
from mpips.session.breaks import BreakCopier
from mpips.transport.region import Regions, new_token
from mpips.worker.recorded import ReplayingWorker

SEEDS = range(12)
TABLES = [
    DenseTable("w", (40,), optimizer=Adam(0.1), consistency=ASP()),
    EmbeddingTable("e", 3, optimizer=Adam(0.1), consistency=ASP()),
]


def shape_of(seed):
    rng = np.random.default_rng([seed, 3])
    tables = draw_tables(rng)
    return tables, int(rng.integers(1, 4)), int(rng.integers(2, 5)), int(rng.integers(3, 9))


@pytest.mark.parametrize("seed", SEEDS)
def test_replay_ends_with_the_bits_of_the_recorded_job(seed, tmp_path):
    shape = shape_of(seed)
    job = Job(*shape, turns=seed, folder=tmp_path)
    digests = job.run()
    servers, workers = read_files(tmp_path, job)
    assert check_history(servers, workers).breaks == []
    for turns in range(100, 103):
        assert Job(*shape, turns=turns, record=(servers, workers)).run() == digests


@pytest.mark.parametrize("seed", range(6))
def test_replay_repeats_a_job_that_switches(seed, tmp_path):
    tables, n_servers, n_workers, n_clocks = shape_of(seed)
    shape = switching(tables, 1 + seed % n_clocks), n_servers, n_workers, n_clocks
    job = Job(*shape, turns=seed, folder=tmp_path)
    digests = job.run()
    servers, workers = read_files(tmp_path, job)
    assert check_history(servers, workers).breaks == []
    for turns in range(100, 103):
        assert Job(*shape, turns=turns, record=(servers, workers)).run() == digests


def test_two_recorded_jobs_differ_by_their_timing(tmp_path):
    # Without this, a replay that ignores the record would pass the test above.
    shape = TABLES, 2, 3, 6
    found = {
        str(Job(*shape, turns=turns, folder=tmp_path / str(turns)).run()) for turns in range(4)
    }
    assert len(found) > 1


@pytest.mark.parametrize("seed", SEEDS)
def test_a_break_has_the_values_of_the_recorded_run_after_so_many_updates(seed, tmp_path):
    shape = shape_of(seed)
    job = Job(*shape, turns=seed, folder=tmp_path)
    digests = job.run()
    # Of each table one number of updates that a server was seen at, also the last one.
    seen = {}
    for number, (s, i, updates) in enumerate(sorted(job.seen)):
        if updates and (number % 3 == seed % 3 or (i, updates) in seen):
            seen.setdefault((i, updates), []).append(s)
    breaks = [{"table": i, "updates": updates} for i, updates in seen]
    again = Job(
        *shape, turns=seed + 50, record=read_files(tmp_path, job), breaks=breaks[::-1] + breaks
    )
    assert again.run() == digests
    n_compared = 0
    for s, found in enumerate(again.at_breaks):
        for at, _, values in found:
            expected = job.seen.get((s, at["table"], at["updates"]))
            if isinstance(expected, dict):
                # A pull may have made rows before the recorded server was looked at.
                made = {key: row for key, row in expected.items() if key in values[at["table"]]}
                assert values[at["table"]] == made
            elif expected is not None:
                assert values[at["table"]] == expected
            n_compared += expected is not None
    assert n_compared >= 2 * sum(map(len, seen.values()))


@pytest.mark.parametrize("seed", SEEDS)
def test_a_break_at_a_step_is_where_each_worker_has_first_ended_it(seed, tmp_path):
    tables, n_servers, n_workers, n_clocks = shape_of(seed)
    job = Job(tables, n_servers, n_workers, n_clocks, turns=seed, folder=tmp_path)
    digests = job.run()
    numbers = sorted({1, n_clocks // 2, n_clocks})
    steps = [{"clocks": [n] * n_workers} for n in numbers]
    again = Job(
        tables,
        n_servers,
        n_workers,
        n_clocks,
        turns=seed + 50,
        record=read_files(tmp_path, job),
        breaks=steps,
    )
    assert again.run() == digests
    for found in again.at_breaks:
        for at, clocks, _ in found:
            assert min(clocks) == at["clocks"][0]
        assert [at["clocks"][0] for at, _, _ in found] == numbers


def test_the_copies_of_a_server_are_checkpoints_with_the_recorded_values(tmp_path):
    shape = TABLES, 1, 3, 6
    job = Job(*shape, turns=1, folder=tmp_path)
    digests = job.run()
    again = Job(*shape, turns=2, record=read_files(tmp_path, job))
    run = RunFolder(tmp_path / "run")
    parts = SimpleNamespace(
        server=again.servers[0],
        placement=again.placement,
        tables=again.tables,
        server_comm=None,
        run=SimpleNamespace(folder=run, generation=0),
        saving=SimpleNamespace(run_id="r", config={}, sampling={}, data={}),
        options=SimpleNamespace(timeout_s=TIMEOUT_S),
    )
    [w] = [n for s, i, n in sorted(job.seen) if i == 0 and n > 5][:1]
    [e] = [n for s, i, n in sorted(job.seen) if i == 1 and n > 5][:1]
    places = [("w", w), ("e", e), ("w", 10**6), ("", 3)]
    breaks = [ReplayBreak(table=table, number=n) for table, n in places]
    copier, told = BreakCopier(parts, breaks, again.orders[0], [0, 1, 0]), []
    copier.ends_by(told.append)
    again.server_records[0].copier = copier
    assert again.run() == digests
    assert told == [Taken(ONLY.id, True), Saved(ONLY.id, str(run.path / "breaks" / "until-3"), "")]
    # The copies are written when the job comes to step 3; what lies behind it is not.
    found = {path.parent.name: path for path in (run.path / "breaks").glob("*/step-*")}
    assert set(found) >= {"until-3"}
    assert set(found) <= {f"w-{w}", f"e-{e}", "until-3"}
    with open_checkpoint(found["until-3"]) as checkpoint:
        assert [table.name for table in checkpoint.manifest.tables] == ["w", "e"]
        checkpoint.verify()
    with open_checkpoint(found[f"w-{w}"]) as checkpoint:
        assert [table.name for table in checkpoint.manifest.tables] == ["w"]
        assert checkpoint.manifest.step == w
        values, states = checkpoint.read_dense("w")
        assert [a.tobytes() for a in (values, *states.values())] == job.seen[0, 0, w]
    with open_checkpoint(found[f"e-{e}"]) as checkpoint:
        [block] = checkpoint.iter_rows("e")
        for i, key in enumerate(block.keys):
            row = np.frombuffer(job.seen[0, 1, e][int(key)], np.float32)
            assert block.values[i].tolist() == row[:3].tolist()


def recorded(tmp_path, shape=(TABLES, 2, 2, 4)):
    job = Job(*shape, turns=1, folder=tmp_path)
    job.run()
    return read_files(tmp_path, job)


@pytest.mark.parametrize("salt", range(1, 6))
def test_another_program_is_named_and_never_stalls_or_ends_as_a_replay(salt, tmp_path):
    record = recorded(tmp_path)
    with pytest.raises(DifferenceError):
        Job(TABLES, 2, 2, 4, turns=9, record=record, salt=salt).run()


class Lacking:
    """The writers of worker 1, and its part in the replay, of which one operation does nothing.

    Operations are numbered as the program makes them: pushes, pulls and ends of clocks on all servers.
    """

    def __init__(self, job, operation, number):
        self.operation, self.number, self.seen = operation, number, []
        self.job = job
        self.reading = job.worker_records[1]
        for channel in job.channels[1]:
            channel.writer = LackingWriter(channel.writer, self)
        job.worker_records[1] = self

    def leaves_out(self, operation, key):
        """Return True for the operation that is left out, also at its other servers and segments."""
        if operation != self.operation:
            return False
        if key not in self.seen:
            self.seen.append(key)
        return self.seen.index(key) == self.number

    def __getattr__(self, name):
        return getattr(self.reading, name)

    def read_dense(self, server, table, clock, out, max_s):
        if self.leaves_out("pull", (table, clock, self.job.steps[1])):
            out[:] = 0
            return True
        return self.reading.read_dense(server, table, clock, out, max_s)

    def tick(self, clock, own, is_end=False):
        if not self.leaves_out("tick", clock):
            self.reading.tick(clock, own, is_end)


class LackingWriter:
    def __init__(self, writer, lacking):
        self._writer, self._lacking = writer, lacking

    def __getattr__(self, name):
        return getattr(self._writer, name)

    def _key(self, table, clock):
        return table, clock, self._lacking.job.steps[1]

    def push_dense(self, table, clock, update, base, done):
        if self._lacking.leaves_out("push", self._key(table, clock)):
            return update.size
        return self._writer.push_dense(table, clock, update, base, done)

    def push_rows(self, table, clock, keys, rows, base, done):
        if self._lacking.leaves_out("push", self._key(table, clock)):
            return len(keys)
        return self._writer.push_rows(table, clock, keys, rows, base, done)

    def pull_rows(self, table, clock, keys, rows, done):
        if self._lacking.leaves_out("pull of rows", self._key(table, clock)):
            return len(keys)
        return self._writer.pull_rows(table, clock, keys, rows, done)

    def tick(self, clock):
        return self._lacking.leaves_out("tick", clock) or self._writer.tick(clock)


@pytest.mark.parametrize("turns", [9, 10])
@pytest.mark.parametrize("number", [0, 1])
@pytest.mark.parametrize("operation", ["push", "pull", "pull of rows", "tick"])
def test_the_first_operation_that_a_program_lacks_is_named_at_once(
    operation, number, turns, tmp_path
):
    # Long before any timeout: nothing of the rig waits, and it stalls where no rank can go on.
    record = recorded(tmp_path)
    job = Job(TABLES, 2, 2, 4, turns=turns, record=record)
    lacking = Lacking(job, operation, number)
    with pytest.raises(DifferenceError) as error:
        job.run()
    text = str(error.value)
    found = lacking.seen[number]
    assert "worker 1 " in text
    if operation == "tick":
        assert f"the end of its clock at clock {found}" in text or f"end of clock {found}" in text
        return
    name = TABLES[found[0]].name
    what = {"push": "a push to table", "pull of rows": "a pull of table", "pull": "table"}[
        operation
    ]
    assert f"{what} '{name}' " in text
    assert f"at clock {found[1]}" in text


@pytest.mark.parametrize("n_clocks", [3, 5])
def test_a_program_with_more_or_fewer_clocks_is_named_with_its_clock(n_clocks, tmp_path):
    record = recorded(tmp_path)
    with pytest.raises(DifferenceError, match=r"worker \d has .*clock"):
        Job(TABLES, 2, 2, n_clocks, turns=9, record=record).run()


def test_other_values_of_one_push_are_named_with_worker_clock_and_table(tmp_path):
    record = recorded(tmp_path)
    job = Job(TABLES, 2, 2, 4, turns=9, record=record)
    push = _native.RingWriter.push_dense
    writer = job.channels[1][0].writer

    class Changed:
        """The writer of worker 1, which adds 1 to the first value of its pushes."""

        def __getattr__(self, name):
            return getattr(writer, name)

        def push_dense(self, table, clock, update, base, done):
            other = update.copy()
            other[0] += 1
            return push(writer, table, clock, other, base, done)

    job.channels[1][0].writer = Changed()
    with pytest.raises(DifferenceError, match=r"worker 1 sends a push to table 'w' at clock \d"):
        job.run()


def test_a_worker_finds_a_record_that_it_has_not_sent_at_the_end_of_its_clock():
    # Before a server says anything: the tick is the first thing behind the record.
    job = Job(TABLES, 1, 1, 1, turns=0)
    order = b"\x73" + varint(0) + varint(1) + b"\x74" + varint(0)
    records = _native.WorkerRecords([order], 0, 1, 2)
    steps = _native.PullSteps(b"\x03" + zigzag(0) + varint(1), 1, 2)
    replaying = ReplayingWorker(0, _native.RecordedPulls(steps, 0, ["w", "e"], records), [])
    replaying.join(job.channels[0])
    with pytest.raises(DifferenceError) as error:
        replaying.tick(0, [0])
    assert str(error.value) == (
        "worker 0 comes to the end of clock 0 without a pull of table 'e' at clock 0 to server 0, which "
        "the recorded run has before it"
    )


def test_other_final_values_are_named(tmp_path):
    servers, workers = recorded(tmp_path)
    servers[1].end.digests["e"] = "0" * 16
    with pytest.raises(DifferenceError, match=r"server 1: 1 of 2 tables .* the first is 'e'"):
        Job(TABLES, 2, 2, 4, turns=9, record=(servers, workers)).run()


# A pull of which blocks have different versions.

N_BLOCKS = 3
BLOCK = 16384  # values of a block, native/src/ring/layout.hpp
N = N_BLOCKS * BLOCK


class Torn:
    """A server with a table of three blocks, to which worker 0 pushes ones three times."""

    def __init__(self) -> None:
        tables = [dense(N)]
        placement = place(tables, 1, 2, 8, 256)
        self.regions = Regions(new_token(), shared=False)
        self.server = Server(0, tables, placement, self.regions, 0, True, None)
        staging = self.regions.create_sparse("w0", 4 * N)
        self.server.core.set_staging(0, staging)
        layout = self.server.layout
        writer = _native.RingWriter(
            self.server.region, layout.mailbox_offset(0), layout.geometry, 0, 0, False, 1
        )
        staging.view(0, 4 * N, True).view(np.float32)[:] = -1.0
        for _ in range(3):
            assert writer.push_staged(0, 0, 0, None, N)

    def recorded(self) -> bytes:
        """Apply the pushes; returns the record of their order."""
        log = _native.OrderLog(2)
        self.server.core.set_order_log(log)
        self.server.drain()
        return log.take()

    def follow(self, order: bytes, entry: bytes, timeout_s: float = TIMEOUT_S):
        """Follow an order, with a pull of worker 1; returns it and the words of the server."""
        words = self.regions.create("words", _native.pull_words_bytes(1, 2))
        self.order = _native.RecordedOrder(order, 2, ["w"])
        gate = _native.PullGate(words, 1, 2, 0, timeout_s)
        gate.add_table(self.server.region, self.server.layout, 0, "w")
        steps = _native.PullSteps(entry, 1, 1)
        gate.add_pulls(1, steps, self.order)
        self.server.core.follow(self.order, gate)
        records = _native.WorkerRecords([order], 1, 2, 1)
        return _native.RecordedPulls(steps, 1, ["w"], records), words


def pull_entry(updates):
    """The entry of a pull whose blocks have these updates."""
    version = min(updates)
    entry = b"\x02" + varint(0) + varint(0) + varint(0) + zigzag(version) + varint(len(updates))
    return entry + b"".join(varint(1) + zigzag(u - version) for u in updates)


@pytest.mark.parametrize(
    "updates",
    [(0, 0, 0), (1, 0, 0), (2, 1, 1), (1, 1, 0), (1, 2, 2), (0, 1, 2), (3, 3, 3), (3, 2, 2)],
)
def test_a_pull_of_blocks_of_several_versions_is_repeated_block_by_block(updates):
    torn = Torn()
    pulls, words = torn.follow(Torn().recorded(), pull_entry(updates))
    out, errors = np.full(N, np.nan, np.float32), []

    def serve() -> None:
        try:
            while not torn.order.is_over:
                torn.server.core.drain(0.001, 200)
        except Exception as error:
            errors.append(error)

    thread = threading.Thread(target=serve)
    thread.start()
    region, layout = torn.server.region, torn.server.layout
    while not errors and not pulls.read(region, layout, 0, 0, 0, out, words, 0.001, True):
        pass
    thread.join()
    assert errors == []
    assert out.reshape(N_BLOCKS, BLOCK)[:, 0].tolist() == list(updates)
    assert np.array_equal(out, np.repeat(np.float32(updates), BLOCK))
    assert torn.server.core.dense_array(0, 0).tolist() == [3.0] * N


def test_a_server_holds_a_version_for_a_pull_that_has_not_come():
    torn = Torn()
    torn.follow(Torn().recorded(), pull_entry((1, 1, 1)))
    for _ in range(3):
        torn.server.drain()
    assert torn.server.core.version(0) == 1
    assert torn.server.core.dense_array(0, 0)[0] == 1.0


def test_a_pull_that_never_comes_in_the_middle_of_an_update_is_named_after_the_timeout():
    torn = Torn()
    torn.follow(Torn().recorded(), pull_entry((1, 0, 0)), timeout_s=0.2)
    with pytest.raises(DifferenceError, match="worker 1 has not pulled table 'w'"):
        torn.server.drain()


def test_a_port_records_what_its_pulls_see_and_leaves_them_in_a_replay(tmp_path):
    rig = Rig(dense(N), n_workers=1, slot_bytes=1024)
    log = _native.PullLog(1, 1)
    worker = rig.worker(local=False)
    port = worker.table("w")._direct.port
    port.set_log(log, [0])
    with rig.serving():
        for _ in range(3):
            worker.table("w").push(np.ones(N, np.float32)).wait()
            worker.table("w").pull()
    table = RecordedTable("w", "dense", "asp")
    steps = read_steps(content("worker", 0, log.take(), [table]))
    assert [(s.version, s.runs) for s in steps] == [(v, [(0, v)]) for v in (1, 2, 3)]
    port.leave_pulls()
    assert port.pull(np.empty(N, np.float32), worker.table("w")._direct) is False
    with pytest.raises(ValueError, match="servers has 2 entries, the port 1 parts"):
        port.set_log(log, [0, 1])

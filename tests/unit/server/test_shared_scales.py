"""SharedInt8: the scales of a clock, sums in any order of arrival, and what stays for the next push."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from crash_rig import crash
from harness import SUM, Rig, dense, floats
from ring_attack import FIRST, LAST, PUSH_DENSE, Attack, dense_bytes

from mpips import _native
from mpips.errors import ConfigError
from mpips.kernels import reference_shared as reference
from mpips.model.codec import SharedInt8, codec_of
from mpips.model.consistency import ASP, BSP, SSP, DiLoCo
from mpips.model.optimizer import Adam, Optimizer
from mpips.model.placement import place
from mpips.model.served import served
from mpips.model.table import DenseTable, EmbeddingTable
from mpips.worker.feedback.residuals import Residuals, residual_layout

BLOCK = 32
CLOSES = 256
SHARED = 6  # number of the codec in a record's header


def table(n: int, block: int = BLOCK, reduce: str = "sum", rule: Optimizer = SUM) -> DenseTable:
    return dense(n, consistency=BSP(reduce=reduce), compression=SharedInt8(block), optimizer=rule)


class Job:
    """Workers of one server, with residuals."""

    def __init__(self, *tables: DenseTable, n_workers: int = 1, n_slots: int = 8) -> None:
        self.rig = Rig(*served(list(tables)), n_workers=n_workers, n_slots=n_slots)
        self.residuals = [self._residuals() for _ in range(n_workers)]
        self.workers = [self.rig.worker(w, residuals=r) for w, r in enumerate(self.residuals)]

    def _residuals(self) -> Residuals:
        _, n_bytes = residual_layout(self.rig.tables, self.rig.placement, 1)
        memory = _native.SharedMemory.anonymous(n_bytes, 0)
        found = Residuals(memory, self.rig.tables, self.rig.placement, 1)
        found.fill({})
        return found

    def exponents(self, of: int = 0) -> np.ndarray:
        n_tables = len(self.rig.tables) // 2
        return self.rig.values(n_tables + of).astype(np.uint8)

    def rest(self, name: str = "w") -> np.ndarray:
        return sum(r.values()[name] for r in self.residuals)

    def clock(self, updates: Sequence[np.ndarray | None]) -> None:
        """Let each worker push an update, or none, and end its clock."""
        for worker, update in zip(self.workers, updates, strict=True):
            if update is not None:
                worker.table("w").push(update)
            worker.clock()
        self.rig.drain()


@pytest.mark.parametrize("n", [1, 15, 513, 4001])
@pytest.mark.parametrize("n_workers", [1, 2, 3])
def test_arrived_and_residuals_are_the_sum_of_the_updates(n: int, n_workers: int) -> None:
    """A record has 960 bytes here, so a push takes several; some workers push twice, one not at all."""
    job = Job(table(n), n_workers=n_workers, n_slots=20)
    total = np.zeros(n)
    for clock in range(6):
        for w, worker in enumerate(job.workers):
            for number in range((clock + w) % 3):
                update = floats(n, 10 * clock + 3 * w + number) * 2.0 ** (3 * (clock % 3))
                worker.table("w").push(update)
                total += update
                update[...] = np.nan  # free at return
            worker.clock()
    assert job.workers[0].table("w").paths == ["shared scales"]
    assert (job.rest() - job.workers[0].table("w").pull() == total).all()


def test_a_clock_is_what_the_definition_says() -> None:
    """Records, residuals, values and scales of two workers over several clocks, by NumPy."""
    n, capacity = 700, 960
    job = Job(table(n), n_workers=2)
    exponents, values = np.zeros(-(-n // BLOCK), np.uint8), np.zeros(n, np.float32)
    residuals = [np.zeros(n, np.float32) for _ in range(2)]
    for clock in range(5):
        wanted, total = np.zeros_like(exponents), np.zeros(n, np.float32)
        for w, worker in enumerate(job.workers):
            rng = np.random.default_rng(2 * clock + w)
            update = (rng.standard_normal(n) * 4.0 ** rng.integers(-3, 4)).astype(np.float32)
            handle = worker.table("w")
            key = handle._random_key()
            handle._encoded = (clock, -1)  # the push draws this key again
            sums = residuals[w] + update
            if exponents.any():
                records, residuals[w] = reference.push(
                    BLOCK, exponents, residuals[w], update, 0, key, capacity
                )
                total += sums - residuals[w]  # exact
                assert sum(record.covered for record in records) == n
            else:
                total, sums = total + update, update
            asked = [reference.exponent_for(sums[at : at + BLOCK]) for at in range(0, n, BLOCK)]
            wanted = np.maximum(wanted, np.array(asked, np.uint8))
            handle.push(update)
            worker.clock()
        values -= total
        exponents = reference.next_exponents(exponents, wanted)
        assert job.workers[0].table("w").pull().tobytes() == values.tobytes()
        assert (job.exponents() == exponents).all()
        for found, expected in zip(job.residuals, residuals, strict=True):
            assert found.values()["w"].tobytes() == expected.tobytes()


def write_in_order(job: Job, clock: int, order: Sequence[int], updates: np.ndarray) -> None:
    """Write records of all workers, one after the other in an order that names workers; then the ticks."""
    n = updates.shape[1]
    feedbacks = [r.feedback(0, 0) for r in job.residuals]
    for feedback in feedbacks:
        feedback.set_scales(job.exponents())
    done = [0] * len(job.workers)

    def push(w: int) -> None:
        """Write as many records as there are slots."""
        writer = job.rig.writers[w]
        done[w] = writer.push_feedback(0, clock, feedbacks[w], updates[w], 99 * clock + w)
        job.rig.drain()

    for w in order:
        push(w)
    for w in range(len(job.workers)):
        while done[w] < n:
            push(w)
    assert done == [n] * len(done)
    for w in reversed(range(len(job.workers))):
        assert job.rig.writers[w].tick(clock)
    job.rig.drain()


@pytest.mark.parametrize("rule", [SUM, Adam(0.1)], ids=str)
def test_bits_do_not_depend_on_the_order_of_arrival(rule: Optimizer) -> None:
    """Segments of pushes alternate; the values have all 24 bits, so that sums of floats would differ."""
    n, found, first = 4001, set(), None
    for orders in ([0, 1, 2], [2, 1, 0], [1, 2, 1, 0, 2, 0], [2, 0, 2, 0, 1]):
        job = Job(table(n, reduce="mean", rule=rule), n_workers=3, n_slots=2)
        rng = np.random.default_rng(0)
        for clock in range(4):
            updates = rng.standard_normal((3, n)).astype(np.float32)
            if clock == 0:
                job.clock(list(updates))
                continue
            write_in_order(job, clock, orders, updates)
        assert job.rig.core.version(0) == 4
        first = job.rig.values() if first is None else first
        found.add((job.rig.values().tobytes(), job.exponents().tobytes(), job.rest().tobytes()))
    assert len(found) == 1
    assert np.abs(first).max() > 0


def test_a_push_is_taken_before_those_of_lower_workers() -> None:
    job = Job(table(100), n_workers=2)
    job.clock([floats(100, 0), floats(100, 1)])
    before = job.rig.core.applied(1)
    job.workers[1].table("w").push(floats(100, 2))
    job.rig.drain()
    assert job.rig.core.applied(1) == before + 1
    assert job.rig.core.version(0) == 1  # the clock is open: worker 0 has not pushed


def test_floats_of_the_first_clock_are_taken_in_order() -> None:
    job = Job(table(100), n_workers=2)
    job.workers[1].table("w").push(floats(100, 2))
    job.rig.drain()
    assert job.rig.core.applied(1) == 0
    job.workers[0].table("w").push(floats(100, 1))
    job.workers[0].clock()
    job.rig.drain()
    assert job.rig.core.applied(1) == 1


@pytest.mark.parametrize("order", [[0, 1, 2], [2, 0, 1]])
def test_closed_tables_are_applied_early_whoever_closes_first(order: list[int]) -> None:
    job = Job(table(300), n_workers=3)
    job.clock([floats(300, w) for w in range(3)])
    before, total = job.rig.values().copy(), np.zeros(300)
    for w in order:
        assert job.rig.core.version(0) == 1
        job.workers[w].table("w").push(floats(300, 10 + w), closes=True)
        total += floats(300, 10 + w)
        with pytest.raises(ConfigError, match="had closed"):
            job.workers[w].table("w").push(floats(300, 0))
        job.rig.drain()
    assert [job.rig.core.version(i) for i in (0, 1)] == [2, 2]
    assert (job.rest() - job.rig.values() + before == total).all()
    for worker in job.workers:
        worker.clock()
    job.rig.drain()
    assert [job.rig.core.version(i) for i in (0, 1)] == [2, 2]
    job.clock([floats(300, w) for w in range(3)])
    assert [job.rig.core.version(i) for i in (0, 1)] == [3, 3]


def test_blocks_that_were_zero_or_too_large_recover_in_the_next_clock() -> None:
    n = 2 * BLOCK
    job = Job(table(n))
    ones, spike = np.zeros(n, np.float32), np.zeros(n, np.float32)
    ones[BLOCK:] = 1.0
    spike[3], spike[BLOCK + 5] = 1000.0, 1e6
    job.clock([ones])
    assert job.exponents().tolist() == [0, 121]
    job.clock([spike])
    # All of the first block stays, and what exceeds 127 scales of the second.
    assert job.rest()[3] == 1000.0
    assert job.rest()[BLOCK + 5] == 1e6 - 127 / 64
    job.clock([np.zeros(n, np.float32)])
    assert job.rest()[3] < 16
    assert job.rest()[BLOCK + 5] < 1e6 / 48
    assert (job.rest() - job.workers[0].table("w").pull() == ones + spike).all()


@pytest.mark.parametrize("greatest", [0, 1, 2])
def test_floats_ask_for_the_scale_of_their_greatest_value_whoever_sends_it(greatest: int) -> None:
    """A block of 600 values takes several records, whose last values are small, too."""
    n = 700
    job, updates = Job(table(n, 600), n_workers=3, n_slots=20), np.full((3, n), 1.0, np.float32)
    updates[greatest, 5] = updates[greatest, 605] = 96.0
    job.clock(list(updates))
    assert job.exponents().tolist() == [127, 127]


def test_a_scale_falls_by_half_in_a_clock_at_most() -> None:
    job = Job(table(BLOCK))
    job.clock([np.full(BLOCK, 96.0, np.float32)])
    seen = [int(job.exponents()[0])]
    for _ in range(3):
        job.clock([np.full(BLOCK, 2.0**-20, np.float32)])
        seen.append(int(job.exponents()[0]))
    assert seen == [127, 126, 125, 124]
    job.clock([None])
    assert int(job.exponents()[0]) == 124  # a clock without a push changes nothing


def test_without_an_update_the_next_clock_is_sent_as_floats_again() -> None:
    job = Job(table(50), n_workers=2)
    job.clock([np.zeros(50, np.float32), None])
    assert not job.exponents().any()
    update = np.random.default_rng(0).standard_normal(50).astype(np.float32)
    job.clock([update, None])
    assert job.exponents().any()
    assert (job.rig.values() == -update).all()


@pytest.mark.parametrize("n_servers", [1, 2, 3, 5])
@pytest.mark.parametrize("n", [1, 31, 100, 5000])
def test_shards_are_cut_between_blocks_and_so_are_their_scales(n: int, n_servers: int) -> None:
    tables = served([table(n), dense(7, "other")])
    placement = place(tables, n_servers, 1, None, 0)
    shards, scales = placement.dense["w"], placement.dense["w.scales"]
    assert [s.start % BLOCK for s in shards] == [0] * len(shards)
    assert [s.server for s in shards] == [s.server for s in scales]
    assert [s.start for s in scales] == [s.start // BLOCK for s in shards]
    assert (shards[0].start, shards[-1].stop) == (0, n)
    assert scales[-1].stop == -(-n // BLOCK)


def test_programs_do_not_see_the_scales() -> None:
    job = Job(table(50))
    with pytest.raises(ConfigError, match=r"no table has the name 'w.scales'; the job has w$"):
        job.workers[0].table("w.scales")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: dense(50, compression="shared_int8", consistency=ASP()),
            "needs BSP without backup",
        ),
        (
            lambda: dense(50, compression="shared_int8", consistency=SSP(1)),
            "needs BSP without backup",
        ),
        (
            lambda: dense(50, compression="shared_int8", consistency=BSP(backup=1)),
            "needs BSP without backup",
        ),
        (
            lambda: dense(50, compression="shared_int8", consistency=DiLoCo(4)),
            "the differences of many steps have no residual",
        ),
        (
            lambda: DenseTable("w", (50,), placement="replicated", compression="shared_int8"),
            "workers sum float32 values",
        ),
        (lambda: EmbeddingTable("e", 32, compression="shared_int8"), "is for dense tables"),
        (lambda: SharedInt8(8), "block = 8"),
        (lambda: codec_of({"name": "auto", "codecs": ["shared_int8"]}), "changes what is learned"),
        (lambda: dense(50, pull_compression="shared_int8"), "pull_compression = 'shared_int8'"),
    ],
)
def test_what_does_not_fit_is_refused(make: Callable[[], object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make()


@pytest.mark.sampled
@pytest.mark.parametrize("load", ["shared", "shared-queued", "shared-alternating"])
def test_killed_at_many_points_all_bits_are_those_of_an_undisturbed_run(load: str) -> None:
    _, tried, kills = crash(load, "everywhere", 67)
    assert kills > tried


def test_killed_again_and_again_it_comes_to_the_same_end() -> None:
    (launches,) = crash("shared-alternating", "shortly", 150)
    assert launches > 3


def payload_of(used: np.ndarray, wanted: np.ndarray, n: int, code: int = 1) -> bytes:
    codes = np.full(n, code, np.int8)
    return used.tobytes() + wanted.tobytes() + codes.tobytes()


def behind_a_clock(n: int = 200) -> Attack:
    """Return an attack in clock 1; the updates of clock 0 were ones, so each exponent is 121."""
    attack = Attack(*served([table(n)]), n_workers=1)
    attack.forge(0, dense_bytes(n), kind=PUSH_DENSE, count=n)
    attack.forge(1, kind=4)
    attack.rig.drain()
    assert set(attack.rig.values(1).tolist()) == {121.0}
    return attack


@pytest.mark.parametrize(
    ("used", "wanted", "fields", "message"),
    [
        (120, 121, {}, "with other scales than those of the clock"),
        (0, 121, {}, "with other scales than those of the clock"),
        (249, 121, {}, "with a scale that does not exist"),
        (121, 255, {}, "with a scale that does not exist"),
        (121, 121, {"codec": 3}, "a push with codec 3, its table has codec shared_int8"),
        (121, 121, {"codec": SHARED | 1 << 4}, "outside its block"),
        (121, 121, {"count": 199}, "payload has"),
        (121, 121, {"table": 1}, "a push to the scales of a table"),
        (121, 121, {"flags": LAST}, "out of order"),
    ],
    ids=str,
)
def test_a_forged_push_is_a_violation(used: int, wanted: int, fields: dict, message: str) -> None:
    attack, n_blocks = behind_a_clock(), -(-200 // BLOCK)
    payload = payload_of(
        np.full(n_blocks, used, np.uint8), np.full(n_blocks, wanted, np.uint8), 200
    )
    given = {"kind": PUSH_DENSE, "clock": 1, "count": 200, "codec": SHARED, **fields}
    attack.forge(2, payload, **given)
    attack.refused(message)


def test_a_push_to_a_table_that_its_worker_has_closed_is_a_violation() -> None:
    attack, exponents = behind_a_clock(), np.full(-(-200 // BLOCK), 121, np.uint8)
    payload = payload_of(exponents, exponents, 200)
    push = {"kind": PUSH_DENSE, "clock": 1, "count": 200, "codec": SHARED}
    attack.forge(2, payload, **push, flags=FIRST | LAST | CLOSES)
    attack.rig.drain()
    attack.forge(3, payload, **push)
    attack.refused("which it had closed")


def test_floats_in_a_clock_with_scales_are_a_violation() -> None:
    attack = behind_a_clock()
    attack.forge(2, dense_bytes(200), kind=PUSH_DENSE, count=200, clock=1)
    attack.refused("with other scales than those of the clock")


def test_random_records_are_applied_or_refused() -> None:
    rng = np.random.default_rng(3)
    exponents = np.full(-(-200 // BLOCK), 121, np.uint8)
    good, refused = payload_of(exponents, exponents, 200), 0
    for _ in range(150):
        payload = np.frombuffer(good, np.uint8).copy()
        for _ in range(rng.integers(0, 3)):
            payload[rng.integers(0, len(payload))] = rng.integers(0, 256)
        payload = payload[: len(payload) - int(rng.integers(0, 2) * rng.integers(0, len(payload)))]
        attack = behind_a_clock()
        count = int(rng.choice([200, 200, 200, 199, 201, 0, 2**32 - 1]))
        attack.forge(2, payload.tobytes(), kind=PUSH_DENSE, clock=1, count=count, codec=SHARED)
        attack.forge(3, kind=4, clock=1)
        with contextlib.suppress(_native.ProtocolViolation):
            attack.rig.drain()
            assert np.isfinite(attack.rig.values()).all()
            continue
        refused += 1
        assert (attack.rig.values() == -1).all()
    assert 30 < refused < 149

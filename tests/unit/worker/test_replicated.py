"""Handles of replicated tables in a job of one process, and what a replicated table refuses."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from local_job import run_local

import mpips
from mpips import ASP, BSP, SSP, ConfigError, DenseTable, EndedError, PythonRule, Replicated, Worker
from mpips.config.options import SessionOptions
from mpips.model.job_tables import fingerprint
from mpips.model.optimizer import OPTIMIZERS, SGD, Adam
from mpips.model.python_rule import replace_values
from mpips.model.table_config import from_config, to_config

N = 3000


def copied(n: int = N, name: str = "w", **options: Any) -> DenseTable:
    return DenseTable(name, (n,), **{"optimizer": SGD(1.0), "placement": "replicated", **options})


def play(main: Callable[[Worker], Any], *tables: DenseTable) -> Any:
    return run_local(main, list(tables), SessionOptions(timeout_s=20))[0]


def noise(clock: int, i: int = 0) -> np.ndarray:
    return np.random.default_rng([clock, i]).standard_normal(N).astype(np.float32)


@pytest.mark.parametrize("name", sorted(OPTIMIZERS))
def test_every_rule_gives_the_bits_of_a_server(name: str) -> None:
    rule = OPTIMIZERS[name]()

    def main(worker: Worker) -> None:
        tables = [worker.table(name) for name in ("served", "w")]
        for clock in range(6):
            pulled = [table.pull() for table in tables]
            assert pulled[0].tobytes() == pulled[1].tobytes()
            for slot in range(rule.n_state):
                states = [table.optimizer_state(slot).tobytes() for table in tables]
                assert states[0] == states[1]
            assert [table.n_updates() for table in tables] == [(0, 0, 1, 2, 2, 3)[clock]] * 2
            for table in tables:
                for i in range(clock % 3):
                    table.push(noise(clock, i))
            worker.clock()
        assert tables[0].pull().any()

    play(
        main,
        DenseTable("served", (N,), rule, init=noise(9)),
        copied(optimizer=rule, init=noise(9)),
    )


@pytest.mark.parametrize("reduce", ["mean", "sum"])
def test_values_can_be_replaced_by_what_workers_push(reduce: Any) -> None:
    options: Any = {"optimizer": PythonRule(replace_values), "consistency": BSP(reduce)}

    def main(worker: Worker) -> None:
        for clock in range(4):
            for name in ("served", "w"):
                for i in range(clock % 3):
                    worker.table(name).push(noise(clock, i))
            worker.clock()
            pulled = [worker.table(name).pull() for name in ("served", "w")]
            assert pulled[0].tobytes() == pulled[1].tobytes()

    play(
        main, DenseTable("served", (N,), init=noise(9), **options), copied(init=noise(9), **options)
    )


def test_a_handle_has_what_that_of_a_dense_table_has() -> None:
    ones = np.ones(N, np.float32)

    def main(worker: Worker) -> dict[str, int]:
        w = worker.table("w")
        assert (w.paths, w.shape, w.name) == (["replicated"], (N,), "w")
        request = w.push(ones)
        assert request.test()
        assert request.wait().applied == 1
        assert not w.pull().any()  # not before the clock ends
        worker.clock()
        out = np.empty(N, np.float32)
        assert w.prefetch(out).wait() is out
        assert (out == -1).all()
        assert (w.push_pull(ones.astype(np.float64)) == -2).all()
        ((start, stop, flat),) = w.views()
        assert (start, stop, flat.flags.writeable) == (0, N, False)
        assert (w.view() == -2).all()
        return worker.counters()

    counters = play(main, copied())
    assert (counters["pushed"], counters["applied"]) == (2, 2)
    assert (counters["pushed_bytes"], counters["pulled_bytes"]) == (8 * N, 12 * N)


def test_a_closed_table_is_refused_until_the_clock_ends() -> None:
    def main(worker: Worker) -> None:
        w = worker.table("w")
        w.push(np.ones(N, np.float32), closes=True)
        for use in (
            w.pull,
            w.view,
            w.prefetch,
            lambda: w.push(noise(0)),
            lambda: w.set_optimizer(SGD(2)),
        ):
            with pytest.raises(ConfigError, match=r"table 'w' at clock 0, which this worker"):
                use()
        worker.clock()
        assert (w.pull() == -1).all()

    play(main, copied())


def test_bad_updates_are_refused_and_nothing_is_summed() -> None:
    bad = np.ones(N, np.float32)
    bad[7] = np.nan

    def main(worker: Worker) -> None:
        w = worker.table("w")
        with pytest.raises(ValueError, match="contains nan at position 7"):
            w.push(bad)
        with pytest.raises(ValueError, match="shape"):
            w.push(bad[1:])
        with pytest.raises(ValueError, match="shape"):
            w.pull(np.empty(N - 1, np.float32))
        with pytest.raises(ConfigError, match="must be an optimizer of the table's kind, SGD"):
            w.set_optimizer(Adam(0.1))
        worker.clock()
        assert not w.pull().any()
        worker.table("clipped").push(np.full(N, 3, np.float32))
        worker.clock()
        assert np.linalg.norm(worker.table("clipped").pull()) == pytest.approx(1)

    play(main, copied(), copied(name="clipped", clip_norm=1.0))


def test_a_clock_takes_a_bounded_number_of_pushes() -> None:
    def main(worker: Worker) -> None:
        w = worker.table("w")
        for _ in range(8):
            w.push(np.ones(N, np.float32))
        with pytest.raises(ConfigError, match=r"push 9 to table 'w' in clock 0: .* takes 8 pushes"):
            w.push(np.ones(N, np.float32))
        worker.clock()
        assert (w.pull() == -8).all()

    play(main, copied())


def test_new_hyperparameters_count_from_their_clock_on() -> None:
    def main(worker: Worker) -> list[float]:
        w, found = worker.table("w"), []
        for clock in range(4):
            if clock == 2:
                w.set_optimizer(SGD(4.0))
                w.set_optimizer(SGD(8.0))
            w.push(np.ones(N, np.float32))
            worker.clock()
            found.append(float(w.pull()[0]))
        return found

    assert play(main, copied()) == [-1, -2, -10, -18]


def test_checkpoints_move_a_table_to_the_workers_and_back(tmp_path: Path) -> None:
    def main(worker: Worker) -> bytes:
        begin = worker.now + (worker.start.step if worker.start else 0)
        for clock in range(begin, begin + 3):
            worker.table("w").push(noise(clock))
            worker.clock()
        found: bytes = worker.table("w").pull().tobytes()
        return found

    def run(folder: str, *placements: str) -> bytes:
        for placement in placements:
            table = DenseTable("w", (N,), Adam(0.1), placement=placement)
            value: bytes = mpips.run(main, [table], save=tmp_path / folder, verbose=False).value
        return value

    served = run("a", "servers", "servers", "servers")
    assert run("b", "replicated", "servers", "replicated") == served
    assert run("c", "servers", "replicated", "servers") == served


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"consistency": ASP()}, "needs consistency BSP.. without backup workers, not ASP"),
        ({"consistency": SSP()}, "needs consistency BSP.. without backup workers, not SSP"),
        ({"consistency": BSP(backup=1)}, "needs consistency BSP.. without backup workers"),
        ({"optimizer": PythonRule(print)}, "needs an optimizer of mpips, not the Python"),
        ({"placement": "workers"}, "placement = 'workers': must be 'servers', 'replicated', Repl"),
        ({"placement": None}, "placement = None: must be"),
    ],
)
def test_what_cannot_be_replicated_is_refused_in_one_sentence(
    options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=f"table 'w': .*{message}"):
        copied(**options)


@pytest.mark.parametrize("every", [-1, 1.5, True])
def test_comparisons_need_a_number_of_clocks(every: Any) -> None:
    with pytest.raises(ConfigError, match=r"check_every = .* must be a whole number"):
        Replicated(check_every=every)


def test_the_placement_is_part_of_a_table_s_description() -> None:
    tables = [copied(), copied(placement="servers"), copied(placement=Replicated(5))]
    assert len({fingerprint([table], "") for table in tables}) == 3
    assert [from_config(to_config(table)) for table in tables] == tables
    assert [table.is_replicated for table in tables] == [True, False, True]


def test_a_table_is_refused_after_the_end_of_its_job() -> None:
    worker = play(lambda worker: worker, copied())
    for use in (worker.table("w").pull, lambda: worker.table("w").push(noise(0))):
        with pytest.raises(EndedError):
            use()

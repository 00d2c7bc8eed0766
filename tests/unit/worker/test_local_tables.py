"""Tables under LocalSGD and DiLoCo in a job of one process: exact arithmetic, refusals."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from local_job import run_local
from local_sgd import Simulation, gradient
from local_tables_rig import N, noise

import mpips
from mpips import ASP, BSP, SSP, ConfigError, DenseTable, DiLoCo, EmbeddingTable, LocalSGD, Worker
from mpips.config.options import SessionOptions
from mpips.errors import StallError
from mpips.model.job_tables import check_tables
from mpips.model.optimizer import OPTIMIZERS, SGD, Adam, Momentum, Nesterov
from mpips.model.python_rule import PythonRule, replace_values
from mpips.model.served import fragments_of
from mpips.model.table_config import from_config, to_config
from mpips.worker.best import can_cut_here
from mpips.worker.dense import DenseHandle


def play(main: Callable[[Worker], Any], *tables: Any) -> Any:
    return run_local(main, list(tables), SessionOptions(timeout_s=20))[0]


def trace(consistency: Any, rule: Any = None, steps: int = 12, whole: bool = True) -> Any:
    """Return the values before each step, and at the end."""

    def main(worker: Worker) -> list[np.ndarray]:
        table, seen = worker.table("w"), []
        for step in range(steps):
            seen.append(table.pull())
            update = np.rint(8 * noise(step)) if whole else noise(step) + seen[-1]
            table.push(update)
            worker.clock()
            assert worker.now == step + 1
        worker.synchronize()
        return [*seen, table.pull()]

    return play(main, DenseTable("w", (N,), rule or SGD(0.25), consistency))


def test_one_inner_step_gives_the_bits_of_bsp() -> None:
    assert np.array_equal(trace(LocalSGD(1)), trace(BSP()))
    # Without whole numbers base - (base - lr g) is rounded once more than lr g: an ulp of the values.
    found, expected = (np.array(trace(c, whole=False)) for c in (LocalSGD(1), BSP()))
    assert np.abs(found - expected).max() <= 12 * np.spacing(np.abs(expected).max())


def test_diloco_with_outer_sgd_of_1_is_local_sgd() -> None:
    for steps in (1, 5):
        a, b = (trace(c, Adam(0.1), whole=False) for c in (LocalSGD(steps), DiLoCo(steps, SGD(1))))
        assert np.array(a).tobytes() == np.array(b).tobytes()


@pytest.mark.parametrize("name", sorted(OPTIMIZERS))
def test_inner_steps_have_the_bits_of_a_server(name: str) -> None:
    rule = OPTIMIZERS[name]()
    found, expected = (trace(c, rule, whole=False) for c in (LocalSGD(100), BSP()))
    assert np.array(found[:-1]).tobytes() == np.array(expected[:-1]).tobytes()
    assert np.any(expected[-1])


STREAMS: list[dict[str, Any]] = [
    {"steps": 4},
    {"steps": 4, "lr": 0.5, "momentum": 0.5},
    {"steps": 4, "delay": 1, "mix": 0.5},
    {"steps": 7, "fragments": 3, "lr": 0.5},
    {"steps": 8, "fragments": 2, "delay": 3, "mix": 0.25, "lr": 0.5, "momentum": 0.5},
    {"steps": 3, "fragments": 3},
    {"steps": 6, "delay": 5, "mix": 0.0},
]
SIZES = (40, 24, 64, 9)


def stream_tables(options: dict[str, Any]) -> list[DenseTable]:
    given = dict(options)
    outer = Nesterov(given.pop("lr", 1.0), given.pop("momentum", 0.0))
    consistency = DiLoCo(outer=outer, **given)
    return [DenseTable(f"w{i}", (n,), SGD(1.0), consistency) for i, n in enumerate(SIZES)]


@pytest.mark.parametrize("options", STREAMS)
def test_values_are_those_of_the_papers_algorithm(options: dict[str, Any]) -> None:
    tables = stream_tables(options)
    fragments = fragments_of(dict(enumerate(tables)))
    # Enough outer steps to go through all fragments; halves of multiples of 64 are exact that often.
    n_steps = 2 * options["steps"]
    expected, outer = Simulation(1, SIZES, [*fragments.values()], **options).run(n_steps)
    order = list(fragments)
    assert sorted(order) == [0, 1, 2, 3]

    def main(worker: Worker) -> None:
        handles = [worker.table(t.name) for t in tables]
        for step in range(n_steps):
            for i, handle in enumerate(handles):
                assert np.array_equal(handle.pull(), expected[step][i]), (step, i)
                handle.push(gradient(0, step, i, SIZES[i]))
            worker.clock()
        if not options.get("delay"):
            with worker.averaged():
                found = [handle.pull() for handle in handles]
            assert all(np.array_equal(a, b) for a, b in zip(found, outer, strict=True))

    simulated = Simulation(1, SIZES, [fragments[i] for i in range(4)], **options)
    expected, outer = simulated.run(n_steps)
    play(main, *tables)


def test_pushes_of_one_clock_are_summed_and_a_clock_without_one_changes_nothing() -> None:
    def main(worker: Worker) -> None:
        table = worker.table("w")
        table.push(np.full(N, 1.0))
        table.push(np.full(N, 2.0), closes=True)
        with pytest.raises(ConfigError, match="had closed by a push with closes=True"):
            table.push(np.ones(N))
        with pytest.raises(ConfigError, match="had closed"):
            table.pull()
        worker.clock()
        assert table.view().tolist() == [-3.0] * N
        worker.clock()
        assert table.pull().tolist() == [-3.0] * N
        with pytest.raises(ValueError, match="contains nan at position 0"):
            table.push(np.full(N, np.nan))
        table.set_optimizer(Momentum(2.0, 0.5))
        assert table.push_pull(np.ones(N)).tolist() == [-3 - 2 * (1 + 0.5 * 3)] * N
        assert table.paths == ["local"]
        assert not table.view().flags.writeable

    play(main, DenseTable("w", (N,), Momentum(1.0, 0.5), LocalSGD(50)))


def test_averaged_values_are_those_of_the_last_outer_step() -> None:
    def main(worker: Worker) -> None:
        table = worker.table("w")
        for step in range(5):
            table.push(np.ones(N))
            worker.clock()
            with worker.averaged():
                assert table.pull()[0] == -(step + 1) // 3 * 3 if step == 2 else True
                assert table.pull()[0] == (-3.0 if step >= 2 else 0.0)
            assert table.pull()[0] == -(step + 1)
        pushed = worker.counters()["pushed"]
        worker.synchronize()
        worker.synchronize()
        assert worker.counters()["pushed"] == pushed + 1
        with worker.averaged():
            assert table.pull()[0] == -5.0

    play(main, DenseTable("w", (N,), SGD(1.0), LocalSGD(3)))


def test_pushes_and_bytes_are_those_of_outer_steps() -> None:
    def main(worker: Worker) -> dict[str, int]:
        for _ in range(48):
            worker.table("w").pull()
            worker.table("w").push(np.ones(N))
            worker.clock()
        return worker.counters()

    sent = play(main, DenseTable("w", (N,), SGD(1.0), LocalSGD(24)))
    encoded = play(main, DenseTable("w", (N,), SGD(1.0), DiLoCo(24, compression="int8")))
    assert sent["pushed"] == encoded["pushed"] == 2
    assert sent["pushed_bytes"] == 2 * 4 * N
    assert encoded["pushed_bytes"] < 0.3 * sent["pushed_bytes"]


@pytest.mark.parametrize("consistency", [BSP(), LocalSGD(4), LocalSGD(3), LocalSGD(9)], ids=str)
def test_the_end_of_the_job_ends_the_clock_of_the_last_pushes(consistency: Any) -> None:
    def main(worker: Worker) -> None:
        for _ in range(3):
            worker.table("w").push(np.ones(N))
            worker.clock()
        worker.table("w").push(np.full(N, 100.0))

    outcome = mpips.run(main, [DenseTable("w", (N,), SGD(1.0), consistency)], verbose=False)
    assert outcome.tables["w"].tolist() == [-103.0] * N


def test_between_a_push_and_its_clock_is_no_outer_step_and_no_cut() -> None:
    def main(worker: Worker) -> None:
        table = worker.table("w")
        for _ in range(2):
            table.push(np.ones(N))
            assert not can_cut_here(worker)
            worker.clock()
            assert can_cut_here(worker)
        table.push(np.full(N, 100.0))
        with pytest.raises(
            ConfigError,
            match=r"^synchronize: worker 0 has pushed to 'w' since its last clock; call clock\(\) first",
        ):
            worker.synchronize()
        worker.clock()
        worker.synchronize()
        assert table.pull().tolist() == [-102.0] * N

    play(main, DenseTable("w", (N,), SGD(1.0), LocalSGD(4)))


def test_a_stall_after_synchronize_says_who_sends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def pull(_: Any, out: Any) -> None:
        raise StallError("worker 1 is late")

    def main(worker: Worker) -> None:
        table = worker.table("w")
        for synchronizes in (False, True):
            table.push(np.ones(N))
            worker.clock()
            if synchronizes:
                worker.synchronize()
            with monkeypatch.context() as patch:
                patch.setattr(DenseHandle, "pull", pull)
                with pytest.raises(StallError, match="worker 1 is late") as caught:
                    table.pull()
            assert ("either all workers or none" in str(caught.value)) == synchronizes

    play(main, DenseTable("w", (N,), SGD(1.0), LocalSGD(1)))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"steps": 0}, "steps = 0: must be from 1 to 2147483647"),
        (
            {"steps": 4, "fragments": 5},
            "fragments = 5 with steps = 4: each fragment needs an inner step",
        ),
        (
            {"steps": 4, "delay": 4},
            "delay = 4 with steps = 4 and fragments = 1: must be less than the 4",
        ),
        (
            {"steps": 9, "fragments": 2, "delay": 4},
            "must be less than the 4 inner steps between two",
        ),
        ({"mix": 0.5}, "mix = 0.5 without a delay has no effect"),
        ({"mix": 1.0, "delay": 1}, "mix = 1.0: must be at least 0 and less than 1"),
        (
            {"outer": PythonRule(replace_values)},
            "is a Python rule: the outer rule must be an optimizer",
        ),
        ({"outer": 0.7}, "outer = 0.7: must be a value such as Nesterov"),
        ({"outer": "nestrov"}, "unknown optimizer 'nestrov'"),
    ],
)
def test_values_that_do_not_fit_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message.replace("(", r"\(")):
        DiLoCo(**options)


def dense(name: str, consistency: Any, **options: Any) -> DenseTable:
    return DenseTable(name, (N,), consistency=consistency, **options)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: [EmbeddingTable("e", 8, consistency=LocalSGD(4))], "LocalSGD is for dense tables"),
        (
            lambda: [dense("w", DiLoCo(4), optimizer=PythonRule(replace_values))],
            "needs an optimizer of mpips, not the Python rule",
        ),
        (lambda: [dense("w", DiLoCo(4), placement="replicated")], "needs consistency BSP"),
        (
            lambda: [dense("w", DiLoCo(4, compression="int8"), compression="bf16")],
            "give one of the two",
        ),
        (
            lambda: [dense("a", LocalSGD(4)), dense("b", LocalSGD(5))],
            "'a' and 'b' have outer steps at different clocks",
        ),
        (lambda: [dense("a", DiLoCo(8, fragments=2))], "fragments = 2 with 1 tables under DiLoCo"),
        (
            lambda: [dense("a", LocalSGD(4)), dense("b", BSP())],
            "'b' is BSP beside 'a' under LocalSGD",
        ),
        (
            lambda: [dense("a", LocalSGD(4)), EmbeddingTable("e", 4, consistency=SSP())],
            "'e' is SSP beside 'a' under LocalSGD",
        ),
        (lambda: [dense("a", LocalSGD)], "consistency = LocalSGD is a class; call it: LocalSGD"),
    ],
)
def test_tables_that_do_not_fit_are_refused(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check_tables(make())


def test_rows_under_asp_train_beside_local_tables() -> None:
    def main(worker: Worker) -> Sequence[float]:
        keys = np.arange(3)
        for _ in range(6):
            worker.table("e").push(keys, np.ones((3, 4), np.float32))
            worker.table("w").push(np.ones(N))
            worker.clock()
        return [worker.table("e").pull(keys)[0, 0], worker.table("w").pull()[0]]

    tables = [EmbeddingTable("e", 4, SGD(1.0), ASP()), dense("w", LocalSGD(4), optimizer=SGD(1.0))]
    assert play(main, *tables) == [-6.0, -6.0]


def test_descriptions_of_tables_travel_as_plain_values() -> None:
    for consistency in (
        LocalSGD(3),
        DiLoCo(9, Momentum(0.5, 0.25), 3, 2, 0.25, "int8"),
        DiLoCo(9, "nesterov"),
    ):
        table = dense("w", consistency, init="zeros")
        assert from_config(to_config(table)) == table


def test_fragments_have_about_equal_numbers_of_values() -> None:
    sizes = [70, 10, 10, 30, 20, 60]
    tables = {
        i: DenseTable(f"w{i}", (n,), consistency=DiLoCo(9, fragments=3))
        for i, n in enumerate(sizes)
    }
    found = fragments_of(tables)
    sums = [sum(sizes[i] for i, f in found.items() if f == fragment) for fragment in range(3)]
    assert sums == [70, 70, 60]

"""`mpips.run` in one process: what a notebook or a first script does."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mpips
from mpips import ASP, BSP, SSP, ConfigError, DenseTable, EmbeddingTable, Worker
from mpips.session.calling import ExitedError, call

UNIT = mpips.SGD(lr=1.0)

SCRIPT = """
import numpy as np
import mpips

def main(worker):
    weights, rows = worker.table("weights"), worker.table("rows")
    for _ in range(3):
        values = weights.pull()
        weights.push(np.ones_like(values))
        rows.push(np.array([7, 10**12]), np.ones((2, 4), np.float32))
        worker.clock()
    return weights.pull().tolist(), rows.pull(np.array([10**12, 8]))[:, 0].tolist()

tables = [
    mpips.DenseTable("weights", (2, 2), optimizer=mpips.SGD(lr=0.5)),
    mpips.EmbeddingTable("rows", 4, optimizer=mpips.SGD(lr=2.0)),
]
outcome = mpips.run(main, tables)
if outcome.is_first_worker:
    print(outcome.value)
"""


def test_a_first_script_runs_without_a_launcher() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "([[-1.5, -1.5], [-1.5, -1.5]], [-6.0, 0.0])\n"
    assert done.stderr == ""


def test_an_outcome_tells_value_role_transports_and_statistics() -> None:
    def main(worker: Worker) -> str:
        worker.table("w").push(np.ones(2, np.float32))
        return f"worker {worker.index} of {worker.n_workers}"

    outcome = mpips.run(main, [DenseTable("w", (2,))])
    assert outcome.value == "worker 0 of 1"
    assert outcome.role == "scheduler + server 0 + worker 0"
    assert outcome.is_first_worker
    assert outcome.transports == {"local": 1}
    assert outcome.statistics["servers"][0]["tables"]["w"]["applied"] == 1
    assert outcome.statistics["workers"][0]["pushes"]["pushed"] == 1


@pytest.mark.parametrize("model", [BSP(), SSP(), ASP()], ids=["bsp", "ssp", "asp"])
def test_one_process_never_waits_for_itself(model: Any) -> None:
    def main(worker: Worker) -> float:
        w, e = worker.table("w"), worker.table("e")
        keys = np.arange(400)
        for _ in range(10):
            w.pull()
            w.push(np.full(5000, -1.0, np.float32))
            e.push(keys, -np.ones((400, 3), np.float32))
            e.prefetch(keys)
            e.pull(keys)
            worker.clock()
            worker.barrier("here")
        return float(w.pull()[17] + e.pull(keys)[3, 1])

    tables = [
        DenseTable("w", (5000,), optimizer=UNIT, consistency=model),
        EmbeddingTable("e", 3, optimizer=UNIT, consistency=model),
    ]
    assert mpips.run(main, tables, slot_kib=1, ring_slots=2, timeout_s=20).value == 20.0


def test_an_error_of_the_users_own_comes_out_unchanged_and_the_next_run_works() -> None:
    def fail(worker: Worker) -> None:
        raise LookupError("mine")

    with pytest.raises(LookupError, match="mine"):
        mpips.run(fail, [DenseTable("w", (2,))])
    assert mpips.run(lambda worker: worker.now, [DenseTable("w", (2,))]).value == 0


@pytest.mark.parametrize(
    ("tables", "options", "kind", "text"),
    [
        ([], {}, ConfigError, "a job needs at least one table"),
        ([DenseTable("w", (1,))] * 2, {}, ConfigError, "two tables are named 'w'"),
        (
            [DenseTable("w", (1,))],
            {"servers": 2},
            ConfigError,
            "servers = 2 is too many for 1 rank",
        ),
        ([DenseTable("w", (1,))], {"servres": 2}, ConfigError, "unknown option 'servres'"),
        ([DenseTable("w", (1,))], {"transport": "rma"}, ConfigError, "needs several ranks"),
        ([EmbeddingTable("e", 9999)], {}, None, ""),
        ([EmbeddingTable("e", 99999)], {"slot_kib": 128}, ConfigError, "slot_kib = 128"),
    ],
)
def test_what_cannot_work_is_refused_before_it_starts(
    tables: list[Any], options: dict[str, Any], kind: type[Exception] | None, text: str
) -> None:
    started: list[int] = []

    def main(worker: Worker) -> None:
        started.append(1)

    if kind is None:
        mpips.run(main, tables, **options)
        assert started == [1]
        return
    with pytest.raises(kind) as caught:
        mpips.run(main, tables, **options)
    assert text in str(caught.value)
    assert started == []


def a_generator(worker: Worker) -> Any:
    yield worker.now


async def a_coroutine(worker: Worker) -> None:
    worker.clock()


@pytest.mark.parametrize(
    ("main", "tables", "text"),
    [
        (print, DenseTable("w", (1,)), "tables is DenseTable: must be a list of tables"),
        (print, {"w": DenseTable("w", (1,))}, "tables is dict: must be a list of tables"),
        (print, ["w"], "tables contains str: must be a list of tables"),
        (print, [DenseTable], "tables contains the class DenseTable: must be a list of tables"),
        ([DenseTable("w", (1,))], print, "main is list: must be a function of a worker"),
        ("main", [DenseTable("w", (1,))], "main is str: must be a function of a worker"),
    ],
)
def test_arguments_in_the_wrong_place_are_refused(main: Any, tables: Any, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        mpips.run(main, tables)


@pytest.mark.parametrize("below", ["", "deeper"])
def test_a_folder_for_checkpoints_that_is_a_file_is_refused_at_the_start(
    tmp_path: Path, below: str
) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"save = '.*': .*/file is not a folder; name a folder"):
        mpips.run(
            lambda _: pytest.fail("at work"),
            [DenseTable("w", (1,))],
            save=tmp_path / "file" / below,
        )


ENDS_UNSAVED = """
import pathlib, sys, mpips

def spoil(folder):
    for path in folder.iterdir():
        path.unlink()
    folder.rmdir()
    folder.touch()

folder = pathlib.Path("saved")
table = mpips.DenseTable("w", (2,))
if sys.argv[1] == "run":
    def main(worker):
        worker.table("w").push([1.0, 1.0])
        worker.clock()
        spoil(folder)
    folder.mkdir()
    (folder / "x").touch()
    print(mpips.run(main, [table], save=folder).unsaved)
else:
    import numpy as np
    mpips.init(save=folder, verbose=False)
    folder.mkdir(exist_ok=True)
    import mpips.jax
    model = mpips.jax.declare({"w": np.zeros(2, np.float32)}, optimizer=mpips.SGD(0.1))
    model.push(model.pull())
    mpips.jax.step()
    spoil(folder)
"""


@pytest.mark.parametrize(("kind", "code"), [("run", 0), ("init", 1)])
def test_a_job_whose_last_checkpoint_was_not_written_says_so(
    tmp_path: Path, kind: str, code: int
) -> None:
    if kind == "init":
        pytest.importorskip("jax", reason="mpips.jax needs JAX")
    command = [sys.executable, "-c", ENDS_UNSAVED, kind]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    reason = "the checkpoint of step 1 was not written to saved: File exists (saved)"
    assert done.returncode == code, done.stderr
    if kind == "run":
        assert done.stdout == f"{reason}\n"
        assert f"mpips: warning: {reason}; the values at the end of the job" in done.stderr
    else:
        assert f"mpips: error: {reason}" in done.stderr


@pytest.mark.parametrize(
    ("main", "text"),
    [
        (a_generator, "a_generator contains yield, so calling it trains nothing: use return"),
        (a_coroutine, "a_coroutine is async, so calling it trains nothing: write def"),
        (
            lambda w: a_generator(w),
            "<lambda> returned a generator, so nothing was trained: use return",
        ),
        (
            lambda w: a_coroutine(w),
            "<lambda> returned a coroutine, so nothing was trained: write def",
        ),
    ],
)
def test_a_main_of_which_nothing_would_run_is_refused(main: Any, text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        mpips.run(main, [DenseTable("w", (1,))])
    assert str(caught.value) == text


def test_sys_exit_without_a_code_is_a_return(tmp_path: Path) -> None:
    def main(worker: Worker) -> None:
        worker.table("w").push(np.ones(1, np.float32))
        sys.exit()

    outcome = mpips.run(main, [DenseTable("w", (1,))], save=tmp_path)
    assert (outcome.value, outcome.is_first_worker) == (None, True)
    assert (tmp_path / "latest").exists()


@pytest.mark.parametrize(("given", "code"), [(3, 3), ("no data", 1)])
def test_sys_exit_with_a_code_ends_the_job_with_it(given: object, code: int) -> None:
    def main(worker: Worker) -> None:
        sys.exit(given)  # type: ignore[arg-type]

    with pytest.raises(SystemExit) as left:
        mpips.run(main, [DenseTable("w", (1,))])
    assert left.value.code == given
    with pytest.raises(ExitedError) as caught:
        call(main, None, alone=False)  # type: ignore[arg-type]
    assert caught.value.exit_code == code
    assert str(caught.value) == f"main called sys.exit({given!r})"


@pytest.mark.parametrize("kind", [DenseTable, EmbeddingTable])
def test_strings_say_in_python_what_they_say_in_a_job(kind: Any) -> None:
    table = kind("w", (4,) if kind is DenseTable else 4, "adam", "ssp")
    assert (table.optimizer, table.consistency) == (mpips.Adam(), mpips.SSP())
    given = {"name": "adam", "lr": 0.5}
    assert DenseTable("w", (4,), given).optimizer == mpips.Adam(lr=0.5)  # type: ignore[arg-type]
    assert DenseTable("w", (4,), consistency="ASP").consistency == mpips.ASP()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (
            {"optimizer": mpips.Adam},
            "table 'w': optimizer = Adam is a class; call it: Adam() or Adam(lr=0.001)",
        ),
        ({"consistency": mpips.SSP}, "table 'w': consistency = SSP is a class; call it: SSP()"),
        (
            {"optimizer": "adm"},
            "table 'w': unknown optimizer 'adm'; valid are sgd, momentum, nesterov, delayed_nesterov, "
            "adagrad, rmsprop, adam, adamw, ftrl, row_adagrad, replace; did you mean 'adam'?",
        ),
        (
            {"consistency": "spp"},
            "table 'w': unknown consistency 'spp'; valid are bsp, ssp, asp, local_sgd, diloco, switch, auto; "
            "did you mean 'ssp'?",
        ),
        (
            {"optimizer": 0.1},
            "table 'w': optimizer = 0.1: must be an optimizer such as Adam(lr=0.001), or its name",
        ),
        (
            {"consistency": 2},
            "table 'w': consistency = 2: must be BSP(), SSP(bound=2), ASP(), LocalSGD() or "
            "DiLoCo(), or a name: bsp, ssp, asp, local_sgd, diloco, auto; or Switch(BSP(), ASP(), at=1000)",
        ),
        (
            {"consistency": "switch"},
            "table 'w': consistency = 'switch' needs the clock of the switch: use Switch(BSP(), ASP(), "
            "at=1000), or at='plateau' or at='uneven'",
        ),
    ],
)
def test_what_is_no_optimizer_or_consistency_is_refused_with_the_call(
    arguments: dict[str, Any], sentence: str
) -> None:
    for make in (
        lambda: DenseTable("w", (4,), **arguments),
        lambda: EmbeddingTable("w", 4, **arguments),
    ):
        with pytest.raises(ConfigError) as caught:
            make()
        assert str(caught.value) == sentence


def test_a_run_gives_the_signal_handler_back() -> None:
    before = signal.getsignal(signal.SIGTERM)
    seen: list[Any] = []
    mpips.run(lambda w: seen.append(signal.getsignal(signal.SIGTERM)), [DenseTable("w", (1,))])
    assert seen[0] is not before
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_run_works_outside_the_main_thread() -> None:
    values: list[Any] = []
    thread = threading.Thread(
        target=lambda: values.append(mpips.run(lambda w: w.index, [DenseTable("w", (1,))]).value)
    )
    thread.start()
    thread.join(30)
    assert values == [0]


def test_equal_seeds_give_equal_rows_and_others_do_not() -> None:
    def rows(seed: int, keys: list[int]) -> np.ndarray:
        table = EmbeddingTable("e", 8, init="normal(1)")
        value: np.ndarray = mpips.run(
            lambda w: w.table("e").pull(np.array(keys)), [table], seed=seed
        ).value
        return value

    assert np.array_equal(rows(1, [5, 9]), rows(1, [9, 5])[::-1])
    assert not np.array_equal(rows(1, [5, 9]), rows(2, [5, 9]))

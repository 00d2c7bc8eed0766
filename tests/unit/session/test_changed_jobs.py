"""A job that starts from the checkpoint of a job with other options: exact, refused, or named in a note.

All jobs run in this process, with one worker. Updates are whole numbers, and so are all values, so results
are compared with `==`. Groups of workers and other numbers of ranks: tests/mpi/test_residuals.py.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from long_runs import by_day

import mpips
from mpips import ASP, BSP, SGD, SSP, DenseTable, DiLoCo, LocalSGD, Worker
from mpips.checkpoint import list_checkpoints, open_checkpoint
from mpips.errors import CheckpointError, ConfigError
from mpips.worker.worker import connection_of

N = 6
NAMES = "abc"
UNIT = 64.0  # of updates


class Stopped(Exception):
    """The end of a job behind a checkpoint in its middle."""


def await_checkpoint(worker: Worker) -> None:
    """Let the server write the checkpoint that is ordered."""
    connection: Any = connection_of(worker)

    def written() -> bool:
        connection.channels[0].wait_head(0, 10**6, 0, 0.001)
        return bool(connection.control.scheduler.statistics()["checkpoints"]["written"])

    connection.wait_until(written, str)


def run(main: Callable[[Worker], Any], tables: list[DenseTable], folder: Path, stops: bool) -> Any:
    """Run a job; `stops`: it ends by Stopped."""
    if not stops:
        return mpips.run(main, tables, save=folder).value
    with pytest.raises(Stopped):
        mpips.run(main, tables, save=folder)
    return None


# DiLoCo with other times.


@dataclass(frozen=True)
class Times:
    """Options of DiLoCo."""

    steps: int
    fragments: int
    delay: int

    def consistency(self) -> DiLoCo:
        mix = 0.5 if self.delay else None
        return DiLoCo(self.steps, SGD(2.0), self.fragments, self.delay, mix)


def any_times(random: random.Random) -> Times:
    fragments = random.randint(1, 3)
    steps = random.randint(fragments, 9)
    return Times(steps, fragments, random.randint(0, steps // fragments - 1))


ZERO, HALF, TWO = (np.float32(x) for x in (0, 0.5, 2))


@dataclass
class Model:
    """DiLoCo with one worker, written from its description: the outer rule is SGD(2.0), mix is 0.5.

    Every operation is rounded to float32, as those of workers and servers are.
    """

    times: Times
    own: list[np.float32] = field(default_factory=lambda: [ZERO] * len(NAMES))
    servers: list[np.float32] = field(default_factory=lambda: [ZERO] * len(NAMES))
    # Share of the own values where the new ones of an outer step are not taken yet.
    mix: list[np.float32 | None] = field(default_factory=lambda: [None] * len(NAMES))
    done: int = 0  # inner steps of the period
    wait: int = 0  # inner steps until new values are taken

    def ends(self, done: int) -> list[int]:
        """Return the fragments with an outer step behind this many inner steps of a period."""
        t = self.times
        return [f for f in range(t.fragments) if done == (f + 1) * t.steps // t.fragments]

    def settle(self) -> None:
        if self.wait == 0:
            for i, mix in enumerate(self.mix):
                if mix is not None:
                    other = (np.float32(1) - mix) * self.servers[i]
                    self.own[i] = mix * self.own[i] + other if mix else self.servers[i]
                    self.mix[i] = None

    def step(self, updates: list[float]) -> None:
        """Make an inner step, and the outer step behind it."""
        self.settle()
        for i, update in enumerate(updates):
            self.own[i] -= np.float32(update)
        self.done, self.wait = self.done + 1, max(0, self.wait - 1)
        for f in self.ends(self.done):
            for i in range(f, len(NAMES), self.times.fragments):
                assert self.mix[i] is None
                self.servers[i] -= TWO * (self.servers[i] - self.own[i])
                self.mix[i] = HALF if self.times.delay else ZERO
            self.wait = self.times.delay
        if self.done == self.times.steps:
            self.done = 0

    def restart(self, times: Times) -> None:
        """Continue with other times: what is pending is taken before the next outer step."""
        self.times, self.done = times, min(self.done, times.steps - 1)
        before = next(n for n in range(times.steps) if self.ends(self.done + 1 + n))
        self.wait = min(self.wait, times.delay, before)


def tables_of(times: Times) -> list[DenseTable]:
    return [DenseTable(n, (N,), SGD(1.0), times.consistency(), init="zeros") for n in NAMES]


def updates_at(step: int) -> list[float]:
    rng = np.random.default_rng(step)
    return [UNIT * float(u) for u in rng.integers(-3, 4, len(NAMES))]


@pytest.mark.sampled
@pytest.mark.parametrize("seed", by_day(range(60), 10))
def test_diloco_continues_with_other_steps_fragments_and_delays(tmp_path: Path, seed: int) -> None:
    draw = random.Random(seed)
    model, at = Model(any_times(draw)), 0
    for number in range(4):
        times, orders = model.times, at + draw.randint(0, 5)
        seen: list[tuple[int, list[float]]] = []

        def main(worker: Worker, orders: int = orders, seen: Any = seen) -> None:
            """Go on beyond the cut, which is at the first outer step behind the order."""
            handles = [worker.table(name) for name in NAMES]
            for step in range(worker.cursor.get("step", 0), orders + 15):
                seen.append((step, [float(handle.pull()[0]) for handle in handles]))
                for handle, update in zip(handles, updates_at(step), strict=True):
                    handle.push(np.full(N, update, np.float32))
                worker.set_cursor({"step": step + 1})
                if step == orders:
                    worker.checkpoint()
                worker.clock()
            await_checkpoint(worker)
            raise Stopped

        run(main, tables_of(times), tmp_path, stops=True)
        reached = max(entry.step for entry in list_checkpoints(tmp_path))
        assert reached > orders
        at_cut = None
        for step, values in seen:
            assert step == at
            if at == reached:
                at_cut = copy.deepcopy(model)
            model.settle()
            assert values == [float(value) for value in model.own], (seed, number, step)
            model.step(updates_at(step))
            at += 1
        assert at_cut is not None
        model, at = at_cut, reached
        model.restart(any_times(draw))


# Other consistency models.

MODELS: dict[str, Any] = {
    "bsp": BSP("sum"),
    "ssp": SSP(1),
    "asp": ASP(),
    "local": LocalSGD(4),
    "diloco": DiLoCo(8, SGD(1.0), 2),
    "async": DiLoCo(4, SGD(1.0), asynchronous=True),
}


@pytest.mark.parametrize("in_middle", [True, False], ids=["middle", "end"])
@pytest.mark.parametrize("after", MODELS)
@pytest.mark.parametrize("before", MODELS)
def test_another_consistency_is_exact_refused_or_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], before: str, after: str, in_middle: bool
) -> None:
    """In the middle: a checkpoint of a clock at which a fragment of DiLoCo has steps of its own."""

    def tables(name: str) -> list[DenseTable]:
        return [DenseTable(n, (N,), SGD(1.0), MODELS[name], init="zeros") for n in "ab"]

    def old(worker: Worker) -> None:
        for step in range(12):
            for name in "ab":
                worker.table(name).push(np.ones(N, np.float32))
            worker.set_cursor({"step": step + 1})
            if step == 2 and in_middle:
                worker.checkpoint()
            worker.clock()
            if step == 9 and in_middle:
                await_checkpoint(worker)
                raise Stopped

    def new(worker: Worker) -> list[float]:
        assert worker.start is not None
        worker.synchronize()
        return [float(worker.table(name).pull()[0]) for name in "ab"]

    run(old, tables(before), tmp_path, stops=in_middle)
    with open_checkpoint(list_checkpoints(tmp_path)[0].path) as checkpoint:
        done = checkpoint.manifest.workers[0].cursor["step"]
    capsys.readouterr()
    refused = ""
    try:
        values = run(new, tables(after), tmp_path, stops=False)
    except (CheckpointError, ConfigError) as error:
        refused = str(error)
    if refused:
        assert "table 'a'" in refused
        assert "async" in (before, after)
        assert before != after
        return
    text = capsys.readouterr().err
    is_named = "'a', 'b', under LocalSGD or DiLoCo then and not now" in text
    was_local, is_local = (isinstance(MODELS[m], LocalSGD | DiLoCo) for m in (before, after))
    assert is_named == (was_local and not is_local)
    if not is_named or not in_middle:
        assert values == [-float(done)] * 2


# Other codecs.

CODECS: dict[str, Any] = {
    "none": None,
    "topk": mpips.TopK(0.2),
    "topk1": mpips.TopK(1.0),
    "randomk": mpips.RandomK(0.2),
    "shared": mpips.SharedInt8(16),
}


@pytest.mark.parametrize("after", CODECS)
@pytest.mark.parametrize("before", CODECS)
@pytest.mark.parametrize("other", [None, mpips.TopK(0.2)], ids=["alone", "beside"])
def test_another_codec_keeps_the_residual_or_names_the_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], before: str, after: str, other: Any
) -> None:
    """The note comes also where no table of the job has such a codec any more."""

    def job(codec: Any, n_steps: int) -> tuple[np.ndarray, np.ndarray]:
        def main(worker: Worker) -> tuple[np.ndarray, np.ndarray]:
            table = worker.table("t")
            for step in range(n_steps):
                table.push(np.random.default_rng(step).integers(-50, 51, 40).astype(np.float32))
                worker.set_cursor({"step": step + 1})
                worker.clock()
            return table.pull(), np.zeros(40) if codec is None else table.residual()

        tables = [
            DenseTable(name, (40,), SGD(1.0), BSP("sum"), init="zeros", compression=c)
            for name, c in (("t", codec), ("u", other))
        ]
        return run(main, tables, tmp_path, stops=False)  # type: ignore[no-any-return]

    values, residual = job(CODECS[before], 3)
    capsys.readouterr()
    after_values, after_residual = job(CODECS[after], 0)
    text = capsys.readouterr().err
    assert (after_values == values).all()
    assert before in ("none", "topk1") or np.any(residual) or before == "shared"
    is_named = "table 't' has no codec with error feedback now" in text
    assert is_named == (before != "none" and after == "none")
    assert (after_residual == (0 if after == "none" else residual)).all()
    assert "table 'u'" not in text

"""Checkpoints of tables under LocalSGD and DiLoCo, which have the local values of workers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from local_tables_rig import N, noise

import mpips
from mpips import ConfigError, DenseTable, DiLoCo, LocalSGD, Worker
from mpips.checkpoint import open_checkpoint
from mpips.model.optimizer import SGD, Adam
from mpips.worker.worker import connection_of


def await_checkpoint(connection: Any) -> None:
    """Let the server write while the worker waits for something that does not come."""

    def written() -> bool:
        connection.channels[0].wait_head(0, 99, 0, 0.001)
        return bool(connection.control.scheduler.statistics()["checkpoints"]["written"])

    connection.wait_until(written, str)


RESUMED: list[Any] = [
    LocalSGD(4),
    DiLoCo(4),
    DiLoCo(6, fragments=2, delay=2),
    DiLoCo(5, compression="int8"),
]


@pytest.mark.parametrize("consistency", RESUMED, ids=str)
def test_a_checkpoint_continues_with_the_bits_of_an_undisturbed_job(
    consistency: Any, tmp_path: Path
) -> None:
    def tables() -> list[DenseTable]:
        return [DenseTable(f"w{i}", (n,), Adam(0.1), consistency) for i, n in enumerate((N, 50))]

    def main(worker: Worker) -> list[bytes]:
        handles = [worker.table(f"w{i}") for i in range(2)]
        first = int(worker.cursor.get("step", 0))
        for step in range(first, 40):
            for i, handle in enumerate(handles):
                handle.push(noise(step, i)[: handle.shape[0]] + handle.pull())
            worker.set_cursor({"step": step + 1})
            if step == 16 and stops:
                worker.checkpoint()
            worker.clock()
            if step == 30 and stops:
                await_checkpoint(connection_of(worker))
                raise KeyboardInterrupt
        starts.append(first)
        worker.synchronize()
        return [handle.pull().tobytes() for handle in handles]

    starts: list[int] = []
    stops = False
    calm = mpips.run(main, tables(), save=tmp_path / "calm", verbose=False).value
    stops = True
    with pytest.raises(KeyboardInterrupt):
        mpips.run(main, tables(), save=tmp_path / "cut", verbose=False)
    stops = False
    again = mpips.run(main, tables(), save=tmp_path / "cut", verbose=False).value
    assert again == calm
    # The checkpoint is of an outer step, and its number is that of the worker's clocks.
    assert 17 <= starts[1] <= 30
    names = sorted(p.name for p in (tmp_path / "cut").iterdir() if p.name.startswith("step"))
    assert names == [f"step-{starts[1]:012d}", "step-000000000040"]
    assert [p.name for p in (tmp_path / "cut").glob(".worker*")] == []
    with open_checkpoint(tmp_path / "cut" / names[0]) as checkpoint:
        checkpoint.verify()
        file = checkpoint.path / "worker-00000.image"
        data = bytearray(file.read_bytes())
        data[-70] ^= 1
        file.write_bytes(data)
        assert checkpoint.damage() == [f"image of worker 0: {file}: the checksum does not match"]


def test_a_checkpoint_with_another_inner_rule_is_refused(tmp_path: Path) -> None:
    def main(worker: Worker) -> None:
        worker.table("w").push(np.ones(N))
        worker.clock()

    def run(rule: Any) -> None:
        table = DenseTable("w", (N,), rule, LocalSGD(4))
        mpips.run(main, [table], save=tmp_path / "c", verbose=False)

    run(Adam())
    with pytest.raises(
        ConfigError, match="has the inner state of adam, but this job's optimizer is sgd"
    ):
        run(SGD())

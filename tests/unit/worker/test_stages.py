"""Workers of a job whose tables belong to stages: what they are, and what they refuse before it is sent."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from harness import Rig, dense, rows

from mpips.errors import ConfigError, StallError
from mpips.model.consistency import ASP, BSP, SSP
from mpips.worker.ahead.lookahead import lookahead
from mpips.worker.worker import Worker

ONES = np.ones(8, np.float32)


def make(consistency: Any = BSP(), n_workers: int = 4) -> Rig:  # noqa: B008 (frozen)
    return Rig(
        dense(name="first", consistency=consistency, stage=0),
        dense(name="last", consistency=consistency, stage=1),
        rows(name="keys", consistency=consistency, stage=1),
        n_workers=n_workers,
        n_slots=16,
    )


def test_a_worker_has_a_stage_and_a_pipeline() -> None:
    rig = make()
    found = [(w.stages, w.stage, w.pipeline) for w in (rig.worker(i) for i in range(4))]
    assert found == [(2, 0, 0), (2, 1, 0), (2, 0, 1), (2, 1, 1)]
    plain = Rig(dense(), n_workers=3)
    found = [(w.stages, w.stage, w.pipeline) for w in (plain.worker(i) for i in range(3))]
    assert found == [(1, 0, 0), (1, 0, 1), (1, 0, 2)]


@pytest.mark.parametrize(
    "use",
    [
        lambda worker: worker.table("last"),
        lambda worker: worker.push_pull({"first": ONES, "last": ONES}),
        lambda worker: worker.push_pull({"last": ONES}),
        lambda worker: next(lookahead([0], keys=lambda _: {"keys": [1]}, worker=worker)),
    ],
)
def test_a_table_of_another_stage_is_refused_before_anything_is_sent(use: Any) -> None:
    rig = make()
    worker = rig.worker(2)
    text = (
        "^table '(last|keys)' belongs to stage 1 of the model, and worker 2 computes stage 0 of 2:"
    )
    with pytest.raises(ConfigError, match=text):
        use(worker)
    assert rig.writers[2].next_sequence == 0
    # The worker goes on.
    worker.table("first").push(ONES)


def test_the_names_in_an_error_are_those_of_all_tables() -> None:
    with pytest.raises(ConfigError, match="'none'; the job has first, last, keys"):
        make().worker(0).table("none")


@pytest.mark.parametrize("consistency", [SSP(0), ASP()])
def test_keep_pace_waits_for_the_workers_of_all_stages(consistency: Any) -> None:
    rig = make(consistency, n_workers=2)
    workers: list[Worker] = [rig.worker(w, timeout_s=0.05) for w in range(2)]
    for slow, fast in ((0, 1), (1, 0)):
        workers[fast].clock()
        workers[fast].clock()
        with pytest.raises(
            StallError, match=f"more than 1 clocks behind; it waits for worker {slow}"
        ):
            workers[fast].keep_pace(1)
        workers[slow].clock()
        workers[fast].keep_pace(1)
        workers[slow].clock()


@pytest.mark.parametrize(
    "pull",
    [lambda worker: worker.table("last").pull(), lambda worker: worker.table("keys").pull([1])],
)
def test_a_wait_for_values_of_a_stage_names_a_worker_of_it(pull: Any) -> None:
    rig = make(SSP(0))
    workers = [rig.worker(w, timeout_s=0.05) for w in range(4)]
    # Worker 0, of the other stage, is as far behind as worker 3.
    for w in (1, 2):
        workers[w].clock()
    with pytest.raises(StallError, match="; it waits for worker 3 at clock 0, this worker is at 1"):
        pull(workers[1])
    workers[3].clock()
    pull(workers[1])

"""A script with tables under Switch, which writes into the values of each table who has pushed at which step.

usage: switching.py AT [ROLE:PLACE:STEP ...]   the n-th launch ends at that step of the run, before worker 1
goes on from this place. ROLE: worker (1), server; or both. PLACE: pulled, pushed (and acknowledged, where
ASP is in force), ended (the worker's clock). Worker 0 prints a JSON line. The environment has SERVERS; with
SAVED=1 a launch ends at the first step from there on at which the checkpoint before that step is there, and
one that is newer than its own beginning, or the run would be given up. With PLATEAU=1 server 0 decides on the
clock, by a measure of the first two steps: AT must be 5. With LATE=1 worker 1 is slower, and server 0 decides
on the clock by the times of the workers: AT must be 20, the earliest clock.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path

import numpy as np

import mpips
from mpips.server import switch_control

AT = int(sys.argv[1])
PLAN = [text.split(":") for text in sys.argv[2:]]
SAVED = os.environ.get("SAVED") == "1"
PLATEAU = os.environ.get("PLATEAU") == "1"
LATE_S = 0.1 if os.environ.get("LATE") == "1" else 0.0  # of each step of worker 1
N_WORKERS = 2
STEPS = 2 * AT + 6
EVERY = 4  # steps between two checkpoints
QUIET = 24  # steps at the end without an update: velocities decay to 2^-24, also without the other worker
DIM = 3


def servers() -> list[int]:
    """Return the pids of this launch's servers; wait until the run directory has them."""
    path, deadline = Path(os.environ["MPIPS_RUN_DIR"]) / "places.json", time.monotonic() + 60
    while time.monotonic() < deadline:
        found = json.loads(path.read_text()) if path.exists() else {"generation": None}
        if found["generation"] == int(os.environ["MPIPS_GENERATION"]):
            return [p["pid"] for p in found["ranks"] if p["role"].startswith("server")]
        time.sleep(0.01)
    raise TimeoutError("places.json does not have this launch")


def saved() -> int:
    """Return the step of the newest checkpoint; 0: there is none."""
    folder = Path(os.environ["MPIPS_RUN_DIR"]) / "checkpoints"
    return max((int(p.name[5:]) for p in folder.glob("step-*[0-9]")), default=0)


def is_saved(planned: int, first: int) -> bool:
    """Return whether the checkpoints for an end at `planned` are there; wait half a second for them.

    A cut is at a later clock than the newest one, so the worker must go on meanwhile.
    """
    deadline = time.monotonic() + 0.5
    while saved() < planned // EVERY * EVERY or saved() <= first:
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def end_here(worker: mpips.Worker, place: str, step: int, first: int) -> None:
    """End the launch, which began at step `first`, if the command line says so."""
    launch = int(os.environ["MPIPS_GENERATION"])
    if worker.index != 1 or launch >= len(PLAN) or PLAN[launch][1] != place:
        return
    planned = int(PLAN[launch][2])
    # With SAVED the next step tries again.
    if step < planned or (step > planned and not SAVED) or (SAVED and not is_saved(planned, first)):
        return
    role = PLAN[launch][0]
    if role in ("server", "both"):
        for pid in servers():
            os.kill(pid, signal.SIGKILL)
    if role in ("worker", "both"):
        os.kill(os.getpid(), signal.SIGKILL)


def check(worker: mpips.Worker, found: np.ndarray, step: int) -> None:
    """Raise AssertionError for values that the model of this step's clock does not allow.

    Args:
        worker: The worker that has pulled.
        found: Its values, shape (N_WORKERS, STEPS), 0.5 for each update.
        step: Its step.
    """
    assert np.isin(found, (0, 0.5)).all(), (step, found)
    assert (found[:, : min(step, AT)] == 0.5).all(), (step, found)
    assert (found[worker.index, :step] == 0.5).all(), (step, found)
    if step < AT:
        # Also a worker that repeats a clock sees none of what it has pushed in it before.
        assert (found[:, step:] == 0).all(), (step, found)


def main(worker: mpips.Worker) -> dict[str, object]:
    """Push 1 for this worker and step to each table."""
    plain, heavy, rows = (worker.table(name) for name in ("plain", "heavy", "rows"))
    keys = np.arange(N_WORKERS * STEPS)
    first = int(worker.cursor.get("step", 0))
    for step in range(first, STEPS + QUIET):
        at = worker.index * STEPS + step
        mine = np.zeros(plain.shape, np.float32)
        mine[at : at + 1] = -(step < STEPS)
        check(worker, plain.pull().reshape(N_WORKERS, STEPS), min(step, STEPS))
        check(worker, rows.pull(keys)[:, 0].reshape(N_WORKERS, STEPS), min(step, STEPS))
        if SAVED:
            worker.keep_pace(1)
        end_here(worker, "pulled", step, first)
        time.sleep(LATE_S * worker.index * (step < STEPS))
        heavy.push(mine)
        pushed = plain.push(mine)
        if step < STEPS:
            rows.push(np.array([at]), -np.ones((1, DIM), np.float32))
        if step >= AT:
            pushed.wait()
        end_here(worker, "pushed", step, first)
        worker.set_cursor({"step": step + 1})
        worker.clock()
        end_here(worker, "ended", step, first)
    worker.flush()
    worker.barrier("all pushes are applied")
    values = {"plain": plain.pull(), "heavy": heavy.pull(), "rows": rows.pull(keys)}
    return {name: found.tolist() for name, found in values.items()}


if __name__ == "__main__":
    at = "uneven" if LATE_S else "plateau" if PLATEAU else AT
    model = mpips.Switch(mpips.BSP(), mpips.ASP(), at=at)
    if PLATEAU:
        switch_control.PAIRS, switch_control.RATIO = 1, 0.0
    n = N_WORKERS * STEPS
    outcome = mpips.run(
        main,
        [
            mpips.DenseTable("plain", (n,), mpips.SGD(1.0), model),
            mpips.DenseTable("heavy", (n,), mpips.Momentum(1.0, momentum=0.5), model),
            mpips.EmbeddingTable("rows", DIM, mpips.SGD(1.0), model, init="zeros"),
        ],
        servers=int(os.environ["SERVERS"]),
        timeout_s=60.0,
        every_steps=EVERY,
    )
    if outcome.is_first_worker:
        print(json.dumps(outcome.value), flush=True)

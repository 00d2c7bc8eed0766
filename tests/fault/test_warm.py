"""`mpips run` goes on in shared memory; who dies where, on which way, is in test_matrix.py.

By day the tests of one kind take turns: every second commit runs them.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
from pathlib import Path

import pytest
from supervised import SHAPE, Run, alive, check_counts, content, counting, job, start

import mpips
from mpips.checkpoint import open_checkpoint

# Checkpoints: one process of each launch dies at the cut, while it is written, complete without its name,
# without the link to it.
SAVING = "named:1,cut-held:1,cut-copied:1,block-written:2,synced:1"


def finish(run: Run, deaths: int = 1) -> str:
    """Wait for the end of a run that goes on in memory so often; what was said. Nothing is left."""
    assert run.launched.wait() == 0, run.launched.tail(80)
    said = run.launched.stderr()
    assert run.attempts == deaths + 1, said
    assert "from memory: step" in said
    assert "not continuing in memory" not in said
    assert not alive(run)
    token = json.loads((run.path / "run.json").read_text())["token"]
    assert not list(Path("/dev/shm").glob(f"*{token}*"))
    return said


@pytest.mark.timeout(240)
def test_dying_at_any_point_of_a_checkpoint_every_push_counts_once_and_nothing_is_left(tmp_path):
    settings = ["table.consistency=asp", "checkpoint.every_steps=10"]
    arguments = ["--max-restarts", "9", *counting(tmp_path, *settings)]
    run = start(tmp_path, *SHAPE, *arguments, fault=SAVING, timeout=200.0)
    with run.launched:
        finish(run, deaths=SAVING.count(",") + 1)
    check_counts(run, tmp_path)
    checkpoints = run.path / "checkpoints"
    names = {path.name for path in checkpoints.iterdir()} - {".lock", "latest"}
    assert all(name.startswith("step-") for name in names)
    assert os.readlink(checkpoints / "latest") == max(names)
    assert all(content(checkpoints / name) for name in names)
    # Each launch has the example anew, from its own worker 0.
    for name in names:
        with open_checkpoint(checkpoints / name) as checkpoint:
            assert len(checkpoint.manifest.example["predictions"]) == 5


def test_a_stopped_server_is_named_and_its_memory_taken_over(tmp_path):
    settings = ["table.consistency=asp", "checkpoint.every_steps=20", "cluster.timeout_s=6"]
    run = start(tmp_path, *SHAPE, *counting(tmp_path, *settings))
    with run.launched:
        stopped = run.pid_of("server 1")
        os.kill(stopped, signal.SIGSTOP)
        said = finish(run)
    assert "(stalled)" in said
    assert f"server 1 (rank 2, pid {stopped})" in said
    check_counts(run, tmp_path)


def test_memory_serves_where_no_checkpoint_would(tmp_path):
    settings = ["table.consistency=asp", "checkpoint.every_steps=60", "options.pause_s=0.05"]
    run = start(tmp_path, *SHAPE, *counting(tmp_path, *settings))
    with run.launched:
        pid = run.pid_of("server 0")
        for path in (run.path / "checkpoints").glob("step-*/manifest.json"):
            path.write_text("{}")
        os.kill(pid, signal.SIGKILL)
        finish(run)
    check_counts(run, tmp_path)


@pytest.mark.parametrize(
    "change", [pytest.param("none", marks=pytest.mark.long), "damaged", "another codec"]
)
def test_a_run_continues_in_memory_only_with_the_codecs_that_it_had(tmp_path, change):
    """placement.json has the decision. Decided anew, it is the same on this node: no codec."""
    auto = "table.compression={name='auto',codecs=['bf16']}"
    settings = ["table.consistency=asp", "checkpoint.every_steps=20", auto]
    run = start(tmp_path, *SHAPE, *counting(tmp_path, *settings))
    with run.launched:
        pid = run.pid_of("worker 0")
        path = run.path / "placement.json"
        decision = json.loads(path.read_text())
        assert {str(codecs) for codecs in decision["codecs"].values()} == {"{'compression': None}"}
        if change == "damaged":
            path.write_bytes(b'{"digest": "\xff"}')
        elif change == "another codec":
            for codecs in decision["codecs"].values():
                codecs["compression"] = {"name": "bf16"}
            path.write_text(json.dumps(decision))
        os.kill(pid, signal.SIGKILL)
        if change != "another codec":
            said = finish(run)
        else:
            assert run.launched.wait() == 0, run.launched.tail(80)
            said = run.launched.stderr()
            assert "not continuing in memory: tables or options have changed" in said
            assert "from checkpoint step-" in said
    assert said.count("as before in this run: compression = Auto(Bf16())") == (change != "damaged")
    check_counts(run, tmp_path)


def test_a_step_that_is_not_repeated_alike_falls_back_to_the_checkpoint_once(tmp_path):
    folder = f"options.folder={tmp_path / 'runs'}"
    settings = ["table.consistency=asp", "checkpoint.every_steps=8", folder]
    arguments = job(tmp_path, "unseeded_task:Unseeded", *settings)
    # A worker ends in its 60th clock, whose pushes are with the servers, in the first launch only.
    run = start(tmp_path, *SHAPE, *arguments, fault="placed:60")
    with run.launched:
        assert run.launched.wait() == 0, run.launched.tail(80)
        said = run.launched.stderr()
    assert run.attempts == 3, said
    assert "repeats clock 59 and makes other pushes than before" in said
    assert "not continuing in memory: attempt 1 found it wrong" in run.launched.stdout() + said
    assert "from checkpoint step-" in said


def test_a_run_that_was_given_up_goes_on_in_its_memory(tmp_path):
    settings = ["table.consistency=asp", "options.pause_s=0.01"]
    arguments = ["--max-restarts", "0", *counting(tmp_path, *settings)]
    run = start(tmp_path, *SHAPE, *arguments)
    with run.launched:
        run.until(lambda status: bool(status["ranks"]))
        checkpoints = run.path / "checkpoints"
        shutil.rmtree(checkpoints)
        checkpoints.write_text("in the way")
        assert run.launched.wait() == 1, run.launched.tail()
    said = " ".join(run.launched.stderr().split())
    assert "was not written" in said
    assert f"continue from it: mpips run {run.path}" in said
    checkpoints.unlink()
    # Memory without the number of its format, as earlier versions left it, is neither used nor removed.
    memory = run.path / "memory.json"
    written = memory.read_text()
    older = {k: v for k, v in json.loads(written).items() if k not in ("format", "build")}
    memory.write_text(json.dumps(older))
    refused = start(tmp_path, str(run.path), "-n", "5")
    with refused.launched:
        assert refused.launched.wait() == 2, refused.launched.tail()
    text = " ".join(refused.launched.stderr().split())
    assert "written by an earlier mpips (version unknown) in format 0, and this is mpips 0." in text
    assert f"mpips run --discard-memory {run.path}" in text
    memory.write_text(written)
    again = start(tmp_path, str(run.path), "-n", "5")
    with again.launched:
        assert again.launched.wait() == 0, again.launched.tail()
    # Nothing is trained again: all of it was there.
    assert "continuing in memory at step" in again.launched.stderr()
    check_counts(run, tmp_path)
    token = json.loads((run.path / "run.json").read_text())["token"]
    assert not list(Path("/dev/shm").glob(f"*{token}*"))


def test_switched_off_it_starts_from_a_checkpoint(tmp_path):
    settings = ["checkpoint.every_steps=20", "redundancy.warm=false"]
    arguments = job(tmp_path, "faulty_task:Faulty", *settings)
    run = start(tmp_path, *SHAPE, *arguments, fault="stamped:200")
    with run.launched:
        assert run.launched.wait() == 0, run.launched.tail()
    assert "from checkpoint step-" in run.launched.stderr()


def test_lost_memory_is_said_and_a_checkpoint_serves(tmp_path):
    settings = ["checkpoint.every_steps=20", "options.pause_s=0.03"]
    run = start(tmp_path, *SHAPE, *job(tmp_path, "faulty_task:Faulty", *settings))
    with run.launched:
        pid = run.pid_of("server 0")
        token = json.loads((run.path / "run.json").read_text())["token"]
        for path in Path("/dev/shm").glob(f"*{token}*-s1-journal"):
            path.unlink()
        os.kill(pid, signal.SIGKILL)
        assert run.launched.wait() == 0, run.launched.tail()
    said = run.launched.stderr()
    assert "not continuing in memory" in said
    assert "from checkpoint step-" in said


def test_the_rates_of_a_schedule_survive_deaths(tmp_path: Path) -> None:
    """The rate of each clock is that of an undisturbed run, in repeated clocks, too."""
    arguments = job(tmp_path, "fm", "table.optimizer=adagrad", "schedule.name=one_cycle")
    runs = []
    # Within a clock, between two clocks, and twice at a place.
    for name, fault in (("calm", ""), ("killed", "stamped:90,clock-ended:20,clock-ended:1")):
        folder = tmp_path / name
        folder.mkdir()
        run = start(folder, *SHAPE, "--max-restarts", "9", *arguments, fault=fault)
        with run.launched:
            finish(run, deaths=3) if fault else run.launched.wait()
        runs.append(run.final())
    calm, killed = runs
    assert killed == calm


def test_a_run_that_is_killed_ends_early_after_the_same_epoch(tmp_path):
    settings = ["train.epochs=60", "train.patience=3", "train.min_delta=0.002"]
    arguments = [part for setting in settings for part in ("--set", setting)]
    found = []
    # In the middle of an epoch, and around the end of one: 2 workers make 23 clocks in each.
    for fault in ("", "placed:35,placed:57"):
        folder = tmp_path / f"runs-{bool(fault)}"
        folder.mkdir()
        run = start(folder, *SHAPE, "mlp", "--train", "digits", *arguments, fault=fault)
        with run.launched:
            if fault:
                finish(run, deaths=2)
            assert run.launched.wait() == 0, run.launched.tail()
        found.append(json.loads((run.path / "result.json").read_text()))
    calm, killed = found
    assert "cross entropy did not improve in 3 evaluations" in calm["stopped"]
    assert calm["epochs"] < 60
    for name in ("stopped", "epochs", "steps", "accuracy", "cross_entropy"):
        assert killed[name] == calm[name]


# A server dies while the records of the cut arrive, after its copy, before and after the name; between them a
# worker, so that the run gets on. All cuts are those of best checkpoints.
BEST = "cut-held:1,placed:12,cut-copied:1,placed:12,named:1"


@pytest.mark.parametrize("consistency", ["bsp", pytest.param("asp", marks=pytest.mark.long)])
def test_a_run_that_is_killed_keeps_the_best_checkpoint(tmp_path: Path, consistency: str) -> None:
    settings = [
        *("train.epochs=8", "checkpoint.keep_best=true", "checkpoint.keep_last=1"),
        *("train.metric=cross_entropy", "table.optimizer.lr=0.05"),
        f"table.consistency={consistency}",
    ]
    arguments = [part for setting in settings for part in ("--set", setting)]
    found = []
    for fault in ("", BEST) if consistency == "bsp" else ("cut-copied:1",):
        folder = tmp_path / f"runs-{bool(fault)}"
        folder.mkdir()
        more = ["--max-restarts", "9", "mlp", "--train", "digits", *arguments]
        run = start(folder, *SHAPE, *more, fault=fault, timeout=200.0)
        with run.launched:
            if fault:
                finish(run, deaths=fault.count(",") + 1)
            assert run.launched.wait() == 0, run.launched.tail()
        result = json.loads((run.path / "result.json").read_text())
        best = result["best"]
        with open_checkpoint(Path(best["path"])) as checkpoint:
            assert checkpoint.manifest.best is not None
            assert checkpoint.manifest.best.value == best["value"]
        # The newest one is there beside it, and no other.
        names = [path.name for path in (run.path / "checkpoints").glob("step-*")]
        assert Path(best["path"]).name in names
        assert len(names) <= 2
        if consistency == "bsp":
            value = mpips.load(best["path"]).evaluate("digits")["cross_entropy"]
            assert value == pytest.approx(best["value"], rel=1e-6)
        found.append({**result, "best": {**best, "path": ""}})
    if consistency == "bsp":
        calm, killed = found
        for name in ("best", "epochs", "steps", "accuracy", "cross_entropy"):
            assert killed[name] == calm[name]
        assert calm["best"]["epoch"] < 8

"""`mpips run` goes on in shared memory: every role killed, and processes that die at a chosen point."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest
from supervised import SHAPE, Run, alive, check_counts, content, job, start

# Where one process of each launch dies, one launch after the other. Two in a row that died before they
# came any further would be the last.
CHAINS = {
    "asp": "stamped:61,word-logged:499,taken-over:1,committed:101",
    "ssp": "payload:63,word-put:301,unit-done:80,acknowledged:60",
    # Checkpoints: at the cut, while it is written, complete without its name, without the link to it.
    "saving": "named:1,cut-held:1,cut-copied:1,block-written:2,synced:1",
    "recovering": "named:1,recovering:2,stamped:60,resumed:1",
}


def finish(run: Run, deaths: int = 1) -> str:
    """Wait for the end of a run that goes on in memory so often; what was said. Nothing is left."""
    assert run.launched.wait() == 0, run.launched.tail(80)
    said = run.launched.stderr()
    assert run.attempts == deaths + 1, said
    assert "from memory: step" in said
    assert "not going on in memory" not in said
    assert not alive(run)
    token = json.loads((run.path / "run.json").read_text())["token"]
    assert not list(Path("/dev/shm").glob(f"*{token}*"))
    return said


@pytest.mark.timeout(240)
@pytest.mark.parametrize("chain", CHAINS)
def test_dying_at_any_point_every_push_counts_once(tmp_path, chain):
    consistency = "ssp" if chain == "ssp" else "asp"
    settings = [f"table.consistency={consistency}", "checkpoint.every_steps=10"]
    arguments = ["--max-restarts", "9", *job(tmp_path, "counting_task:Counting", *settings)]
    run = start(tmp_path, *SHAPE, *arguments, fault=CHAINS[chain], timeout=200.0)
    with run.launched:
        finish(run, deaths=CHAINS[chain].count(",") + 1)
    check_counts(run, tmp_path)
    checkpoints = run.path / "checkpoints"
    names = {path.name for path in checkpoints.iterdir()} - {".lock", "latest"}
    assert all(name.startswith("step-") for name in names)
    assert os.readlink(checkpoints / "latest") == max(names)
    assert all(content(checkpoints / name) for name in names)


@pytest.mark.parametrize("role", ["scheduler", "server 0", "worker 1"])
def test_killed_from_outside_every_push_counts_once(tmp_path, role):
    settings = ["table.consistency=asp", "checkpoint.every_steps=20"]
    run = start(tmp_path, *SHAPE, *job(tmp_path, "counting_task:Counting", *settings))
    with run.launched:
        os.kill(run.pid_of(role), signal.SIGKILL)
        finish(run)
    check_counts(run, tmp_path)


def test_a_stopped_server_is_named_and_its_memory_taken_over(tmp_path):
    settings = ["table.consistency=asp", "checkpoint.every_steps=20", "cluster.timeout_s=6"]
    run = start(tmp_path, *SHAPE, *job(tmp_path, "counting_task:Counting", *settings))
    with run.launched:
        stopped = run.pid_of("server 1")
        os.kill(stopped, signal.SIGSTOP)
        said = finish(run)
    assert "(stalled)" in said
    assert f"server 1 (rank 2, pid {stopped})" in said
    check_counts(run, tmp_path)


def test_memory_serves_where_no_checkpoint_would(tmp_path):
    settings = ["table.consistency=asp", "checkpoint.every_steps=60", "options.pause_s=0.05"]
    run = start(tmp_path, *SHAPE, *job(tmp_path, "counting_task:Counting", *settings))
    with run.launched:
        pid = run.pid_of("server 0")
        for path in (run.path / "checkpoints").glob("step-*/manifest.json"):
            path.write_text("{}")
        os.kill(pid, signal.SIGKILL)
        finish(run)
    check_counts(run, tmp_path)


@pytest.mark.parametrize("transport", ["shm", "rma", "p2p"])
def test_under_bsp_the_bits_are_those_of_an_undisturbed_run(tmp_path, transport):
    settings = [f"cluster.transport={transport}", "options.pause_s=0.005"]
    (tmp_path / "calm").mkdir()
    calm = start(tmp_path / "calm", *SHAPE, *job(tmp_path, "faulty_task:Faulty", *settings))
    with calm.launched:
        assert calm.launched.wait() == 0, calm.launched.tail()
    arguments = job(tmp_path, "faulty_task:Faulty", *settings)
    run = start(tmp_path, *SHAPE, *arguments, fault="word-put:1500")
    with run.launched:
        finish(run)
    assert run.final() == calm.final()


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
        for path in Path("/dev/shm").glob(f"*{token}-s1-journal"):
            path.unlink()
        os.kill(pid, signal.SIGKILL)
        assert run.launched.wait() == 0, run.launched.tail()
    said = run.launched.stderr()
    assert "not going on in memory" in said
    assert "from checkpoint step-" in said

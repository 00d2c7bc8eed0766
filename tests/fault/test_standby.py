"""A standby launch under mpirun: it takes over, its own death does no harm, and it leaves nothing behind."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import multinode
import processes
import pytest
from supervised import ENVIRONMENT, SHAPE, Run, alive, check_counts, command, job, start

OPTIONS = ["options.pause_s=0.0", "options.fitted=false", "options.pulls=true"]


def waiters(run: Run, generation: int) -> list[int]:
    """Ranks of an attempt, once they are there."""
    found = processes.marked(f"MPIPS_GENERATION={generation}")
    ours = set(alive(run))
    return [pid for pid in found if pid in ours and "python" in processes.describe([pid])]


def test_it_takes_over_and_its_own_death_does_no_harm(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    settings = [*OPTIONS, "table.consistency=ssp", f"options.gate={gate}", "run.standby_after_s=0"]
    run = start(tmp_path, *SHAPE, *job(tmp_path, "slow_counts:Slow", *settings))
    with run.launched:
        first = run.until(lambda s: bool(s["ranks"]))
        assert processes.until((run.path / "standby-1").exists, 60.0), run.launched.tail(60)
        waiting = set(waiters(run, 1))
        assert len(waiting) >= 5
        os.kill(next(p["pid"] for p in first["ranks"] if p["role"] == "server 0"), signal.SIGKILL)
        second = run.until(lambda s: s["generation"] == 1 and bool(s["ranks"]))
        # The death was certain, and the launcher's text names the rank although the others were killed.
        assert (run.path / "logs/attempt-0/at-work").exists()
        assert "first to fail   server 0" in run.launched.stderr()
        # Its ranks are those that waited, and the next launch waits.
        pids = {place["pid"] for place in second["ranks"]}
        assert len(pids) == 5
        assert pids <= waiting
        assert processes.until((run.path / "standby-2").exists, 60.0), run.launched.tail(60)
        # A launch of which a rank has died is of no use: the next attempt starts from nothing.
        os.kill(waiters(run, 2)[-1], signal.SIGKILL)
        assert processes.until(lambda: not waiters(run, 2), 30.0)
        os.kill(next(p["pid"] for p in second["ranks"] if p["role"] == "worker 1"), signal.SIGKILL)
        run.until(lambda s: s["generation"] >= 2 and bool(s["ranks"]))
        gate.touch()
        assert run.launched.wait() == 0, run.launched.tail(60)
        check_counts(run, tmp_path)
        assert not list(run.path.glob(f"logs/attempt-{run.attempts - 1}/at-work"))
        assert "attempt 1 is at work" in run.launched.stderr()
    assert not alive(run)
    assert not list(run.path.glob("standby*[0-9]"))


@pytest.mark.multinode
def test_it_takes_over_on_two_nodes(nodes2: multinode.Nodes, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    hosts = ",".join(f"{host}:3" for host in nodes2.hosts)
    settings = [*OPTIONS, "table.consistency=ssp", f"options.gate={gate}", "run.standby_after_s=0"]
    arguments = ["--hosts", hosts, *SHAPE, *job(tmp_path, "slow_counts:Slow", *settings)]
    launched = nodes2.start_on_head(command(*arguments), ENVIRONMENT, 180.0, tmp_path)
    run = Run(tmp_path, launched)
    with launched:
        first = run.until(lambda s: bool(s["ranks"]))
        assert processes.until((run.path / "standby-1").exists, 60.0), launched.tail(60)
        far = [
            p for p in first["ranks"] if p["role"] == "worker 1" and p["host"] == nodes2.hosts[1]
        ]
        os.kill(nodes2.outer_pid(1, far[0]["pid"]), signal.SIGKILL)
        second = run.until(lambda s: s["generation"] == 1 and bool(s["ranks"]))
        for place in second["ranks"]:
            pid = nodes2.outer_pid(nodes2.hosts.index(place["host"]), place["pid"])
            assert b"standby_rank" in Path(f"/proc/{pid}/cmdline").read_bytes()
        gate.touch()
        assert launched.wait() == 0, launched.tail(60)
        check_counts(run, tmp_path)
    assert "from memory" in launched.stderr()

"""Ranks of an attempt that was given up come back to life, and change nothing."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import multinode
import processes
import pytest
import supervised
from supervised import Run, made_data, start

from mpips.checkpoint import find_newest, open_checkpoint
from mpips.checkpoint.folder import list_checkpoints

SHAPE = ["-n", "5", "--servers", "2"]


def job(folder: Path, *settings: str) -> list[str]:
    """The task on its data: 22 clocks an epoch."""
    texts = ["checkpoint.every_steps=10", "checkpoint.keep_last=1000", "train.epochs=8", *settings]
    sets = [word for text in texts for word in ("--set", text)]
    return ["faulty_task:Faulty", "--train", str(made_data(folder)), *sets]


def calm(folder: Path) -> dict[str, bytes]:
    """What the job gives when nothing happens."""
    (folder / "calm").mkdir()
    run = start(folder / "calm", *SHAPE, *job(folder, "options.pause_s=0"))
    with run.launched:
        assert run.launched.wait() == 0, run.launched.tail()
        return run.final()


def generations(run: Run) -> dict[str, int]:
    """Which attempt has written each checkpoint."""
    found = {}
    for entry in list_checkpoints(run.path / "checkpoints"):
        with open_checkpoint(entry.path) as checkpoint:
            found[entry.path.name] = checkpoint.manifest.generation
    return found


def ranks_on(nodes: multinode.Nodes, node: int) -> list[int]:
    """Pids of the ranks on a node."""
    pids = nodes.pids(node)
    return [p for p in pids if b"train" in Path(f"/proc/{p}/cmdline").read_bytes().split(b"\0")]


@pytest.mark.multinode
@pytest.mark.timeout(200)
def test_a_node_that_was_cut_off_and_frozen_publishes_nothing_when_it_is_back(
    nodes3: multinode.Nodes, tmp_path: Path
) -> None:
    expected = calm(tmp_path)
    # Scheduler and server 0, which publishes, are on the first node.
    hosts = ",".join(f"{host}:3" for host in nodes3.hosts)
    # Ranks that wait for the end of the attempt would be counted.
    settings = ["options.pause_s=0.06", "run.standby=false"]
    arguments = ["--hosts", hosts, "--spares", "1", *SHAPE, *job(tmp_path, *settings)]
    launched = nodes3.start_on_head(
        supervised.command(*arguments), supervised.ENVIRONMENT, 180.0, tmp_path
    )
    run = Run(tmp_path, launched)
    with launched:
        run.until(lambda s: bool(s["ranks"] and s["checkpoint"]))
        # All of the node stands still, the daemon too that would end the ranks.
        frozen = nodes3.pids(0)
        zombies = ranks_on(nodes3, 0)
        assert len(zombies) == 3
        for pid in frozen:
            os.kill(pid, signal.SIGSTOP)
        nodes3.cut(0)
        run.until(lambda s: bool(s["generation"] == 1 and s["ranks"] and s["checkpoint"]), 100.0)
        before = generations(run)
        nodes3.mend(0)
        for pid in zombies:
            os.kill(pid, signal.SIGCONT)
        # They see that they have been replaced, and end.
        assert processes.until(lambda: not ranks_on(nodes3, 0), 60.0), launched.tail()
        after = generations(run)
        assert {name for name, g in after.items() if g == 0} == {
            name for name, g in before.items() if g == 0
        }
        assert launched.wait() == 0, launched.tail(80)
    said = launched.stderr()
    assert f"{nodes3.hosts[0]} is left out" in said
    assert f"spare {nodes3.hosts[2]} is used" in said
    assert "not continuing in memory" in said
    assert run.attempts == 2
    assert run.final() == expected
    found = find_newest(run.path / "checkpoints")
    assert found.refused == ()
    # The node is back: what it kept in memory goes with it.
    nodes3.run(0, ["sh", "-c", "rm -f /dev/shm/mpips-kept-*"])

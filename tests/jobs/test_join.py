"""join.sbatch: a second job lends its node to an elastic run, which has left it before that job ends."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import processes
import pytest
import supervised
from slurm import Slurm
from supervised import job

from tests.bench.kills import content


@pytest.mark.long
def test_a_second_job_lends_its_node_and_has_it_back(
    cluster: Slurm, script: Callable[[str], Path], tmp_path: Path
) -> None:
    gate, folder = tmp_path / "gate", tmp_path / "run"
    options = ["pause_s=0.0", "fitted=false", "pulls=true", f"gate={gate}"]
    settings = ["table.consistency=ssp", "cluster.servers=1", *(f"options.{o}" for o in options)]
    arguments = job(tmp_path, "slow_counts:Slow", *settings)
    env = {
        "PYTHONPATH": str(supervised.PROGRAMS),
        "MPIPS_FOLDER": str(folder),
        "MPIPS_SPARES": "0",
        "MPIPS_HDF5": "serial",
    }
    shape = ["--nodes=1", "--ntasks-per-node=3", "--exclusive", f"--output={tmp_path}/%x-%j.out"]
    number = cluster.submit(
        *shape, script("train_restart.sbatch"), "--max-workers", "5", *arguments, env=env
    )

    def output(of: int) -> str:
        return cluster.output(cluster.show(of))

    def places(generation: int) -> set[str]:
        """Hosts of an attempt once it is at work; empty before."""
        try:
            run = next(folder.glob("*/run.json")).parent
            status = json.loads((run / "status.json").read_text())
            found = json.loads((run / "places.json").read_text())
        except (OSError, StopIteration, ValueError):
            return set()
        is_there = status["generation"] == found["generation"] == generation
        return {place["host"] for place in found["ranks"]} if is_there else set()

    def until(condition: Callable[[], bool]) -> None:
        assert processes.until(condition, 90.0), output(number)

    until(lambda: bool(places(0)))
    run = next(folder.glob("*/run.json")).parent
    own = cluster.hosts_of(number)
    lent = cluster.submit(
        *("--nodes=1", "--ntasks-per-node=2", "--exclusive", f"--output={tmp_path}/%x-%j.out"),
        *(script("join.sbatch"), run),
    )
    cluster.wait_for(lent, ["RUNNING"])
    hosts = {*own, *cluster.hosts_of(lent)}
    assert len(hosts) == 2
    until(lambda: places(1) == hosts)
    cluster.run("scancel", "--batch", "--signal=TERM", str(lent))
    shown = cluster.wait(lent)
    assert (shown["JobState"], shown["ExitCode"]) == ("COMPLETED", "0:0"), cluster.output(shown)
    node = cluster.nodes.hosts.index(next(iter(hosts - set(own))))
    assert cluster.nodes.segments(node) == set()
    until(lambda: places(2) == set(own))
    gate.touch()
    shown = cluster.wait(number)
    assert shown["JobState"] == "COMPLETED", cluster.output(shown)
    assert "restart 1 of" not in cluster.output(shown)
    mark = json.loads((run / "finished.json").read_text())
    found = content(Path(mark["checkpoint"]))
    assert supervised.audit(found, supervised.expected_counts(tmp_path)) == (0, 0)

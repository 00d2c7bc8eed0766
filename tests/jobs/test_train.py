"""The batch scripts without changes, on a Slurm of four nodes: what runs, where, and which files remain."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from slurm import Slurm

from mpips.checkpoint import open_checkpoint

Script = Callable[[str], Path]
QUICK = ("--set", "train.epochs=2", "--set", "train.batch_size=64")


def result_of(output: str) -> dict[str, object]:
    """Return the result that `--json` printed."""
    lines = [line for line in output.splitlines() if line.startswith('{"')]
    assert len(lines) == 1, output
    found: dict[str, object] = json.loads(lines[0])
    return found


@pytest.mark.parametrize("name", ["train.sbatch", "train_srun.sbatch"])
def test_a_job_of_three_nodes_trains_and_finishes(
    name: str, cluster: Slurm, script: Script, data: Path, tmp_path: Path
) -> None:
    job = cluster.submit(
        *("--nodes=3", "--ntasks-per-node=2", "--ntasks=5", f"--output={tmp_path}/%x-%j.out"),
        *(script(name), "jobs/configs/digits.toml", "--train", data, "--test", data),
        *(*QUICK, "--servers", "2", "--json"),
        env={"MPIPS_FOLDER": str(tmp_path / "run")},
    )
    shown = cluster.wait(job)
    output = cluster.output(shown)
    assert (shown["JobState"], shown["ExitCode"]) == ("COMPLETED", "0:0"), output
    result = result_of(output)
    assert result["accuracy"] > 0.5  # type: ignore[operator]
    # Workers on the node of a server use shared memory, the others a window.
    assert result["transports"].keys() == {"shm", "rma"}, output  # type: ignore[attr-defined]
    with open_checkpoint(tmp_path / "run/checkpoints/latest") as checkpoint:
        assert len(checkpoint.manifest.tables) == 4
    assert f"mpips-{job}.out" in shown["StdOut"]


def test_an_array_runs_each_line_of_the_sweep(
    cluster: Slurm, script: Script, data: Path, tmp_path: Path
) -> None:
    sweep = tmp_path / "sweep.txt"
    quick = " ".join([*QUICK, "--train", str(data), "--test", str(data)])
    sweep.write_text(
        "# task, settings\n\n"
        + "".join(
            f"{script('configs/digits.toml')} --json --quiet {quick} --set cluster.seed={seed}\n"
            for seed in (11, 12, 13)
        )
    )
    job = cluster.submit(
        *("--array=0-2", "--ntasks-per-node=3", f"--output={tmp_path}/%A_%a.out"),
        *(script("array.sbatch"), sweep),
        cwd=tmp_path,
        env={"MPIPS_ROOT": str(script("").parent)},
    )
    losses = set()
    for task in range(3):
        shown = cluster.wait(f"{job}_{task}")
        output = (tmp_path / f"{job}_{task}.out").read_text()
        assert shown["JobState"] == "COMPLETED", output
        assert f"seed={11 + task}" in output
        assert (tmp_path / f"runs/sweep-{job}_{task}/checkpoints/latest").is_dir()
        losses.add(result_of(output)["loss"])
    assert len(losses) == 3, "three seeds, three results"


def test_benchmarks_find_their_ranks_in_the_allocation(
    cluster: Slurm, script: Script, tmp_path: Path
) -> None:
    job = cluster.submit(
        *(f"--output={tmp_path}/%j.out", script("bench.sbatch")),
        *("push", "--quick", "--repetitions", "1"),
    )
    shown = cluster.wait(job, 90)
    output = cluster.output(shown)
    assert shown["JobState"] == "COMPLETED", output
    assert "push" in output

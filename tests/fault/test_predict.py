"""`mpips predict` on several ranks: the bytes of one process, and one error for all ranks."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from launcher import launch
from long_runs import LONG
from model_rig import make

N = 40_000  # three blocks


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make("mlp", tmp_path_factory.mktemp("mlp"))[0] / "checkpoints"


def predict(n: int, model: Path, data: Path, out: Path | None, code: int = 0) -> tuple[str, str]:
    """Predict on n ranks; return stdout and stderr."""
    more = [] if out is None else ["--out", str(out)]
    command = [sys.executable, "-m", "mpips", "predict", str(model), "--data", str(data), *more]
    with launch(n, command, None, 60) as job:
        assert job.wait() == code, job.tail()
        return job.stdout(), job.stderr()


@pytest.mark.parametrize("ending", ["csv", pytest.param("npz", marks=pytest.mark.long)])
def test_ranks_write_the_bytes_of_one_process(model: Path, tmp_path: Path, ending: str) -> None:
    x = np.random.default_rng(3).normal(1e6, 200, (N, 4))
    np.savez(tmp_path / "x.npz", x=x)
    outs = {n: tmp_path / f"{n}.{ending}" for n in (1, 5, *([2] * LONG))}
    for n, out in outs.items():
        _, said = predict(n, model, tmp_path / "x.npz", out)
        assert said.count(f"mpips predict: {N:,} predictions of ") == 1
    first = outs[1].read_bytes()
    assert len(first) > N * 12
    assert all(out.read_bytes() == first for out in outs.values())
    assert len(list(tmp_path.iterdir())) == 1 + len(outs)
    if ending == "csv":
        assert predict(3, model, tmp_path / "x.npz", None)[0].encode() == first


def test_an_error_of_one_rank_ends_all_with_its_sentence(model: Path, tmp_path: Path) -> None:
    x = np.ones((N, 4))
    x[20_000, 2] = np.nan  # in the block of rank 1
    np.savez(tmp_path / "x.npz", x=x)
    _, said = predict(3, model, tmp_path / "x.npz", tmp_path / "out.csv", code=2)
    assert said.count("mpips: error: ") == 1
    assert "x.npz: contains NaN, infinity" in said
    assert [path.name for path in tmp_path.iterdir()] == ["x.npz"]


@pytest.mark.parametrize(
    ("model_name", "out", "sentence"),
    [
        pytest.param("absent", "a.csv", "no folder '", marks=pytest.mark.long),
        ("", "absent/a.csv", "cannot be written: No such file or directory"),
        pytest.param(
            "", "a.txt", "use an extension of .csv, .npz, .parquet", marks=pytest.mark.long
        ),
    ],
)
def test_what_rank_0_alone_finds_ends_all_ranks(
    model: Path, tmp_path: Path, model_name: str, out: str, sentence: str
) -> None:
    np.savez(tmp_path / "x.npz", x=np.ones((9, 4)))
    _, said = predict(3, model / model_name, tmp_path / "x.npz", tmp_path / out, code=2)
    assert said.count("mpips: error: ") == 1
    assert sentence in said


STOPPED = """
import os, signal, sys
from mpips.cli import main
from mpips.inference import streaming

encode = streaming._encoded

def stops(*arguments):
    os.kill(os.getpid(), signal.SIGSTOP)
    return encode(*arguments)

if os.environ["OMPI_COMM_WORLD_RANK"] == sys.argv.pop(1):
    streaming._encoded = stops
sys.argv[1:1] = ["predict"]
main()
"""


@pytest.mark.parametrize("rank", [pytest.param(0, marks=pytest.mark.long), 1])
def test_a_stopped_rank_ends_the_others_with_its_name(
    model: Path, tmp_path: Path, rank: int
) -> None:
    np.savez(tmp_path / "x.npz", x=np.ones((N, 4)))
    command = [sys.executable, "-c", STOPPED, str(rank), str(model), "--timeout", "1"]
    command += ["--data", str(tmp_path / "x.npz"), "--out", str(tmp_path / "out.csv")]
    with launch(3, command, None, 60) as job:
        assert job.wait() == 124, job.tail()
        said = f"mpips predict (a round): rank {rank} has not come within 1 s"
        assert said in job.stderr()
        assert "raise --timeout if" in job.stderr()
    if rank:
        # Rank 0 removes the unfinished file.
        assert [path.name for path in tmp_path.iterdir()] == ["x.npz"]
    assert not (tmp_path / "out.csv").exists()


def test_sigterm_leaves_no_unfinished_file(model: Path, tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", x=np.ones((9, 4)))
    program = STOPPED.replace("SIGSTOP", "SIGTERM")
    command = [sys.executable, "-c", program, "0", str(model)]
    command += ["--data", str(tmp_path / "x.npz"), "--out", str(tmp_path / "out.csv")]
    done = subprocess.run(
        command, env={**os.environ, "OMPI_COMM_WORLD_RANK": "0"}, timeout=60, check=False
    )
    assert done.returncode == 128 + signal.SIGTERM
    assert [path.name for path in tmp_path.iterdir()] == ["x.npz"]

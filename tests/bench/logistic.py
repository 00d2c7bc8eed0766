"""The suite `logistic`: the task logistic, all options at their defaults, against Vowpal Wabbit.

Both make 30 passes over 32,561 made-up samples of 14 categories, the numbers of the Adult data. The rate of
Vowpal Wabbit is that of passes 2 to 30, which read its cache: the seconds of one pass are subtracted. It uses
two threads, one of which reads. Ours is the rate of the training, whose data is in memory. AUC and log-loss
are those of other samples.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import msgspec
import numpy as np

from mpips.bench.launching import Options
from mpips.bench.measure import Comparison, Findings
from mpips.data.metrics import auc, log_loss
from mpips.mpi.mpirun import mpi_environment, mpirun_command
from mpips.testing.errors import BenchError
from tests.bench.data_files import write_categories

_N_TRAIN, _N_TEST, _N_QUICK = 32_561, 10_000, 400
_PASSES, _PASSES_QUICK = 30, 2
_TIMEOUT_S = 600.0
# Trains, then writes the seconds of one pass and of all, and the predictions: FOLDER PASSES.
_WABBIT = """
import sys, time
from vowpalwabbit import Workspace

folder, passes = sys.argv[1], int(sys.argv[2])

def seconds(n):
    begin = time.perf_counter()
    arguments = f"-d {folder}/train.vw -f {folder}/model --cache_file {folder}/cache -k"
    Workspace(f"{arguments} --loss_function logistic --passes {n} --holdout_off --quiet").finish()
    return time.perf_counter() - begin

one, whole = seconds(1), seconds(passes)
model = Workspace(f"-i {folder}/model -t --link logistic --quiet")
with open(f"{folder}/test.vw") as lines:
    found = [model.predict(line.rstrip()) for line in lines]
model.finish()
print(one, whole, *found)
"""


class LinearMeasured(msgspec.Struct):
    """Samples per second, and AUC and log-loss of other samples."""

    samples_per_s: float
    auc: float
    log_loss: float


def run(suite: str, options: Options, nodes: int) -> Findings:
    """Measure one process, and one worker with one server. `nodes` has no effect.

    Raises:
        BenchError: A launch failed.
    """
    ratios = {"logistic_vs_vw_alone": 1, "logistic_vs_vw": 3}
    if importlib.util.find_spec("vowpalwabbit") is None:
        return Findings(skipped=dict.fromkeys(ratios, "vowpalwabbit is not installed"))
    found = Findings()
    n_train, n_test = (_N_QUICK, _N_QUICK) if options.quick else (_N_TRAIN, _N_TEST)
    passes = _PASSES_QUICK if options.quick else _PASSES
    with tempfile.TemporaryDirectory(prefix="mpips-bench-") as name:
        folder = Path(name)
        write_categories(folder, "train", n_train, 1)
        write_categories(folder, "test", n_test, 2)
        for ratio, n_ranks in ratios.items():
            ours, theirs = [], []
            for _ in range(options.repetitions):
                ours.append(of_mpips(folder, n_ranks, passes))
                theirs.append(of_wabbit(folder, passes))
            how = "one process" if n_ranks == 1 else "one worker, one server"
            suffix = ratio.removeprefix("logistic_vs_vw")
            for field, short, unit in (
                ("samples_per_s", ratio, "samples/s"),
                ("auc", f"logistic_auc{suffix}", "AUC"),
                ("log_loss", f"logistic_loss{suffix}", "nats"),
            ):
                comparison = Comparison(
                    name=short,
                    what=f"logistic, {passes} passes over {n_train:,} samples, {how}",
                    unit=unit,
                    ours=[getattr(one, field) for one in ours],
                    baseline=[getattr(one, field) for one in theirs],
                    baseline_name="Vowpal Wabbit",
                )
                found.comparisons.append(comparison)
    return found


def of_mpips(folder: Path, n_ranks: int, passes: int) -> LinearMeasured:
    """Train with mpips on so many ranks. Blocks; raises BenchError."""
    command = [sys.executable, "-m", "mpips", "train", "logistic", "--json", "--quiet"]
    command += ["--train", str(folder / "train.svm"), "--test", str(folder / "test.svm")]
    if passes != _PASSES:
        command += ["--epochs", str(passes)]
    if n_ranks > 1:
        command = [*mpirun_command(n_ranks), *command]
    return msgspec.json.decode(_output(command), type=LinearMeasured)


def of_wabbit(folder: Path, passes: int) -> LinearMeasured:
    """Train with Vowpal Wabbit. Blocks; raises BenchError."""
    command = [sys.executable, "-c", _WABBIT, str(folder), str(passes)]
    one, whole, *found = map(float, _output(command).split())
    with (folder / "train.vw").open() as train, (folder / "test.vw").open() as test:
        n_samples = sum(1 for _ in train)
        labels = np.array([int(line.startswith("1")) for line in test])
    # With few samples the start takes longer than the passes, by chance also longer in the shorter run.
    rate = (passes - 1) * n_samples / max(whole - one, 1e-3 * whole)
    scores = np.array(found)
    return LinearMeasured(rate, auc(scores, labels), log_loss(scores, labels))


def _output(command: list[str]) -> bytes:
    """Return what a command prints."""
    environment = {**os.environ, **mpi_environment(), "OMP_NUM_THREADS": "1"}
    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, timeout=_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise BenchError(f"{command[:4]} took longer than {_TIMEOUT_S:g} s") from None
    if done.returncode:
        text = (done.stdout + done.stderr).decode(errors="replace")
        raise BenchError(f"a side of the suite 'logistic' failed:\n{text[-2000:]}")
    return done.stdout

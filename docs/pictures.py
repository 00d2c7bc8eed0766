"""Make the pictures of docs/howto/web.md and docs/howto/program.md.

    python docs/pictures.py           # or one of them: web, solver

web: two runs of several ranks, one of which loses a worker. It trains for about a minute, opens the page in a
headless Chromium (apt install chromium chromium-driver) and writes docs/assets/web-*.png. With --runs FOLDER
it shows runs that are there already.

solver: docs/examples/solver.py under BSP and under SSP with four workers. It takes about two minutes, and
`mpips plot` (pip install matplotlib) writes docs/assets/solver.png.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests/support"))

from browser import Browser, browsing  # noqa: E402
from web_rig import page_of  # noqa: E402

from mpips.rundir.directory import RunFolder  # noqa: E402

ASSETS = ROOT / "docs/assets"
N_FEATURES = 5000
JOB = """
task = "fm"
data = { train = "train.svm", test = "test.svm" }
train = { epochs = 40, batch_size = 64, eval_every = 4 }
table = { consistency = "ssp" }
options = { dim = 16 }
checkpoint = { every_s = 5 }
"""


def write_samples(path: Path, n: int, rng: np.random.Generator) -> None:
    """Write samples whose features follow Zipf's law."""
    weights = 1 / np.arange(1, N_FEATURES + 1) ** 1.05
    true = np.random.default_rng(0).normal(0, 0.6, N_FEATURES + 1)
    with path.open("w") as file:
        for _ in range(n):
            keys = np.unique(rng.choice(N_FEATURES, 14, p=weights / weights.sum()) + 1)
            label = int(rng.random() < 1 / (1 + np.exp(-true[keys].sum())))
            file.write(f"{label} " + " ".join(f"{key}:1" for key in keys) + "\n")


def plot_solver(folder: Path) -> None:
    """Run the solver's program under both models, and draw their losses and the staleness."""
    mpips = [sys.executable, "-m", "mpips"]
    for model in ("bsp", "ssp"):
        options = ["-n", "6", "--name", model]
        program = [str(ROOT / "docs/examples/solver.py"), model, "0.1"]
        subprocess.run([*mpips, "run", *options, *program], cwd=folder, check=True)
    plot = [*mpips, "plot", "bsp", "ssp", "--x", "time", "--chart", "loss", "--chart", "workers"]
    picture = str(ASSETS / "solver.png")
    subprocess.run([*plot, "--log", "-o", picture, "--force"], cwd=folder, check=True)


def train(folder: Path, name: str, lr: float, kill_at: int = 0) -> None:
    """Run a job; kill a worker once the run has come to a step, if one is given."""
    command = [sys.executable, "-m", "mpips", "run", "job.toml", "-n", "6", "--servers", "2"]
    command += ["--name", name, "--set", f"table.optimizer={{name='adagrad', lr={lr}}}"]
    command += ["--progress", "none"]
    job = subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL)
    while kill_at and job.poll() is None:
        time.sleep(0.1)
        for path in (folder / "runs").glob(f"{name}-*/status.json"):
            status = RunFolder(path.parent).status()
            if status is not None and status.progress.step >= kill_at:
                os.kill(next(p.pid for p in status.ranks if p.role == "worker 1"), signal.SIGKILL)
                kill_at = 0
    if job.wait() != 0:
        raise SystemExit(f"the job {name} ended with exit code {job.returncode}")


def take(window: Browser, runs: Path) -> None:
    """Take the pictures of a folder of runs."""
    with page_of(runs) as page:
        window.open(page.address)
        names = sorted(path.parent.name for path in runs.glob("*/run.json"))
        window.size(1280, 900)
        window.dark(False)
        window.run("page.show(arguments[0]);", names)
        window.wait("document.body.dataset.ready && page.runs.size == arguments[0]", len(names))
        window.wait(
            "document.querySelectorAll('#heads [data-run]').length == arguments[0]", len(names)
        )
        window.picture(ASSETS / "web-runs.png")
        window.dark(True)
        window.run("page.show(arguments[0]);", names[-1:])
        window.wait("document.body.dataset.ready && document.querySelector('#panel-events .mark')")
        window.picture(ASSETS / "web-run-dark.png")
        window.open("about:blank")


def main() -> None:
    """Train, unless there are runs, and take the pictures."""
    kinds = ("web", "solver")
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--runs", type=Path, help="folder of runs to show")
    parser.add_argument(
        "pictures", nargs="*", metavar="PICTURE", help="web or solver [default: both]"
    )
    arguments = parser.parse_args()
    given, wanted = arguments.runs, arguments.pictures or kinds
    if unknown := set(wanted) - set(kinds):
        parser.error(f"{', '.join(sorted(unknown))}: must be web or solver")
    if "solver" in wanted:
        with tempfile.TemporaryDirectory() as name:
            plot_solver(Path(name))
    if "web" not in wanted:
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if given is None:
            rng = np.random.default_rng(1)
            write_samples(folder / "train.svm", 20_000, rng)
            write_samples(folder / "test.svm", 3_000, rng)
            (folder / "job.toml").write_text(JOB)
            train(folder, "fm-lr-0.05", 0.05)
            train(folder, "fm-lr-0.2", 0.2, kill_at=1800)
        with browsing(folder) as window:
            take(window, given or folder / "runs")


if __name__ == "__main__":
    main()

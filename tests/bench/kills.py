"""The suite `kills`: end launches at random places and count every update.

At the end of a run the count of each feature must be exactly its number in the data times the epochs. If
all tables are BSP, every bit must be equal to that of an undisturbed run. `mpips.testing.matrix` lists the
faults.
"""

from __future__ import annotations

import dataclasses
import random
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from mpips import _native
from mpips.bench.measure import Figure, Findings
from mpips.checkpoint import open_checkpoint, residuals
from mpips.errors import CapabilityError
from mpips.testing import beside, faults, matrix
from mpips.testing.counted import DIM
from mpips.testing.damage import Damage
from mpips.testing.errors import BenchError
from mpips.testing.killing import Victim
from mpips.testing.matrix import JobShape, Run
from tests.bench.options import SuiteOptions

FAULTS_OF_A_RUN = 6
N_FEATURES = 400
_SAMPLES = 704
_PER_SAMPLE = 12
_EPOCHS_FOR_A_LAUNCH = 4  # epochs for each fault: about a second of work
_MORE_RESTARTS = 3  # restarts that the supervisor may make beyond the planned ones
_LINES = 12  # lines of a log in the notes

_RESIDUALS = "/residuals/"

# Path of a dataset in a checkpoint -> its values; "/residuals/TABLE" -> the sum of the workers' residuals.
Content = dict[str, bytes]


@dataclasses.dataclass
class RunVerdict:
    """The result of one run.

    Attributes:
        run: The planned faults.
        damage: What was done to the run; None if it did not finish.
        error: Why the run did not finish; "" if it did.
        lost: Number of updates that are missing.
        double: Number of updates that were applied more than once.
        different: Names of datasets whose bits differ from those of an undisturbed run.
    """

    run: Run
    damage: Damage | None = None
    error: str = ""
    lost: int = 0
    double: int = 0
    different: tuple[str, ...] = ()

    @property
    def is_right(self) -> bool:
        """Return True if the run finished with the expected values."""
        return not (self.error or self.lost or self.double or self.different)

    def __str__(self) -> str:
        wrong = f"lost {self.lost}, doubled {self.double}, different {list(self.different)}"
        return f"{self.run} (seed {self.run.seed}): {self.error or wrong}; {self.damage}"


class Runs:
    """Runs on one data set. Results of undisturbed runs are cached. Not thread-safe."""

    def __init__(self, folder: Path) -> None:
        """Write the data. `folder` receives the data and all runs."""
        self._folder = folder
        self._counts = _make_data(folder)
        self._calm: dict[tuple[str, int], Content] = {}
        self._number = 0

    def judge(self, run: Run, epochs: int) -> RunVerdict:
        """Run a job, end its launches as planned, and check its last checkpoint. Blocks.

        Args:
            run: The job and its faults.
            epochs: Epochs of the job.
        """
        verdict = RunVerdict(run)
        try:
            found, verdict.damage = self._run(run.shape, run, epochs)
            if faults.TASKS[run.shape.task].bits:
                calm = self._undisturbed(run.shape.task, epochs)
                verdict.different = tuple(name for name in calm if found.get(name) != calm[name])
        except BenchError as error:
            verdict.error = str(error)
            return verdict
        verdict.lost, verdict.double = audit(found, epochs * self._counts)
        return verdict

    def _undisturbed(self, task: str, epochs: int) -> Content:
        """Return the fitted tables of an undisturbed run; the bits do not depend on the number of servers."""
        key = task, epochs
        if key not in self._calm:
            found, _ = self._run(JobShape(task, 1, "shm"), None, epochs)
            self._calm[key] = {name: found[name] for name in found if _is_fitted(name)}
        return self._calm[key]

    def _run(self, shape: JobShape, run: Run | None, epochs: int) -> tuple[Content, Damage]:
        """Run a job until it is done; return the content of its last checkpoint, and the damage."""
        folder = self._folder / f"run-{self._number}"
        folder.mkdir()
        self._number += 1
        deaths = run.deaths if run is not None else []
        aside = beside.make(run.event if run is not None else "", folder)
        settings = run.settings if run is not None else shape.settings
        job = _job(self._folder, shape, settings, epochs, len(deaths) + _MORE_RESTARTS)
        seed = run.seed if run is not None else 0
        with Victim(folder, job, deaths, shape.environment, aside) as victim:
            damage = victim.suffer(random.Random(seed))
            mark = victim.run.finished()
            assert mark is not None
            # Build the path from here: the run may have the folder at another path (beside.FullDisk).
            path = victim.run.path / "checkpoints" / Path(mark.checkpoint).name
            return content(path), damage


def _is_fitted(name: str) -> bool:
    return name.startswith(("/tables/fitted/", "/tables/factors/"))


def run(suite: str, options: SuiteOptions, nodes: int) -> Findings:
    """Make the runs of the matrix if `options.matrix`, or random ones until `options.kills` launches ended.

    Returns:
        What was lost. `nodes` has no effect.

    Raises:
        CapabilityError: The native module has no fault points.
    """
    if not _native.HAS_FAULT_POINTS:
        raise CapabilityError(
            "the suite 'kills' needs a native module with fault points; "
            "build one with MPIPS_SETUP_TESTS=1 bash jobs/setup.sh"
        )
    seed = options.seed or time.time_ns() % 1_000_000
    rng = random.Random(seed)
    folder = Path(tempfile.mkdtemp(prefix="mpips-bench-kills-"))
    runs = Runs(folder)
    without = [how for how, what in faults.HOWS.items() if beside.why_not(what.event)]
    verdicts: list[RunVerdict] = []
    left_out: list[str] = []
    for sampled in matrix.covering() if options.matrix else []:
        if reason := beside.why_not(sampled.event):
            left_out.append(f"left out: {sampled}: {reason}")
        else:
            verdicts.append(runs.judge(sampled, epochs(len(sampled.cells))))
    done = 0
    while done < options.kills and not options.matrix:
        n_faults = min(FAULTS_OF_A_RUN, max(2, options.kills - done))
        verdict = runs.judge(matrix.draw(rng, n_faults, without), epochs(FAULTS_OF_A_RUN))
        verdicts.append(verdict)
        done += sum(verdict.damage.kills.values()) if verdict.damage is not None else n_faults
    findings = _findings(verdicts, "of the matrix" if options.matrix else f"with seed {seed}")
    findings.notes += left_out
    if all(verdict.is_right for verdict in verdicts):
        shutil.rmtree(folder)
    else:
        findings.notes.append(f"the files of the failed runs are in {folder}")
    return findings


def epochs(n_faults: int) -> int:
    """Return the epochs of a run with `n_faults` faults, most of which end one launch."""
    return 2 + _EPOCHS_FOR_A_LAUNCH * n_faults


def _make_data(folder: Path) -> np.ndarray:
    """Write random samples; return the count of each feature, int64, shape (N_FEATURES,)."""
    rng = np.random.default_rng(1)
    keys = np.array(
        [np.sort(rng.choice(N_FEATURES, _PER_SAMPLE, replace=False)) for _ in range(_SAMPLES)]
    )
    keys[0, -1] = N_FEATURES - 1
    labels = rng.integers(0, 2, _SAMPLES)
    lines = [
        " ".join([str(label), *(f"{key + 1}:1" for key in row)])
        for label, row in zip(labels, keys, strict=True)
    ]
    (folder / "train.svm").write_text("\n".join(lines) + "\n")
    (folder / "test.svm").write_text("\n".join(lines[:64]) + "\n")
    return np.bincount(keys.reshape(-1), minlength=N_FEATURES)


def _job(
    folder: Path, shape: JobShape, settings: Sequence[str], n_epochs: int, restarts: int
) -> list[str]:
    common = [
        f"train.epochs={n_epochs}",
        f"data.train={folder / 'train.svm'}",
        "data.index_base=1",
        "checkpoint.every_steps=20",
    ]
    if faults.TASKS[shape.task].evaluates:
        common.append(f"data.test={folder / 'test.svm'}")
    sets = [word for text in [*common, *settings] for word in ("--set", text)]
    where = ["-n", str(shape.n_ranks), "--servers", str(shape.servers)]
    return [*where, "--max-restarts", str(restarts), "mpips.testing.counted:Counted", *sets]


def content(path: Path) -> Content:
    """Verify a checkpoint and return all its datasets and residuals.

    Raises:
        CheckpointError: The checkpoint is damaged.
    """
    found = {}
    with open_checkpoint(path) as checkpoint:
        checkpoint.verify()
        for table in checkpoint.manifest.tables:
            for entry in table.datasets:
                found[entry.path] = checkpoint.read(entry, 0, entry.n_units).tobytes()
        for worker in range(len(checkpoint.manifest.workers)):
            left = residuals.read_residuals(path, checkpoint.manifest, worker)
            for name, values in left.items():
                before = np.frombuffer(
                    found.get(_RESIDUALS + name, bytes(values.nbytes)), np.float32
                )
                found[_RESIDUALS + name] = (before + values).tobytes()
    return found


def audit(found: Content, counts: np.ndarray) -> tuple[int, int]:
    """Return the number of updates that are missing, and of those that were applied more than once.

    Args:
        found: Content of the tables at the end.
        counts: Expected count of each feature, shape (n,).
    """
    missed = more = 0
    for name in ("small", "seen", "whole"):
        if (data := found.get(f"/tables/{name}/values")) is not None:
            # Pushes are negative counts, so values lack what the residuals hold of them.
            left = np.frombuffer(found.get(_RESIDUALS + name, bytes(len(data))), np.float32)
            for copy in (np.frombuffer(data, np.float32) - left).reshape(-1, counts.size):
                missed += int(np.maximum(counts - copy, 0).sum())
                more += int(np.maximum(copy - counts, 0).sum())
    for name in ("rows", "few"):
        if (data := found.get(f"/tables/{name}/values")) is not None:
            rows = np.zeros((counts.size, DIM), np.float32)
            keys = np.frombuffer(found[f"/tables/{name}/keys"], np.int64)
            rows[keys] = np.frombuffer(data, np.float32).reshape(-1, DIM)
            missed += int(np.maximum(counts[:, None] - rows, 0).sum())
            more += int(np.maximum(rows - counts[:, None], 0).sum())
    return missed, more


def _findings(verdicts: Sequence[RunVerdict], drawn: str) -> Findings:
    damage = [verdict.damage for verdict in verdicts if verdict.damage is not None]
    back_s = [s for t in damage for s in t.back_s]
    kills: Counter[str] = sum((t.kills for t in damage), Counter())
    lost, double = (sum(getattr(v, name) for v in verdicts) for name in ("lost", "double"))
    different = sum(bool(v.different) for v in verdicts)
    failed = sum(bool(v.error) for v in verdicts)
    unplanned = sum(len(t.causes) for t in damage)
    figures = {
        "kills": (f"launches ended in {len(verdicts)} runs", kills.total()),
        "lost_updates": ("updates that are missing at the end", lost),
        "double_updates": ("updates that were applied more than once", double),
        "different_runs": ("BSP runs with other bits than an undisturbed one", different),
        "failed_runs": ("runs that did not finish", failed),
        "unplanned_ends": (
            "launches that ended by themselves before their work was done",
            unplanned,
        ),
    }
    found = Findings(
        figures=[
            Figure(name=name, what=what, unit="", values=[float(value)])
            for name, (what, value) in figures.items()
        ]
    )
    if back_s:
        what = "from a kill until the next attempt is at work"
        found.figures.append(Figure(name="kill_to_work_s", what=what, unit="s", values=back_s))
    who = ", ".join(f"{name} {n}" for name, n in sorted(kills.items()))
    found.notes.append(
        f"kills {drawn}: {who}; {sum(t.early for t in damage)} before the attempt was at work; "
        f"{sum(t.warm for t in damage)} attempts continued in memory; {sum(t.missed for t in damage)} "
        "launches finished before their kill; the supervisor gave up and was started again "
        f"{sum(t.given_up for t in damage)} times"
    )
    found.notes += [f"wrong: {_short(verdict)}" for verdict in verdicts if not verdict.is_right]
    names = ("lost_updates", "double_updates", "different_runs", "failed_runs")
    verdict = "met" if all(figures[name][1] == 0 for name in names) else "NOT met"
    text = ", ".join(f"{name} {figures[name][1]}" for name in names)
    found.notes.append(f"{text}: bar 0 {verdict}")
    return found


def _short(verdict: RunVerdict) -> str:
    lines = str(verdict).splitlines()
    return "\n".join(lines if len(lines) <= _LINES else [lines[0], *lines[-_LINES:]])

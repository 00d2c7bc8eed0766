"""Part of the suite `recovery`: processes are killed at random times, and every update is counted.

Runs take turns: asynchronous ones, where at the end each sample must count exactly as often as it was in
the data, and bulk-synchronous ones, whose every bit must be that of a run that nobody disturbed.
"""

from __future__ import annotations

import random
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from mpips.bench.killing import N_RANKS, Told, Victim
from mpips.bench.launching import Options
from mpips.bench.measure import Figure, Findings
from mpips.bench.rank.counted import COPIES, DIM
from mpips.checkpoint import open_checkpoint

KILLS_OF_A_RUN = 20
EPOCHS = 4
BATCH = 8
N_SERVERS = 2
_N_WORKERS = N_RANKS - 1 - N_SERVERS
_CLOCKS_FOR_A_KILL = 60  # about a second of work
# Consistency and transport of the runs, by turns.
TURNS = (("asp", "auto"), ("bsp", "auto"), ("asp", "rma"), ("bsp", "p2p"), ("ssp", "auto"))

Content = dict[str, bytes]


def run(options: Options) -> Findings:
    """Kill `options.kills` times.

    Raises:
        BenchError: A run did not come back, or not to its end.
    """
    seed = options.seed or time.time_ns() % 1_000_000
    rng = random.Random(seed)
    folder = Path(tempfile.mkdtemp(prefix="mpips-bench-kills-"))
    share = min(KILLS_OF_A_RUN, -(-options.kills // 2))
    data = _make_data(folder, share)
    calm: Content | None = None
    told: list[Told] = []
    lost = double = different = 0
    while (left := options.kills - sum(sum(t.kills.values()) for t in told)) > 0:
        turn = TURNS[len(told) % len(TURNS)]
        if turn[0] == "bsp" and calm is None:
            calm, _ = _run(folder / "calm", _job(data, *turn), 0, rng)
        found, what = _run(folder / f"run-{len(told)}", _job(data, *turn), min(left, share), rng)
        told.append(what)
        if turn[0] == "bsp":
            different += found != calm
        else:
            missed, more = audit(found, share)
            lost, double = lost + missed, double + more
    findings = _findings(told, seed, lost, double, different)
    if lost or double or different:
        findings.notes.append(f"what was found wrong is in {folder}")
    else:
        shutil.rmtree(folder)
    return findings


def _make_data(folder: Path, share: int) -> Path:
    """One sample for each feature; random labels."""
    n = n_samples(share)
    labels = np.random.default_rng(1).integers(0, 2, n)
    path = folder / "made.svm"
    path.write_text("".join(f"{y} {i + 1}:1\n" for i, y in enumerate(labels)))
    return path


def n_samples(share: int) -> int:
    """Samples of a run that is to be killed `share` times."""
    return _CLOCKS_FOR_A_KILL * share * BATCH * _N_WORKERS // EPOCHS


def _job(data: Path, consistency: str, transport: str) -> list[str]:
    settings = [
        f"train.epochs={EPOCHS}",
        f"train.batch_size={BATCH}",
        f"table.consistency={consistency}",
        f"cluster.transport={transport}",
        "checkpoint.every_steps=100",
    ]
    sets = [word for text in settings for word in ("--set", text)]
    shape = ["-n", str(N_RANKS), "--servers", str(N_SERVERS), "--max-restarts", "1000000"]
    return [*shape, "mpips.bench.rank.counted:Counted", "--train", str(data), *sets]


def _run(folder: Path, job: Sequence[str], kills: int, rng: random.Random) -> tuple[Content, Told]:
    """Run a job to its end; what its tables held at the end, and what was done to it."""
    folder.mkdir()
    with Victim(folder, job) as victim:
        told = victim.kill_at_random(kills, rng)
        victim.wait_done(told)
        mark = victim.run.finished()
        assert mark is not None
        return content(Path(mark.checkpoint)), told


def content(path: Path) -> Content:
    """Every dataset of a checkpoint, which is verified, by its place."""
    found = {}
    with open_checkpoint(path) as checkpoint:
        checkpoint.verify()
        for table in checkpoint.manifest.tables:
            for entry in table.datasets:
                found[entry.path] = checkpoint.read(entry, 0, entry.n_units).tobytes()
    return found


def audit(found: Content, share: int) -> tuple[int, int]:
    """Updates that are missing, and those that are there once more than they should."""
    n = n_samples(share)
    seen = np.frombuffer(found["/tables/seen/values"], np.float32).reshape(COPIES, n)
    rows = np.zeros((n, DIM), np.float32)
    keys = np.frombuffer(found["/tables/rows/keys"], np.int64)
    rows[keys] = np.frombuffer(found["/tables/rows/values"], np.float32).reshape(-1, DIM)
    missed = more = 0
    for counts in (*seen, *rows.T):
        missed += int(np.maximum(EPOCHS - counts, 0).sum())
        more += int(np.maximum(counts - EPOCHS, 0).sum())
    return missed, more


def _findings(told: list[Told], seed: int, lost: int, double: int, different: int) -> Findings:
    back_s = [s for t in told for s in t.back_s]
    kills: Counter[str] = sum((t.kills for t in told), Counter())
    figures = {
        "kills": (f"processes killed at random in {len(told)} runs", float(kills.total())),
        "lost_updates": ("updates that are missing at the end of runs without BSP", float(lost)),
        "double_updates": ("updates that were applied more than once there", float(double)),
        "different_runs": ("BSP runs with other bits than an undisturbed one", float(different)),
    }
    found = Findings(
        figures=[
            Figure(name=name, what=what, unit="", values=[value])
            for name, (what, value) in figures.items()
        ]
    )
    if back_s:
        what = "a process killed until the next attempt is at work"
        found.figures.append(Figure(name="kill_to_work_s", what=what, unit="s", values=back_s))
    who = ", ".join(f"{name} {n}" for name, n in sorted(kills.items()))
    found.notes.append(
        f"kills with seed {seed}: {who}; {sum(t.early for t in told)} before the attempt was at work; "
        f"{sum(t.warm for t in told)} attempts went on in memory; the supervisor was started again "
        f"{sum(t.given_up for t in told)} times after it had given up"
    )
    verdict = "met" if lost == double == different == 0 else "NOT met"
    found.notes.append(
        f"lost_updates {lost}, double_updates {double}, different_runs {different}: bar 0 {verdict}"
    )
    return found

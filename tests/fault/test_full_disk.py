"""The disk of a run directory is full for a while: training goes on, and checkpoints follow later."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path

import launcher
import processes
import pytest
import supervised
from supervised import Run, made_data

MOUNT = 'mount -t tmpfs -o size=4m tmpfs "$0" || exit 77; exec "$@"'


class Disk:
    """The small disk that a process sees at a path."""

    def __init__(self, pid: int, path: Path) -> None:
        self.path = Path(f"/proc/{pid}/root") / path.relative_to("/")
        self._filler = self.path / "filler"

    def fill(self) -> None:
        """Leave no room, not for one byte."""
        with self._filler.open("ab", buffering=0) as file:
            try:
                while True:
                    file.write(bytes(4096))
            except OSError:
                return

    def full_until(self, run: Run, said: str) -> bool:
        """Fill it again and again, since the run removes files of its own, until the run has said this."""

        def done() -> bool:
            self.fill()
            return said in run.launched.stderr()

        return processes.until(done, 60.0)

    def free(self) -> None:
        """Make room again."""
        self._filler.unlink()


def may_mount() -> bool:
    """Whether a process may have mounts of its own here."""
    command = ["unshare", "--mount", "mount", "-t", "tmpfs", "tmpfs", "/mnt"]
    try:
        return subprocess.run(command, capture_output=True, timeout=10).returncode == 0
    except OSError:
        return False


@pytest.mark.skipif(not may_mount(), reason="a small disk needs a mount of one's own")
def test_training_survives_a_full_disk(tmp_path: Path) -> None:
    run = start_on_small_disk(tmp_path)
    with run.launched:
        run.pid_of("server 0")
        folder = run.path
        disk = Disk(run.launched.pid, tmp_path / "runs")
        assert disk.full_until(run, "training continues"), run.launched.tail()
        assert disk.full_until(run, "the run continues, but status.json"), run.launched.tail()
        before = newest(folder)
        disk.free()
        assert processes.until(lambda: newest(folder) > before, 30.0), run.launched.tail()
        done = folder / "finished.json"
        assert processes.until(done.exists, 60.0), run.launched.tail()
        assert json.loads(done.read_text())["generation"] == 0
        assert run.launched.wait() == 0, run.launched.tail()


@pytest.mark.skipif(not may_mount(), reason="a small disk needs a mount of one's own")
def test_the_last_checkpoint_and_the_next_attempt_wait_for_room(tmp_path: Path) -> None:
    run = start_on_small_disk(tmp_path, every_s=0.0, epochs=3)
    with run.launched:
        status = run.until(lambda s: bool(s["ranks"]))
        folder = run.path
        disk = Disk(run.launched.pid, tmp_path / "runs")
        assert disk.full_until(run, "the job waits and tries again"), run.launched.tail()
        # All training is done and nothing of it is on the disk. Now a server dies as well.
        server = next(place["pid"] for place in status["ranks"] if place["role"] == "server 1")
        os.kill(server, signal.SIGKILL)
        again = "the next attempt starts when there is room"
        assert disk.full_until(run, again), run.launched.tail()
        disk.free()
        finished = folder / "finished.json"
        assert processes.until(finished.exists, 60.0), run.launched.tail()
        done = json.loads(finished.read_text())
        assert done["generation"] == 1
        assert done["step"] == 3 * 44, run.launched.tail()  # of the only worker
        assert run.launched.wait() == 0, run.launched.tail()
        assert "from memory: step 132" in run.launched.stderr()


def start_on_small_disk(folder: Path, every_s: float = 0.2, epochs: int = 9) -> Run:
    """A run of some 12 s with a checkpoint every 0.2 s, its run directory on a disk of 4 MiB."""
    (folder / "runs").mkdir()
    settings = [
        f"checkpoint.every_s={every_s}",
        "options.pause_s=0.05",
        f"train.epochs={epochs}",
        "redundancy.warm=true",
    ]
    sets = [word for text in settings for word in ("--set", text)]
    job = ["-n", "4", "--servers", "2", "faulty_task:Faulty", "--train", str(made_data(folder))]
    wrapped = ["unshare", "--mount", "sh", "-c", MOUNT, str(folder / "runs")]
    env = {**launcher.site_environment(), **supervised.ENVIRONMENT}
    launched = launcher.Launch([*wrapped, *supervised.command(*job, *sets)], env, 110.0, folder)
    run = Run(folder, launched)
    run.folder = Disk(launched.pid, folder / "runs").path
    return run


def newest(folder: Path) -> str:
    """The name of the newest checkpoint of a run."""
    return max(path.name for path in (folder / "checkpoints").glob("step-*"))

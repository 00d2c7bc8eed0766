"""The disk of a run directory is full for a while: training goes on, and checkpoints follow later."""

from __future__ import annotations

import json
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
        with self._filler.open("wb", buffering=0) as file:
            try:
                while True:
                    file.write(bytes(4096))
            except OSError:
                return

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
        disk.fill()
        said = run.launched.stderr
        assert processes.until(lambda: "training goes on" in said(), 30.0), run.launched.tail()
        assert processes.until(lambda: "the run goes on without its record" in said(), 20.0)
        before = newest(folder)
        disk.free()
        assert processes.until(lambda: newest(folder) > before, 30.0), run.launched.tail()
        done = folder / "finished.json"
        assert processes.until(done.exists, 60.0), run.launched.tail()
        assert json.loads(done.read_text())["generation"] == 0
        assert run.launched.wait() == 0, run.launched.tail()


def start_on_small_disk(folder: Path) -> Run:
    """A run of some 12 s with a checkpoint every 0.2 s, its run directory on a disk of 4 MiB."""
    (folder / "runs").mkdir()
    settings = ["checkpoint.every_s=0.2", "options.pause_s=0.05", "train.epochs=9"]
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

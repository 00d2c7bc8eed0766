"""A supervisor whose mpirun is `fake_mpirun.py`, in this process and in the background."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import processes
import pytest

from mpips.config.schema import JobConfig, load_config
from mpips.rundir.directory import RunFolder
from mpips.rundir.requests import RequestFolder
from mpips.supervisor.hosts import HostPool
from mpips.supervisor.launcher import Launcher
from mpips.supervisor.plan import SupervisionPlan, make_run
from mpips.supervisor.stopping import Signals
from mpips.supervisor.supervise import Supervisor

FAKE = Path(__file__).with_name("fake_mpirun.py")


class Case:
    """A run with a fake launcher.

    Attributes:
        printed: Texts that the supervisor printed.
    """

    def __init__(
        self, folder: Path, patch: pytest.MonkeyPatch, run: RunFolder | None = None
    ) -> None:
        """Make a run directory and a launcher in `folder`; with `run` that run continues."""
        self.printed: list[str] = []
        self.patch = patch
        program = folder / "mpirun"
        self.config: JobConfig
        if run is None:
            job = [("task", "mlp"), ("data.train", "digits"), ("cluster.timeout_s", 30.0)]
            self.config = load_config(None, job)
            self.run_folder = make_run(self.config, folder, "job")
            program.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{FAKE}" "$@"\n')
            program.chmod(0o700)
        else:
            self.run_folder = run
            self.config = load_config(str(run.config_file), [])
        self.launcher = Launcher(str(program), "openmpi", "fake")
        self.pool = HostPool([], 4, 0, 1, 0)
        self.max_restarts = 3
        self.more: tuple[str, ...] = ()

    def run(self, *script: dict[str, Any]) -> int:
        """Run attempts as `script` describes them (see fake_mpirun.py); return the exit code."""
        self.patch.setenv("FAKE_MPIRUN", json.dumps(script))
        plan = SupervisionPlan(
            self.run_folder, self.config, self.pool, self.launcher, self.max_restarts, self.more
        )
        grace_s = next((act["grace_s"] for act in script if "grace_s" in act), 1.0)
        with Signals(grace_s, RequestFolder(self.run_folder)) as signals:
            return Supervisor(plan, signals, self.printed.append).run()

    @property
    def text(self) -> str:
        """All that the supervisor printed."""
        return "\n".join(self.printed)

    @property
    def attempts(self) -> int:
        """Number of attempts up to now."""
        return len(list(self.run_folder.logs.iterdir()))

    @property
    def state(self) -> str:
        """State in status.json."""
        status = self.run_folder.status()
        assert status is not None
        return status.state


def running(run: RunFolder) -> list[int]:
    """Processes of a run, stopped ones too."""
    return processes.marked(f"MPIPS_RUN_DIR={run.path}")


def wait_for(path: Path) -> None:
    """Wait until a file exists."""
    assert processes.until(path.exists, 20.0)


class Background:
    """The run of a case in another process, until it sleeps in its first attempt."""

    def __init__(self, case: Case, **more: object) -> None:
        program = (
            "import json, sys; from pathlib import Path; import pytest\n"
            "from supervisor_rig import Case, RunFolder\n"
            "folder, run, script = sys.argv[1:]\n"
            "case = Case(Path(folder), pytest.MonkeyPatch(), RunFolder(Path(run)))\n"
            "case.max_restarts = 0\n"
            "code = case.run(json.loads(script))\n"
            "print(case.text); sys.exit(code)\n"
        )
        self.run = case.run_folder
        # Not a pipe: processes that a killed supervisor leaves would hold it open.
        self.output = self.run.path / "printed"
        script = {"sleep": 60, "spawn": 2, **more}
        folder = str(Path(case.launcher.path).parent)
        with self.output.open("w") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-c", program, folder, str(self.run.path), json.dumps(script)],
                cwd=Path(__file__).parent,
                stdout=output,
            )

    def text(self) -> str:
        """What it printed."""
        return self.output.read_text()

    def __enter__(self) -> Background:
        ready = self.run.attempt(0) / "asleep"
        deadline = time.monotonic() + 30
        while not ready.exists():
            assert self.process.poll() is None, self.text()
            assert time.monotonic() < deadline
            time.sleep(0.01)
        return self

    def __exit__(self, *error: object) -> None:
        self.process.kill()
        self.process.wait(10)
        for pid in running(self.run):
            os.kill(pid, signal.SIGKILL)

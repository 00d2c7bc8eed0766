"""Later attempts of a supervised run start from its checkpoints, whatever `resume` is."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from checkpoints import Contents

from mpips.checkpoint.folder import list_checkpoints
from mpips.config.triggers import Triggers
from mpips.recovery.saving import Saving
from mpips.rundir.directory import GENERATION, RUN_DIR, RunFolder, replace_json
from mpips.rundir.files import Lease
from mpips.session.session import FunctionPlan

SCRIPT = """
import os, pathlib, mpips
def main(worker):
    table = worker.table("w")
    begin = 0 if worker.start is None else worker.start.cursor["step"]
    pathlib.Path(os.environ["BEGUN"]).write_text(f"{begin} {table.pull()[0]:g}")
    saved = list(pathlib.Path(os.environ["MPIPS_RUN_DIR"], "checkpoints").glob("step-*"))
    for step in range(begin, 10**9):
        table.push([-1.0])
        worker.set_cursor({"step": step + 1})
        worker.clock()
        table.pull()
        found = pathlib.Path(os.environ["MPIPS_RUN_DIR"], "checkpoints").glob("step-*")
        if len(list(found)) > len(saved):
            raise RuntimeError("the end of the attempt, behind a checkpoint")
tables = [mpips.DenseTable("w", (1,), mpips.SGD(1.0))]
mpips.run(main, tables, resume="never", every_steps=2, verbose=False)
"""


@pytest.mark.parametrize("resume", ["auto", "never", "path"])
@pytest.mark.parametrize("has_own_folder", [False, True])
def test_the_folder_of_the_run_wins_over_resume(
    tmp_path: Path, resume: str, has_own_folder: bool
) -> None:
    own, other = tmp_path / "own", tmp_path / "other"
    own.mkdir()
    Contents().write(other, 50)
    first = other / f"step-{50:012d}"
    wanted = str(first) if resume == "path" else resume

    def chosen() -> Path | None:
        saving = Saving(own, "a-run", triggers=Triggers())
        return FunctionPlan(saving, wanted, None, has_own_folder).choose().start

    # The first attempt begins as the script says.
    assert chosen() == (first if resume == "path" else None)
    Contents().write(own, 70)
    newest = own / f"step-{70:012d}"
    begins = {"auto": newest, "never": None, "path": first}
    assert chosen() == (newest if has_own_folder else begins[resume])


def test_a_script_that_never_resumes_continues_in_the_next_attempt(tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path, "job")
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    begun, newest = [], 0
    for generation in range(2):
        run.attempt(generation).mkdir()
        lease = Lease(generation=generation, host="here", pid=1, time_s=time.time())
        replace_json(run.lease_file, lease)
        place = tmp_path / f"begun-{generation}"
        env = os.environ | {RUN_DIR: str(run.path), GENERATION: str(generation)}
        env["BEGUN"] = str(place)
        command = [sys.executable, "-m", "mpips.supervisor.script", str(script)]
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120)
        assert done.returncode == 1, done.stderr
        begun.append(place.read_text())
        newest = newest or list_checkpoints(run.checkpoints)[-1].step
    assert begun == ["0 0", f"{newest} {newest}"]
    assert newest > 0

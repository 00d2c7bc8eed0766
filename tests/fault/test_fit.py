"""`mpips.fit` on ranks of its own: the result of the run, and its failure."""

from __future__ import annotations

import sys
from pathlib import Path

import launcher
from supervised import ENVIRONMENT

PROGRAM = """
import numpy as np
import mpips

fit = mpips.fit("mlp", "digits", epochs=2, ranks=4, folder="kept", settings={"cluster.servers": 2})
print(fit.epochs, fit.steps, len(fit.history), fit.path.parent.name, fit.model.manifest.step)
print(fit.metrics["accuracy"] == fit.model.evaluate("digits")["accuracy"])
try:
    mpips.fit(
        "faulty_task:Faulty",
        (np.arange(60).reshape(20, 3), np.arange(20) % 2),
        ranks=4,
        fault="raise",
        at=3,
        once="once",
        settings={"run.max_restarts": 0},
    )
except mpips.MpipsError as error:
    print(type(error).__name__, error)
"""


def test_a_run_on_several_ranks_is_the_result_and_its_failure_an_error(tmp_path: Path) -> None:
    env = {**launcher.site_environment(), **ENVIRONMENT}
    with launcher.Launch([sys.executable, "-c", PROGRAM], env, 60.0, tmp_path) as program:
        assert program.wait() == 0, program.tail()
        told = program.stdout().splitlines()
    assert told[0] == "2 90 2 kept 90"
    assert told[1] == "True"
    assert told[2].startswith("MpipsError worker 1 (rank "), told
    assert ": ValueError: planted (exit code 1); log: " in told[2]
    # The failed run can be continued, with its data; the files of the other call have gone with its result.
    again = told[2].partition("continue with: ")[2].split()
    with launcher.Launch(
        [sys.executable, "-m", *again, "--max-restarts", "0"], env, 60.0, tmp_path
    ) as run:
        assert run.wait() == 0, run.tail()
    left = sorted(path.name.partition("-")[0] for path in (tmp_path / "runs").iterdir())
    assert left == ["faulty_task", "mpips"]
    assert len(list((tmp_path / "kept").iterdir())) == 1

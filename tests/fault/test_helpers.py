"""Workers that fork helper processes: the helpers end as they do anywhere, the job goes on."""

import json
import sys
from pathlib import Path

from launcher import launch

PROGRAM = Path(__file__).with_name("programs") / "helpers.py"
ENV = {"PYTHONPATH": str(Path(__file__).resolve().parents[2])}


def test_helpers_are_ended_and_refused_and_the_job_goes_on(tmp_path: Path) -> None:
    # With a folder for checkpoints, signals of the ranks are mpips's own.
    options = {"servers": 1, "timeout_s": 30, "save": str(tmp_path)}
    with launch(4, [sys.executable, str(PROGRAM), json.dumps(options)], ENV, timeout=60.0) as job:
        assert job.wait() == 0, job.tail()
        found = json.loads(job.stdout().strip().splitlines()[-1])
        said = job.stderr()
    assert found == {"codes": [1, 5, -15] * 3 + [1], "dense": True, "rows": True, "after": 9}
    assert said.count("was used in process") == 2 * 3, said
    assert said.count("a forked child returned from main") == 2, said

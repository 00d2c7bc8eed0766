"""Tables larger than memory in real launches: every push counts once over kills, and no file is left."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from supervised import SHAPE, Run, alive, check_counts, job, start

# Servers die where they move rows, and in the middle of a checkpoint. Each launch comes some steps further
# than the one before: two that do not end the run.
MOVING = (
    "row-writing:40,row-written:900,row-reading:900,row-placed:1500,cut-copied:2,block-written:3"
)


def arguments(folder: Path, *settings: str) -> list[str]:
    """The task, whose files are in `folder/rows`."""
    (folder / "rows").mkdir(exist_ok=True)
    own = (f"options.folder={folder / 'rows'}", "options.copies=20", "options.fitted=false")
    own += ("options.pulls=true", "options.pause_s=0.01", "checkpoint.every_steps=10")
    return job(folder, "stored_counts:Stored", *own, *settings)


def check_end(run: Run, folder: Path) -> str:
    """Wait for the end; what was said. Every push counts once, and nothing is left."""
    assert run.launched.wait() == 0, run.launched.tail(80)
    check_counts(run, folder)
    assert not alive(run)
    token = json.loads((run.path / "run.json").read_text())["token"]
    assert not list(Path("/dev/shm").glob(f"*{token}*"))
    assert list((folder / "rows").iterdir()) == []
    return run.launched.stderr()


@pytest.mark.timeout(240)
@pytest.mark.parametrize("model", ["asp", pytest.param("ssp", marks=pytest.mark.long)])
def test_servers_that_die_while_rows_move_go_on_in_memory(tmp_path: Path, model: str) -> None:
    given = ["--max-restarts", "9", *arguments(tmp_path, f"table.consistency={model}")]
    run = start(tmp_path, *SHAPE, *given, fault=MOVING, timeout=200.0)
    with run.launched:
        said = check_end(run, tmp_path)
    assert run.attempts == MOVING.count(",") + 2, said
    assert "not continuing in memory" not in said


def test_a_job_that_loses_its_memory_starts_from_a_checkpoint(tmp_path: Path) -> None:
    given = arguments(tmp_path, "table.consistency=asp", "redundancy.warm=false")
    # A server dies at its second cut. The first checkpoint is complete then, and rows move between them.
    run = start(tmp_path, *SHAPE, *given, fault="cut-copied:2", timeout=100.0)
    with run.launched:
        said = check_end(run, tmp_path)
    assert run.attempts == 2, said
    assert "from checkpoint step-" in said


def test_options_that_do_not_combine_are_one_sentence(tmp_path: Path) -> None:
    run = start(tmp_path, *SHAPE, *arguments(tmp_path, "checkpoint.incremental=5"))
    with run.launched:
        assert run.launched.wait() == 2, run.launched.tail()
    said = " ".join(run.launched.stderr().split())
    assert "storage does not combine with checkpoint.incremental = 5" in said
    assert list((tmp_path / "rows").iterdir()) == []

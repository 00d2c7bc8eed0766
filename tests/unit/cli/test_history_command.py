"""`mpips history check`: attempts that are left out are named, and lacking records are no breaks."""

from __future__ import annotations

from pathlib import Path

import pytest
from attempts_rig import from_checkpoint, put, steps_of, write
from click.testing import CliRunner

from mpips.cli.history import command
from mpips.record.files import End, record_file, record_folder
from mpips.rundir.directory import RunFolder


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    """A run whose attempt 1 began from a checkpoint of attempt 0."""
    found = RunFolder.create(tmp_path, "recorded")
    write(found, 0, (6, 5))
    write(found, 1, (4, 4), ended=True, **from_checkpoint(0, 4, 3))
    return found


def check(run: RunFolder, code: int = 0, *options: str) -> str:
    """Return the output of the command."""
    arguments = ["check", run.path.name, "--folder", str(run.path.parent), *options]
    result = CliRunner().invoke(command, arguments)
    assert result.exit_code == code, result.output
    return " ".join(result.output.split())


def test_all_attempts_and_what_lies_between_them_are_checked(run: RunFolder) -> None:
    output = check(run)
    assert f"of {run.path.name} in 2 attempts: no break" in output
    assert "left out" not in output
    assert "restart" not in output
    # Attempt 1 begins at a clock that the server of attempt 0 has not seen, whose record is complete.
    write(run, 0, (3, 3), ended=True)
    assert "restart: server 0 of attempt 0 has not consumed the tick of clock 3" in check(run, 1)


def test_a_record_that_ends_before_a_checkpoint_is_a_note(run: RunFolder) -> None:
    put(run, 0, "server", 0, b"", End(limited_at=0))
    output = check(run)
    assert "note: restart: the record of server 0 of attempt 0 ends because of" in output
    assert "no break" in output


@pytest.mark.parametrize(
    ("role", "index", "size", "why"),
    [
        ("server", 0, 30, "is damaged, or no record"),
        (
            "server",
            0,
            None,
            "is missing: its rank had not begun to record, or the file was removed",
        ),
        ("worker", 1, 0, "is empty"),
        ("worker", 0, 12, "is damaged, or no record"),
    ],
)
def test_an_attempt_that_is_left_out_is_named_with_its_file(
    role: str, index: int, size: int | None, why: str, run: RunFolder
) -> None:
    path = record_folder(run, 0) / f"{role}-{index}.rec"
    if size is None:
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[:size])
    output = check(run)
    assert f"note: attempt 0 is left out: {path}: {why}" in output
    assert (
        "note: restart: attempt 1 began from checkpoint step-4, and the attempt that wrote it"
        in output
    )


def test_an_attempt_that_ended_before_it_recorded_is_named(run: RunFolder) -> None:
    put(run, 2, "worker", 1, steps_of(0), None)
    output = check(run)
    missing = record_file(record_folder(run, 2), "server", 0)
    assert f"note: attempt 2 is left out: {missing}: is missing" in output
    assert "restart" not in output


def test_one_attempt_is_checked_alone(run: RunFolder) -> None:
    assert "restart" not in check(run, 0, "--attempt", "1")

"""What `mpips replay` starts: launches, their order, and the checkpoint of --from."""

from __future__ import annotations

from pathlib import Path

import pytest
from record_rig import content

from mpips.cli import replay
from mpips.errors import ConfigError
from mpips.record.files import ReplayBreak, ReplayOrder, replay_order
from mpips.record.legs import AttemptLeg
from mpips.rundir.directory import RunFolder


def leg(attempt, start="new", stops=()):
    head = content("server", 0, b"", []).head
    from msgspec.structs import replace

    return AttemptLeg(attempt, Path(f"attempt-{attempt}"), replace(head, start=start), stops, [])


LEGS = [leg(0, stops=(4,)), leg(2, "checkpoint step-4", (3,)), leg(3, "checkpoint step-7")]


BREAKS = (ReplayBreak(table="w", number=5), ReplayBreak(number=9))


@pytest.fixture
def runs(tmp_path):
    """A recorded run, and that of its replay."""
    found = []
    for name in ("recorded", "replay"):
        (tmp_path / name / "checkpoints").mkdir(parents=True)
        found.append(RunFolder(tmp_path / name))
    return found


def test_from_begins_with_the_attempt_that_began_from_the_checkpoint(runs):
    assert replay._legs_from(runs[0], LEGS, "step-7") == LEGS[2:]
    assert replay._legs_from(runs[0], LEGS, "runs/recorded/checkpoints/step-4") == LEGS[1:]
    assert replay._legs_from(runs[0], LEGS, "step-000000000004") == LEGS[1:]
    with pytest.raises(ConfigError, match=r"--from step-5: .* attempts began from step-4, step-7"):
        replay._legs_from(runs[0], LEGS, "step-5")
    with pytest.raises(ConfigError, match="all of it began anew"):
        replay._legs_from(runs[0], LEGS[:1], "step-5")


def test_a_newer_attempt_that_is_left_out_is_named(runs, capsys):
    from attempts_rig import put, write

    write(runs[0], 1, (4, 4), ended=True)
    put(runs[0], 0, "server", 0, b"", None)
    replay._show_newer(runs[0], 1)
    assert capsys.readouterr().err == ""
    put(runs[0], 2, "server", 0, b"", None)
    replay._show_newer(runs[0], 1)
    found = " ".join(capsys.readouterr().err.split())
    assert "the replay ends with attempt 1; 2 is left out: " in found
    assert "worker-0.rec: is missing" in found


def test_the_checkpoint_of_from_is_copied_into_the_new_run(runs):
    source = runs[0].checkpoints / "step-4"
    source.mkdir()
    (source / "data.h5").write_bytes(b"values")
    replay._copy_checkpoint(*runs, LEGS[1])
    assert (runs[1].checkpoints / "step-4" / "data.h5").read_bytes() == b"values"
    with pytest.raises(ConfigError, match=r"step-7: cannot be copied: .*leave --from out"):
        replay._copy_checkpoint(*runs, LEGS[2])


def test_each_launch_gets_the_record_its_end_and_its_start(runs):
    found = []
    for each in LEGS:
        replay._begin_leg(runs[1], each, BREAKS, is_last=each is LEGS[-1])
        found.append(replay_order(runs[1]))
    folders = [str(each.folder.absolute()) for each in LEGS]
    assert found == [
        ReplayOrder(record=folders[0], stops=(4,), begins=True, breaks=BREAKS[:1]),
        ReplayOrder(record=folders[1], stops=(3,), begins=False, breaks=BREAKS[:1]),
        ReplayOrder(record=folders[2], stops=(), begins=False, breaks=BREAKS),
    ]


@pytest.mark.parametrize(
    ("code", "stops", "until", "ends"),
    [
        (75, (4,), False, "on"),
        (1, (4,), False, "exit"),
        (75, (), False, "exit"),
        (0, (), False, "on"),
        (0, (4,), False, "error"),
        (75, (), True, "on"),
        (0, (4,), True, "on"),
        (1, (), True, "exit"),
    ],
)
def test_a_launch_ends_with_its_checkpoint_or_with_the_run(
    code, stops, until, ends, runs, monkeypatch
):
    import click

    def start_run(*arguments, **options):
        if code:
            raise click.exceptions.Exit(code)

    monkeypatch.setattr(replay, "start_run", start_run)
    monkeypatch.setattr(replay, "pool_of", lambda config: None)

    def run():
        replay._run_leg(*(runs[0], None, runs[1]), leg(0, stops=stops), True, ends=until)

    if ends == "on":
        run()
    elif ends == "exit":
        with pytest.raises(click.exceptions.Exit) as error:
            run()
        assert error.value.exit_code == code
    else:
        with pytest.raises(ConfigError, match="ended before the checkpoint"):
            run()

"""`mpips ls`, `mpips logs`, `mpips diff` and completion on run directories whose files the tests write."""

from __future__ import annotations

import dataclasses
import json
import os
import shlex
import threading
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.shell_completion import BashComplete
from click.testing import CliRunner

from mpips.cli import cli
from mpips.cli.diff import command as diff
from mpips.cli.logs import command as logs
from mpips.cli.ls import command as ls
from mpips.errors import ConfigError
from mpips.monitor.logs import Follower, LinesOnce, LogFile, last_lines
from mpips.monitor.runs import HEADINGS, cells, optional, summaries
from mpips.rundir.directory import RunFolder, replace_json
from mpips.rundir.files import Event, Finished, Lease, Progress, RankPlace, Status
from mpips.terminal.table import text_table
from mpips.terminal.units import age_text, binary_size, decimal_size

PLACES = (
    RankPlace(rank=0, role="scheduler + server 0", host="a", pid=1),
    RankPlace(rank=1, role="server 1", host="a", pid=2),
    RankPlace(rank=2, role="worker 0", host="b", pid=3),
)


def made(folder: Path, name: str, **config: Any) -> RunFolder:
    """Make a run that runs: attempt 1, two of its ranks with a log."""
    run = RunFolder.create(folder, name)
    replace_json(run.config_file, {"task": "mlp", **config})
    lease = Lease(generation=1, host="a", pid=9, time_s=time.time())
    replace_json(run.lease_file, lease)
    progress = Progress(epoch=2, n_epochs=5, step=1234, loss=0.25)
    status = Status(
        state="running", generation=1, time_s=time.time() - 5, progress=progress, ranks=PLACES
    )
    run.write_status(status)
    run.note(Event(time_s=1.0, generation=0, event="failed", cause="killed"))
    for attempt in (0, 1):
        run.attempt(attempt).mkdir()
        for rank in (0, 2):
            path = run.attempt(attempt) / f"rank-{rank}.log"
            path.write_text("".join(f"{attempt}.{rank} line {i}\n" for i in range(3)))
        (run.attempt(attempt) / "launcher.log").write_text("from mpirun\n")
    return run


def output(command: Any, *arguments: str, code: int = 0) -> list[str]:
    result = CliRunner().invoke(command, arguments)
    assert result.exit_code == code, (result.output, result.exception)
    return result.output.splitlines()


def error(command: Any, *arguments: str) -> str:
    return str(CliRunner().invoke(command, arguments).exception)


def test_ls_shows_state_progress_age_and_size_of_each_run_the_newest_first(tmp_path: Path) -> None:
    made(tmp_path, "old")
    script = made(tmp_path, "new", run={"script": "/home/a/train.py"})
    (script.checkpoints / "state").write_bytes(b"x" * 2_000_000)
    heading, *rows = output(ls, str(tmp_path))
    assert heading.split() == [
        "run",
        "task",
        "state",
        "epoch",
        "step",
        "loss",
        "lr",
        "failures",
        "changed",
        "size",
    ]
    assert [row.split()[0].partition("-")[0] for row in rows] == ["new", "old"]
    assert rows[0].split()[1:7] == ["train.py", "running", "3", "1,234", "0.25", "-"]
    assert rows[0].split()[7:] == ["1", "5", "s", "ago", "2", "MB"]
    assert rows[1].split()[1] == "mlp"


def test_ls_shows_the_epoch_of_a_script_that_counts_them_without_a_number(tmp_path: Path) -> None:
    shown = []
    for has_epochs in (False, True):
        run = made(tmp_path, "script")
        status = run.status()
        assert status is not None
        progress = Progress(epoch=2, step=9, has_epochs=has_epochs)
        run.write_status(msgspec.structs.replace(status, progress=progress))
        shown.append(output(ls, str(tmp_path))[1].split()[3])
    assert shown == ["-", "3"]


def test_ls_of_a_script_has_epoch_step_loss_and_rate_at_80_columns(tmp_path: Path) -> None:
    run = made(tmp_path, "towers", run={"script": "two_towers.py"})
    status = run.status()
    assert status is not None
    progress = Progress(epoch=2, step=12_345, loss=0.12345, learning_rate=0.000123, has_epochs=True)
    run.write_status(msgspec.structs.replace(status, progress=progress))
    (found,) = summaries(tmp_path)
    assert found.learning_rate == 0.000123
    row = cells(found)
    # Columns that say nothing go first: those of runs without failures, rates or epochs.
    assert row[HEADINGS.index("failures")] == "1"
    assert [HEADINGS[i] for i in optional([row])] == [
        "task",
        "size",
        "lr",
        "epoch",
        "failures",
        "step",
    ]
    whole = cells(dataclasses.replace(found, restarts=0))
    assert HEADINGS[optional([whole])[0]] == "failures"
    lines = text_table([HEADINGS, whole], width=80, optional=optional([whole]))
    assert all(len(line) <= 80 for line in lines)
    assert lines[0].split() == ["run", "state", "epoch", "step", "loss", "lr", "changed"]
    assert lines[1].split()[2:6] == ["3", "12,345", "0.1235", "0.000123"]
    unrated = cells(dataclasses.replace(found, learning_rate=None))
    assert HEADINGS[optional([unrated])[0]] == "lr"


def test_ls_lists_damaged_and_unstarted_runs_too(tmp_path: Path) -> None:
    fresh = RunFolder.create(tmp_path, "fresh")
    broken = made(tmp_path, "broken")
    broken.status_file.write_text("{")
    found = {run.name: run for run in summaries(tmp_path)}
    assert (found[fresh.path.name].state, found[fresh.path.name].task) == ("not started", "")
    assert found[broken.path.name].state == "damaged"
    assert "status.json: is damaged" in found[broken.path.name].note
    lines = output(ls, str(tmp_path), "--json")
    assert {json.loads(line)["state"] for line in lines} == {"not started", "damaged"}


def test_the_loss_of_a_run_that_is_done_is_that_of_its_last_epoch(tmp_path: Path) -> None:
    run = made(tmp_path, "job")
    assert summaries(tmp_path)[0].loss == 0.25
    replace_json(run.path / "summary.json", {"loss": 0.125})
    assert summaries(tmp_path)[0].loss == 0.25
    status = run.status()
    assert status is not None
    run.write_status(msgspec.structs.replace(status, state="done"))
    replace_json(run.finished_file, Finished(generation=1, time_s=time.time(), step=9))
    assert summaries(tmp_path)[0].loss == 0.125
    # A script has no loss there, and a loss that is not finite is none.
    for content in ({"steps": 3}, {"loss": None}):
        replace_json(run.path / "summary.json", content)
        assert summaries(tmp_path)[0].loss == 0.25
    (run.path / "summary.json").write_text("[1")
    assert summaries(tmp_path)[0].loss == 0.25


def test_the_command_that_continues_a_run_is_one_for_a_shell(tmp_path: Path) -> None:
    path = tmp_path / "Ver such's"
    assert shlex.split(RunFolder(path).again) == ["mpips", "run", str(path)]


def test_ls_of_a_folder_without_runs(tmp_path: Path) -> None:
    assert output(ls, str(tmp_path)) == [f"mpips ls: no run in {tmp_path}"]
    assert "nowhere: is no folder; give the folder that contains the runs" in error(ls, "nowhere")


def test_logs_begin_each_line_with_the_rank_and_its_role(tmp_path: Path) -> None:
    run = made(tmp_path, "job")
    assert output(logs, str(run.path), "-n", "2") == [
        "[rank 0 scheduler + server 0] 1.0 line 1",
        "[rank 0 scheduler + server 0] 1.0 line 2",
        "[rank 2 worker 0] 1.2 line 1",
        "[rank 2 worker 0] 1.2 line 2",
        "[launcher] from mpirun",
    ]


@pytest.mark.parametrize(
    ("arguments", "labels"),
    [
        (["--role", "server"], {"[rank 0 scheduler + server 0]"}),
        (["--role", "server 0"], {"[rank 0 scheduler + server 0]"}),
        (["--role", "worker"], {"[rank 2 worker 0]"}),
        (["--role", "launcher"], {"[launcher]"}),
        (["--rank", "2", "--rank", "0"], {"[rank 0 scheduler + server 0]", "[rank 2 worker 0]"}),
        (["--attempt", "0"], {"[rank 0]", "[rank 2]", "[launcher]"}),
    ],
)
def test_logs_of_some_ranks(tmp_path: Path, arguments: list[str], labels: set[str]) -> None:
    run = made(tmp_path, "job")
    lines = output(logs, str(run.path), *arguments)
    assert {line[: line.index("]") + 1] for line in lines} == labels


def test_logs_that_do_not_exist_are_refused_by_name(tmp_path: Path) -> None:
    run = made(tmp_path, "job")
    expected = "no such log; it has those of the ranks 0 (scheduler + server 0), 2 (worker 0)"
    assert expected in error(logs, str(run.path), "--role", "server 1")
    assert expected in error(logs, str(run.path), "--rank", "7")
    assert "has no attempt 3; it has: 0, 1" in error(logs, str(run.path), "--attempt", "3")
    assert "leave one out" in error(logs, str(run.path), "-f", "--attempt", "0")
    empty = RunFolder.create(tmp_path, "empty")
    assert "no attempt has been started" in error(logs, str(empty.path))


def test_control_characters_of_a_log_do_not_reach_the_terminal(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"a\x1b[2Jb\x07\r\n\xff\tc\n")
    assert last_lines(LogFile("x", path), 0)[0] == ["a\ufffd[2Jb\ufffd", "\ufffd\tc"]


def test_a_follower_returns_whole_lines_once(tmp_path: Path) -> None:
    path = tmp_path / "log"
    follower = Follower(LogFile("x", path))
    assert follower.read() == []
    path.write_bytes(b"one\ntw")
    assert follower.read() == ["one"]
    assert follower.read() == []
    with path.open("ab") as file:
        file.write(b"o\n\n" + b"y" * (1 << 17))
    assert follower.read() == ["two", ""]
    # A line without an end is printed once it is longer than 64 KiB.
    assert [len(line) for line in follower.read()] == [1 << 17]
    assert follower.read() == []


def test_last_lines_of_a_file_larger_than_one_read(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("".join(f"{i:099d}\n" for i in range(30_000)))
    lines, offset = last_lines(LogFile("x", path), 2)
    assert [int(line) for line in lines] == [29_998, 29_999]
    assert offset == path.stat().st_size


def test_follow_prints_what_is_added_and_the_next_attempt_until_the_run_ends(
    tmp_path: Path,
) -> None:
    run = made(tmp_path, "job")
    result: list[Any] = []
    seen = threading.Event()

    def follow() -> None:
        arguments = [str(run.path), "-f", "-n", "1", "--role", "worker"]
        result.append(CliRunner().invoke(logs, arguments))
        seen.set()

    thread = threading.Thread(target=follow)
    thread.start()
    with (run.attempt(1) / "rank-2.log").open("a") as file:
        file.write("1.2 line 3\n")
    run.attempt(2).mkdir()
    (run.attempt(2) / "rank-2.log").write_text("2.2 line 0\n")
    status = run.status()
    assert status is not None
    run.write_status(Status(state="done", generation=2, time_s=time.time(), ranks=PLACES))
    lease = Lease(generation=2, host="a", pid=9, time_s=time.time(), released=True)
    replace_json(run.lease_file, lease)
    thread.join(20)
    assert seen.is_set()
    assert result[0].output.splitlines()[-1] == "[rank 2 worker 0] 2.2 line 0"


def test_diff_shows_options_and_results_that_differ(tmp_path: Path) -> None:
    first = made(tmp_path, "a", train={"epochs": 5, "lr": 0.1}, table={"bound": None})
    second = made(tmp_path, "b", train={"epochs": 9, "lr": 0.1}, table={"bound": 2})
    lines = output(diff, str(first.path), str(second.path))
    assert lines[0].split() == [first.path.name, second.path.name]
    assert [line.split() for line in lines[1:]] == [
        ["configuration"],
        ["table.bound", "null", "2"],
        ["train.epochs", "5", "9"],
    ]
    summary = {"name": "a", "ended": "x", "loss": 0.123456789, "history": [1], "auc": 0.5}
    replace_json(first.path / "summary.json", summary)
    replace_json(second.path / "summary.json", {**summary, "name": "b", "loss": 0.123456788})
    lines = output(diff, str(first.path), str(second.path))
    # Numbers that would look equal are shown in full.
    assert [line.split() for line in lines[4:]] == [
        ["result"],
        ["loss", "0.123456789", "0.123456788"],
    ]
    found = [json.loads(x) for x in output(diff, str(first.path), str(second.path), "--json")]
    assert found[0] == {
        "section": "configuration",
        "key": "table.bound",
        "first": "null",
        "second": "2",
    }
    assert output(diff, str(first.path), str(first.path)) == ["mpips diff: no difference"]


def test_diff_refuses_a_run_without_configuration(tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path, "a")
    assert "config.json: does not exist; give two run directories" in error(
        diff, str(run.path), str(run.path)
    )


def test_completion_offers_commands_and_names_of_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = {made(tmp_path / "runs", name).path.name for name in ("one", "two")}
    monkeypatch.chdir(tmp_path)
    complete = BashComplete(cli, {}, "mpips", "_MPIPS_COMPLETE").get_completions
    assert {item.value for item in complete(["logs"], "")} == names
    assert [item.value.partition("-")[0] for item in complete(["top"], "tw")] == ["two"]
    assert "checkpoint" in {item.value for item in complete([], "ch")}
    for shell in ("bash", "zsh", "fish"):
        assert "_MPIPS_COMPLETE" in "\n".join(output(cli, "completion", shell))


def test_texts_of_sizes_and_ages() -> None:
    assert [decimal_size(n) for n in (0, 999, 4200, 38e6, 2e9, 5e15)] == [
        "0 B",
        "999 B",
        "4.2 kB",
        "38 MB",
        "2 GB",
        "5e+03 TB",
    ]
    assert [binary_size(n) for n in (512, 1536, 3 << 30)] == ["512 B", "1.5 KiB", "3.0 GiB"]
    assert [age_text(s) for s in (-1, 90, 1800, 7200, 200_000)] == [
        "0 s",
        "90 s",
        "30 min",
        "2.0 h",
        "2 days",
    ]


@pytest.mark.parametrize("follow", [True, False])
@pytest.mark.parametrize("place", ["logs/attempt-1/rank-2.log", "logs/attempt-1", "logs"])
def test_logs_behind_links_are_an_error_and_not_shown(
    place: str, follow: bool, tmp_path: Path
) -> None:
    run, other = made(tmp_path / "runs", "job"), made(tmp_path / "others", "job")
    moved = run.path / place
    moved.rename(tmp_path / "moved")
    moved.symlink_to(other.path / place)
    result = CliRunner().invoke(logs, [str(run.path), *(["-f"] if follow else [])])
    assert isinstance(result.exception, ConfigError)
    assert "cannot be read: is a symbolic link" in str(result.exception)
    assert str(run.logs) in str(result.exception)
    assert "1.2 line" not in result.output


def test_a_pipe_in_place_of_a_log_is_an_error_and_does_not_block(tmp_path: Path) -> None:
    run = made(tmp_path, "job")
    path = run.attempt(1) / "rank-2.log"
    path.unlink()
    os.mkfifo(path)
    assert f"{path}: cannot be read: is no regular file" in error(logs, str(run.path))


def test_what_the_launcher_repeats_of_a_rank_is_printed_once(tmp_path: Path) -> None:
    run = made(tmp_path, "job")
    (run.attempt(1) / "launcher.log").write_text(
        "mpirun begins\n1.0 line 1\n1.0 line 2\n1.0 line 2\nmpirun ends\n"
    )
    assert [line for line in output(logs, str(run.path)) if "launcher" in line] == [
        "[launcher] mpirun begins",
        "[launcher] 1.0 line 2",
        "[launcher] mpirun ends",
    ]
    # Alone it is printed whole.
    assert len(output(logs, str(run.path), "--role", "launcher")) == 5


def test_of_two_copies_the_first_one_counts_whichever_log_has_it() -> None:
    once = LinesOnce()
    rank, launcher = LogFile("rank 0 scheduler", Path("r")), LogFile("launcher", Path("l"))
    assert once.new(launcher, ["a", "b", "b"]) == ["a", "b", "b"]
    assert once.new(rank, ["b", "c", "a", "b", "b"]) == ["c", "b"]
    assert once.new(launcher, ["b", "c", "c"]) == ["c"]
    # Ranks among themselves print each of their lines.
    assert once.new(LogFile("rank 1 worker 0", Path("s")), ["d"]) == ["d"]
    assert once.new(LogFile("rank 2 worker 1", Path("t")), ["d"]) == ["d"]
    # Memory is bounded.
    assert len(once.new(launcher, map(str, range(30_000)))) == 30_000
    assert len(once._open) <= 10_001

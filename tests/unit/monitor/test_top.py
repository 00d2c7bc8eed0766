"""`mpips top` on run directories whose files the tests write."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from top_rig import NOW, ROWS, made

from mpips.cli.top import command
from mpips.errors import ConfigError
from mpips.monitor.runs import find_run
from mpips.monitor.top import look, page
from mpips.rundir.directory import RunFolder, replace_json
from mpips.rundir.files import Finished, LinkLoad, Load, RankRow, Ranks, RowLoad, TableLoad


def test_the_hottest_tables_and_links_are_shown_as_far_as_they_fit(tmp_path: Path) -> None:
    run = made(tmp_path)
    tables = [("rows", 1200.0), ("bias", 3.5), ("idle", 0.0)]
    links = [("node1", "node1", 2e9), ("node2.cluster.example.org", "node1", 3e6)]
    load = Load(
        tables=tuple(TableLoad(name=n, updates=9, updates_per_s=rate) for n, rate in tables),
        links=tuple(
            LinkLoad(
                worker_host=a,
                server_host=b,
                pushed_bytes=1,
                pulled_bytes=1,
                push_bytes_per_s=rate / 2,
                pull_bytes_per_s=rate / 2,
            )
            for a, b, rate in links
        ),
        rows=(
            RowLoad(table="user", key=7, pulls_per_s=900.0, pushes_per_s=300.0, share=0.125),
            RowLoad(table="user", key=-(2**63), pulls_per_s=9.0, share=0.001),
            RowLoad(table="item", key=3, pulls_per_s=20.0, share=0.5),
        ),
    )
    for generation, expected in (
        (
            2,
            [
                "tables    rows 1200/s, bias 3.5/s",
                "rows      item[3] 20/s (50.0%), user[7] 1200/s (12.5%)",
                "links     node1 - node1 2000 MB/s",
            ],
        ),
        (1, []),  # of an earlier attempt
    ):
        replace_json(
            run.ranks_file, Ranks(generation=generation, time_s=NOW, ranks=ROWS, load=load)
        )
        lines = page(look(run, NOW), 60)
        assert [
            line for line in lines if line.startswith(("tables ", "rows ", "links "))
        ] == expected
    replace_json(run.ranks_file, Ranks(generation=2, time_s=NOW, ranks=ROWS, load=load))
    wide = page(look(run, NOW), 100)
    assert "links     node1 - node1 2000 MB/s, node2.cluster.example.org - node1 3 MB/s" in wide
    assert all(len(line) <= 60 for line in page(look(run, NOW), 60))


def test_the_model_of_tables_that_switch_is_shown(tmp_path: Path) -> None:
    run = made(tmp_path)
    for switched, shown in (
        (None, []),
        (False, ["model     BSP, before the switch"]),
        (True, ["model     ASP, after the switch"]),
    ):
        load = Load(switched=switched)
        replace_json(run.ranks_file, Ranks(generation=2, time_s=NOW, ranks=ROWS, load=load))
        lines = page(look(run, NOW), 60)
        assert [line for line in lines if line.startswith("model ")] == shown


def test_backup_workers_that_follow_measurements_are_shown(tmp_path: Path) -> None:
    run = made(tmp_path)
    for backup, shown in ((None, []), (0, ["0 workers, of BSP"]), (1, ["1 worker, of BSP"])):
        load = Load(backup=backup)
        replace_json(run.ranks_file, Ranks(generation=2, time_s=NOW, ranks=ROWS, load=load))
        lines = page(look(run, NOW), 60)
        assert [line[10:] for line in lines if line.startswith("backup ")] == shown


def test_a_running_job_in_80_columns(tmp_path: Path) -> None:
    lines = page(look(made(tmp_path), NOW), 80)
    assert all(len(line) <= 80 for line in lines), lines
    assert "running  attempt 2, 1 failure" in lines[0]
    assert lines[1].startswith(" 42%  epoch 9/20  step 4,321")
    assert lines[1].endswith("1:01 left")
    assert lines[2] == "checkpoint step-000000004000  updates direct"
    heading = lines[4].split()
    assert heading == [
        "rank",
        "role",
        "host",
        "state",
        "clock",
        "rate/s",
        "stale",
        "queue",
        "MB/s",
        "heard",
    ]
    assert lines[6].split()[:4] == ["1", "server", "0", "node1"]
    assert lines[6].split()[-5:] == ["1.2/9", "31", "3.4", "1", "s"]
    # A rank without heartbeats is marked; the rate of a worker is in samples if it reports them.
    assert lines[7].endswith("5000 60 s !")
    assert "1,234   2500" in lines[7]
    assert "~" in lines[7]


def test_paths_of_updates_name_the_workers_where_these_differ(tmp_path: Path) -> None:
    some = page(look(made(tmp_path / "a", paths={"ring": 1, "rendezvous": 4}), NOW), 120)
    assert some[2].endswith("updates rendezvous (4 workers), ring (1 worker)")
    alike = page(look(made(tmp_path / "b", paths={"ring": 4, "rendezvous": 4}), NOW), 120)
    assert alike[2].endswith("updates rendezvous, ring")


@pytest.mark.parametrize("width", [40, 60, 72])
def test_narrow_terminals_keep_what_tells_most(tmp_path: Path, width: int) -> None:
    view = look(made(tmp_path, time_s=NOW - 500), NOW)
    lines = page(view, width)
    # Paths are not broken into lines; all other lines fit.
    assert all(len(line) <= width for line in lines if "/" not in line or "1.2/9" in line), lines
    heading = next(line for line in lines if "role" in line)
    assert {"role", "host", "state", "rate/s", "heard"} <= set(heading.split())


def test_wide_terminals_cut_nothing_and_low_ones_say_what_is_missing(tmp_path: Path) -> None:
    view = look(made(tmp_path), NOW)
    wide = page(view, 160)
    assert "node2.cluster.example.org" in wide[-1]
    low = page(view, 160, height=7)
    assert len(low) == 7
    assert low[-1] == "... and 2 more ranks; --once shows all"


@pytest.mark.parametrize(
    ("change", "state", "alive", "text"),
    [
        ({}, "running", True, ""),
        ({"time_s": NOW - 500}, "dead", False, "pid 77 on head) last renewed its lease 8 min ago"),
        ({"released": True, "state": "failed"}, "failed", False, "continue with: mpips run"),
        ({"released": True, "state": "preempted"}, "preempted", False, "continue with"),
        ({"released": True, "state": "running"}, "ended", False, "continue with"),
        ({"state": "restarting"}, "restarting", True, ""),
    ],
)
def test_what_has_become_of_a_run(
    tmp_path: Path, change: dict[str, Any], state: str, alive: bool, text: str
) -> None:
    view = look(made(tmp_path, **change), NOW)
    assert (view.state, view.alive) == (state, alive)
    assert text in view.note


def test_a_finished_run_is_done_and_says_when(tmp_path: Path) -> None:
    run = made(tmp_path, released=True, state="done")
    replace_json(run.finished_file, Finished(generation=2, time_s=NOW, step=5000))
    view = look(run, NOW)
    assert (view.state, view.alive) == ("done", False)
    assert "finished 2023-11-1" in view.note


def test_a_finished_run_shows_its_summary_in_place_of_the_ranks(tmp_path: Path) -> None:
    run = made(tmp_path, "done", released=True)
    replace_json(run.finished_file, Finished(generation=2, time_s=NOW, step=5000))
    text = "mpips: mlp, 1 epoch, ended\n  accuracy      0.9749  (test)\n"
    (run.path / "summary.txt").write_text(text)
    done = CliRunner().invoke(command, [str(run.path)])
    assert done.exit_code == 0, done.output
    assert text in done.output
    assert "rank role" not in done.output


def test_rates_of_any_size_keep_their_columns(tmp_path: Path) -> None:
    run = made(tmp_path)
    many = (1e12, 3.21e15, 9.9e17, 1e18, 0.0, 1.0)
    rows = [
        RankRow(
            rank=i,
            role=f"worker {i}",
            host="node1",
            pid=i,
            samples_per_s=rate,
            push_bytes_per_s=rate,
        )
        for i, rate in enumerate(many)
    ]
    replace_json(run.ranks_file, Ranks(generation=2, time_s=NOW, ranks=tuple(rows)))
    lines = page(look(run, NOW), 100)
    head = next(i for i, line in enumerate(lines) if line.startswith("rank"))
    assert len({len(line) for line in lines[head:]}) == 1, lines
    rates = [line.split()[6] for line in lines[head + 1 :]]
    assert rates == ["1.0T", "3.2P", "990P", "1.0E", "0", "1"]


def test_a_scheduler_that_writes_nothing_is_reported_while_the_supervisor_runs(
    tmp_path: Path,
) -> None:
    view = look(made(tmp_path, time_s=NOW + 99), NOW + 100)
    assert view.alive
    assert "scheduler has written nothing for 101 s" in view.note


def test_a_run_that_has_not_started_has_no_table(tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path, "job")
    assert page(look(run, NOW), 80) == [f"{run.path.name}  not started"]


def test_ranks_of_an_earlier_attempt_are_not_shown(tmp_path: Path) -> None:
    assert look(made(tmp_path, generation=3), NOW).rows == ()


def test_runs_are_found_by_folder_by_name_and_by_age(tmp_path: Path) -> None:
    old, new = made(tmp_path, name="a"), made(tmp_path, name="b")
    info = old.info()
    replace_json(
        old.info_file, {**{k: getattr(info, k) for k in info.__struct_fields__}, "created_s": 1.0}
    )
    assert find_run(None, tmp_path).path == new.path
    assert find_run("a", tmp_path).path == old.path
    assert find_run(str(old.path), Path("nowhere")).path == old.path
    with pytest.raises(ConfigError, match=f"no run 'c' in .*newest there: {new.path.name}"):
        find_run("c", tmp_path)
    with pytest.raises(ConfigError, match=r"no run in .*nowhere; give a run directory"):
        find_run(None, Path("nowhere"))
    with pytest.raises(ConfigError, match="is no run directory"):
        find_run(str(tmp_path), tmp_path)


def test_json_is_one_line_with_every_figure(tmp_path: Path) -> None:
    run = made(tmp_path, time_s=time.time())
    done = CliRunner().invoke(command, [str(run.path), "--once", "--json"])
    assert done.exit_code == 0, done.output
    found = json.loads(done.output)
    assert done.output.count("\n") == 1
    assert (found["state"], found["alive"]) == ("running", True)
    assert found["ranks"][1]["records_per_s"] == 12345.0
    assert found["events"][0]["cause"] == "killed"


def test_without_a_terminal_it_prints_once_and_ends(tmp_path: Path) -> None:
    run = made(tmp_path, time_s=time.time())
    done = CliRunner().invoke(command, [str(run.path)])
    assert done.exit_code == 0, done.output
    assert "server 0" in done.output


def test_neither_mpi_nor_hdf5_is_loaded(tmp_path: Path) -> None:
    program = (
        "import sys; from mpips.cli.top import command; command([sys.argv[1], '--once'], "
        "standalone_mode=False); print(*(set(sys.modules) & {'mpi4py', 'h5py', 'rich'}), 'end')"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(made(tmp_path).path)],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "end"


def test_a_killed_top_leaves_the_cursor_visible(tmp_path: Path) -> None:
    run = made(tmp_path, time_s=time.time() + 3600)
    master, slave = pty.openpty()
    shown = b""
    with subprocess.Popen(
        [sys.executable, "-m", "mpips", "top", str(run.path)],
        env={**os.environ, "TERM": "xterm", "COLUMNS": "100", "LINES": "30"},
        stdin=slave,
        stdout=slave,
        stderr=slave,
    ) as process:
        os.close(slave)
        while b"server 0" not in shown:
            shown += os.read(master, 4096)
        process.kill()
    os.close(master)
    assert shown.rfind(b"\x1b[?25l") < shown.rfind(b"\x1b[?25h") < shown.find(b"server 0")


def test_a_rank_of_a_large_job_is_marked_when_its_heartbeat_is_overdue(tmp_path: Path) -> None:
    run = made(tmp_path)
    rows = tuple(
        RankRow(rank=r, role=f"worker {r}", host="a", pid=1, heard_s=NOW - age)
        for r, age in enumerate((1.0, 34.0, 37.0))
    )
    table = {"generation": 2, "time_s": NOW, "ranks": rows}
    replace_json(run.ranks_file, Ranks(**table, interval_s=22.0, heartbeat_s=11.0))
    assert [line.endswith("!") for line in page(look(run, NOW), 100)[-3:]] == [False, False, True]
    # Files of earlier versions have no intervals.
    replace_json(run.ranks_file, table)
    assert [line.endswith("!") for line in page(look(run, NOW), 100)[-3:]] == [False, True, True]

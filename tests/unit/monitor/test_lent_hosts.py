"""The hosts of an elastic run in `mpips top`, `mpips ls` and on the page of `mpips web`."""

from __future__ import annotations

import json
import time
from pathlib import Path

from click.testing import CliRunner
from top_rig import NOW, made

from mpips.cli.ls import command as ls
from mpips.monitor.lent_hosts import host_lines
from mpips.monitor.top import as_dict, look, page
from mpips.rundir.directory import replace_json
from mpips.rundir.files import Lease
from mpips.rundir.members import MemberRow, Members, members_file
from mpips.web.run_data import RunData, SentParts

ROWS = (
    MemberRow(source="hosts", hosts=("a",), slots=3, state="in use", since_s=NOW - 60),
    MemberRow(
        source="j",
        hosts=tuple(f"n{i}" for i in range(7)),
        slots=1,
        state="leaving",
        since_s=NOW - 30,
        until_s=NOW + 90,
    ),
    MemberRow(source="k", hosts=("b", "c"), slots=8, state="unreachable", cause="b: no answer"),
    MemberRow(source="l", hosts=("d",), slots=8, state="left", since_s=NOW - 9),
)
LINES = [
    "hosts     a (3 slots) in use, there for 60 s",
    "hosts     n0, n1, n2, n3 and 3 more (1 slot) leaving, there for 30 s, until "
    + time.strftime("%H:%M:%S", time.localtime(NOW + 90)),
    "hosts     b, c (8 slots) unreachable: b: no answer",
]


def test_each_source_of_hosts_has_a_line_until_it_has_left() -> None:
    assert host_lines(ROWS, NOW) == LINES


def test_hosts_are_shown_while_the_run_is_alive(tmp_path: Path) -> None:
    run = made(tmp_path)
    replace_json(members_file(run), Members(n_ranks=3, rows=ROWS))
    replace_json(run.lease_file, Lease(generation=2, host="a", pid=1, time_s=NOW))
    view = look(run, NOW)
    shown = page(view, 120)
    assert [line for line in shown if line.startswith("hosts")] == LINES
    assert [row["source"] for row in as_dict(view)["members"]] == ["hosts", "j", "k", "l"]
    # Narrow terminals cut the lines.
    assert all(len(line) <= 40 for line in page(view, 40))
    # The supervisor is gone: what it wrote last is void.
    assert not [line for line in page(look(run, NOW + 1000), 120) if line.startswith("hosts")]


def test_the_list_of_runs_and_the_page_show_them(tmp_path: Path) -> None:
    run = made(tmp_path)
    replace_json(members_file(run), Members(n_ranks=3, rows=ROWS[2:3]))
    replace_json(run.lease_file, Lease(generation=2, host="a", pid=1, time_s=time.time()))
    shown = CliRunner().invoke(ls, [str(run.path.parent)]).output
    assert f"{run.path.name}: {LINES[2]}" in shown
    listed = CliRunner().invoke(ls, [str(run.path.parent), "--json"]).output
    assert json.loads(listed)["hosts"] == [LINES[2]]
    data = RunData(run.path)
    data.refresh()
    sent = json.loads(data.parts(SentParts()) or b"")
    assert sent["state"]["hosts"] == [LINES[2]]

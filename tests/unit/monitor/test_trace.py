"""Traces in Chrome's format: slices, flows, and clocks of nodes that differ."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from chrome_trace import check_trace, sums
from click.testing import CliRunner
from made_traces import US, K, Part, push, written

from mpips._native import TraceRing
from mpips.cli.trace import command
from mpips.errors import ConfigError
from mpips.monitor import tracing
from mpips.monitor.requesting import RequestError
from mpips.monitor.trace import align, flows_of, read_trace, write_chrome
from mpips.rundir.directory import RunFolder, replace_json
from mpips.rundir.tracing import EVENT, TraceFolder, TraceHead, TraceIndex


def converted(tmp_path: Path, parts: list[Part]) -> list[dict[str, Any]]:
    path = tmp_path / "trace.json"
    with path.open("wb") as file:
        write_chrome(file, read_trace(written(tmp_path, parts)))
    return check_trace(path)


def test_slices_and_flows_are_those_of_the_ranks(tmp_path: Path) -> None:
    worker, server = Part(1, "worker 0", "a"), Part(0, "server 0", "a")
    worker.add(K.pull, 100, 150)
    push(worker, server, 200, 2, 40)
    worker.add(K.wait, 212, 260)
    events = converted(tmp_path, [server, worker])
    slices = {(e["name"], e["pid"], e["tid"]): e for e in events if e["ph"] == "X"}
    assert {key: (e["ts"], e["dur"]) for key, e in slices.items()} == {
        ("pull dense", 1, 0): (0.0, 50.0),
        # The last of two: a dictionary has each name once. The first is between pull and push.
        ("compute", 1, 0): (110.0, 2.0),
        ("push dense", 1, 0): (100.0, 10.0),
        ("wait dense", 1, 0): (112.0, 48.0),
        ("apply dense", 0, 1): (110.0, 20.0),
    }
    assert slices["apply dense", 0, 1]["args"] == {
        "clock": 7,
        "table": "dense",
        "worker": 0,
        "sequence": 40,
    }
    assert sums(events)[1, "compute"] == pytest.approx(52e-6)
    start, end = (next(e for e in events if e["ph"] == ph) for ph in "sf")
    assert (start["pid"], start["ts"], end["pid"], end["ts"]) == (1, 108.0, 0, 110.0)
    names = {(e["pid"], e["args"]["name"]) for e in events if e["name"].endswith("_name")}
    assert names == {
        (0, "server 0 on a"),
        (0, "server 0"),
        (1, "worker 0 on a"),
        (1, "worker 0"),
    }


def test_a_record_that_only_one_side_has_traced_has_no_flow(tmp_path: Path) -> None:
    worker, server, other = (
        Part(1, "worker 0", "a"),
        Part(0, "server 0", "a"),
        Part(2, "server 1", "a"),
    )
    worker.add(K.push, 0, 10)
    worker.add(K.sent, 5, 5, 3, 0)
    server.add(K.apply, 20, 30, 4, 0)
    server.add(K.apply, 40, 50, 3, 1)  # of another worker
    other.add(K.apply, 20, 30, 3, 0)  # the same number in another ring
    assert not any(e["ph"] in "sf" for e in converted(tmp_path, [server, worker, other]))


@pytest.mark.parametrize("error_ns", [-1, 10**11], ids=["no round trip", "a bad round trip"])
@pytest.mark.parametrize("late_us", [-5_000_000, -300, -3, 0, 3, 300, 5_000_000])
def test_no_flow_points_backwards_however_the_clocks_differ(
    tmp_path: Path, late_us: int, error_ns: int
) -> None:
    """Two nodes with both roles. The estimates are all zero; records travel 2 to 9 us."""
    rng = np.random.default_rng(3)
    parts = [
        Part(0, "server 0", "a", error_ns=0),
        Part(1, "worker 0", "a"),
        Part(2, "server 1", "b", late_us * US, error_ns),
        Part(3, "worker 1", "b", late_us * US, error_ns),
    ]
    for i in range(50):
        for w, worker in enumerate((parts[1], parts[3])):
            server = parts[0] if (i + w) % 2 else parts[2]
            push(worker, server, 10_000_000 + 200 * i + 100 * w, int(rng.integers(2, 10)), i)
    ranks = read_trace(written(tmp_path, parts))
    flows = flows_of(ranks)
    assert sum(len(flow.sent_ns) for flow in flows) == 100
    found = align([rank.head for rank in ranks], flows)
    assert found.backwards == 0
    # Both bounds hold, so the error is at most a travel.
    difference = found.offsets_ns[2] - found.offsets_ns[0]
    assert abs(difference - late_us * US) <= (2 if error_ns < 0 else 9) * US
    assert found.offsets_ns[2] == found.offsets_ns[3]
    path = tmp_path / "trace.json"
    with path.open("wb") as file:
        write_chrome(file, ranks)
    check_trace(path)


def test_a_good_estimate_is_left_as_it_is_and_chains_of_nodes_are_aligned(tmp_path: Path) -> None:
    a = Part(0, "worker 0", "a", error_ns=0)
    b = Part(1, "server 0", "b", 40 * US, error_ns=5 * US)
    c = Part(2, "worker 1", "c", -70 * US)
    push(a, b, 1000, 8, 0)
    push(c, b, 2000, 8, 0)
    b.head = TraceHead(
        **{**{f: getattr(b.head, f) for f in b.head.__struct_fields__}, "offset_ns": 38 * US}
    )
    ranks = read_trace(written(tmp_path, [a, b, c]))
    found = align([rank.head for rank in ranks], flows_of(ranks))
    # 38 instead of 40 is within the bounds of 8 us each; worker 1's clock has only the bounds.
    assert found.offsets_ns[1] - found.offsets_ns[0] == 38 * US
    assert abs(found.offsets_ns[2] - found.offsets_ns[0] + 70 * US) <= 10 * US
    assert found.backwards == 0


@pytest.mark.parametrize("late_us", [-400, 400])
def test_flows_of_one_direction_bound_a_clock_from_both_sides(tmp_path: Path, late_us: int) -> None:
    """A worker learns of an application after it has happened, which bounds the server's clock, too."""
    worker = Part(1, "worker 0", "a", error_ns=0)
    server = Part(0, "server 0", "b", late_us * US, error_ns=10**9)
    for i in range(20):
        push(worker, server, 1000 + 200 * i, 4, i)
    ranks = read_trace(written(tmp_path, [server, worker]))
    found = align([rank.head for rank in ranks], flows_of(ranks))
    assert found.backwards == 0
    assert abs(found.offsets_ns[0] - found.offsets_ns[1] - late_us * US) <= 4 * US


def test_clocks_that_drift_are_reported(tmp_path: Path) -> None:
    parts = [
        Part(0, "server 0", "a"),
        Part(1, "worker 0", "a"),
        Part(2, "server 1", "b"),
        Part(3, "worker 1", "b"),
    ]
    # One direction: the flows can be right, though the worker learns of applications too early.
    push(parts[1], parts[2], 1000, 2, 0)
    parts[2].late_ns = parts[3].late_ns = 50 * US
    push(parts[1], parts[2], 2000, 2, 1)
    ranks = read_trace(written(tmp_path / "1", parts))
    assert align([rank.head for rank in ranks], flows_of(ranks)).backwards == 0
    # Both directions: no difference is right for all.
    parts[2].late_ns = parts[3].late_ns = -50 * US
    push(parts[3], parts[0], 3000, 2, 0)
    parts[2].late_ns = parts[3].late_ns = 50 * US
    push(parts[3], parts[0], 4000, 2, 1)
    ranks = read_trace(written(tmp_path / "2", parts))
    assert align([rank.head for rank in ranks], flows_of(ranks)).backwards > 0


def test_the_ring_has_the_last_events_and_counts_all() -> None:
    ring = TraceRing(3)
    for i in range(5):
        ring.add(K.push, i, i + 1, 10 + i, 20 + i, 30 + i, 40 + i)
    found = np.frombuffer(ring.events(), EVENT)
    assert (ring.written, ring.capacity) == (5, 3)
    assert [tuple(e) for e in found.tolist()] == [
        (i, i + 1, 10 + i, 20 + i, 1, 30 + i, 40 + i, 0) for i in (2, 3, 4)
    ]
    ring.clear()
    assert (ring.written, ring.events()) == (0, b"")
    with pytest.raises(ValueError, match="capacity = 0"):
        TraceRing(0)


def test_wrong_files_and_runs_without_traces_are_named(tmp_path: Path) -> None:
    worker = Part(1, "worker 0", "a")
    worker.add(K.push, 0, 10)
    folder = written(tmp_path, [worker])
    path = folder.rank_file(1)
    whole = path.read_bytes()
    path.write_bytes(whole[:-3])
    with pytest.raises(ConfigError, match=r"rank-1.trace: is damaged .*trace the run again"):
        read_trace(folder)
    path.write_bytes(b"\xff" + whole)
    with pytest.raises(ConfigError, match="is damaged"):
        read_trace(folder)
    path.unlink()
    with pytest.raises(ConfigError, match=r"rank-1.trace: cannot be read"):
        read_trace(folder)
    folder.index_file.unlink()
    with pytest.raises(ConfigError, match="not complete"):
        read_trace(folder)
    run = str(folder.path.parents[1])
    done = CliRunner().invoke(command, [run])
    assert isinstance(done.exception, ConfigError)
    assert "has no trace: record one with --steps" in str(done.exception)
    done = CliRunner().invoke(command, [run, "--steps", "3"])
    assert isinstance(done.exception, ConfigError)
    assert "is not running (not started)" in str(done.exception)


def test_the_command_writes_the_newest_trace(tmp_path: Path) -> None:
    worker, server = Part(1, "worker 0", "a"), Part(0, "server 0", "a")
    push(worker, server, 0, 2, 0)
    folder = written(tmp_path, [server, worker])
    output = tmp_path / "out.json"
    done = CliRunner().invoke(command, [str(folder.path.parents[1]), "-o", str(output)])
    assert done.exit_code == 0, done.output
    assert f"{output}: " in done.output
    assert "of 2 ranks, 1 updates" in done.output
    check_trace(output)
    assert sorted(p.name for p in tmp_path.iterdir() if p.is_file()) == ["out.json"]


class Watched:
    """A run that is at work; `acts` are called one by one when the command looks at it."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, *acts: Callable[[], object]):
        self.run = RunFolder.create(folder, "job")
        self.acts = list(acts)
        for name in ("running", "view_of"):
            monkeypatch.setattr(tracing, name, self.look)
        monkeypatch.setattr(tracing, "_LOOK_S", 0.0)

    def look(self, run: RunFolder) -> Any:
        if self.acts:
            self.acts.pop(0)()
        return SimpleNamespace(alive=True)

    def trace(self, *options: str) -> Any:
        output = str(self.run.path / "out.json")
        return CliRunner().invoke(command, [str(self.run.path), "-o", output, *options])

    @property
    def request_file(self) -> Path:
        (folder,) = (self.run.path / "traces").iterdir()
        return folder / "request.json"


def test_a_command_that_is_ended_gives_its_trace_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def end() -> None:
        assert watched.request_file.exists()
        signal.raise_signal(signal.SIGTERM)

    before = signal.signal(signal.SIGTERM, signal.getsignal(signal.SIGTERM))
    watched = Watched(tmp_path, monkeypatch, lambda: None, end)
    assert watched.trace("--steps", "1000000").exit_code == 128 + signal.SIGTERM
    assert not watched.request_file.exists()
    assert signal.getsignal(signal.SIGTERM) == before


def test_parts_that_are_short_or_missing_are_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def complete() -> None:
        folder = TraceFolder(watched.run, watched.request_file.parent.name)
        request = folder.request()
        assert request is not None
        assert (request.steps, request.timeout_s) == (50, 20.0)
        folder.write(Part(1, "worker 0", "a").head, b"")
        index = TraceIndex(
            generation=0, steps=50, time_s=0.0, ranks=(1,), missing=(0, 2), late=True
        )
        replace_json(folder.index_file, index)

    watched = Watched(tmp_path, monkeypatch, lambda: None, complete)
    done = watched.trace("--steps", "50", "--timeout", "20")
    assert done.exit_code == 0, done.output
    assert "note: the time was over before all workers had done 50 steps" in done.output
    assert "note: ranks 0, 2 had not written their parts" in done.output


def test_a_request_that_the_scheduler_removes_is_an_error_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    watched = Watched(
        tmp_path, monkeypatch, lambda: None, lambda: None, lambda: watched.request_file.unlink()
    )
    done = watched.trace("--steps", "5", "--timeout", "inf")
    assert isinstance(done.exception, RequestError)
    assert "no rank has written a trace of 5 steps" in str(done.exception)

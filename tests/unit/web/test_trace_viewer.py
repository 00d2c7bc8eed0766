"""Traces in Chrome's own viewer: it understands each slice and each flow."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from browser import Browser
from chrome_trace import check_trace
from made_traces import US, K, Part, push, written
from trace_viewer import check_viewed, missing

from mpips.monitor.trace import read_trace, write_chrome

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing() or "is there")


def made(folder: Path) -> Path:
    """A trace of two nodes, whose clocks differ by 0.3 ms, with pushes of both workers to both servers."""
    parts = [
        Part(0, "server 0", "a", error_ns=0),
        Part(1, "worker 0", "a"),
        Part(2, "server 1", "b", 300 * US),
        Part(3, "worker 1", "b", 300 * US),
    ]
    for i in range(40):
        for w, worker in enumerate((parts[1], parts[3])):
            at = 10_000_000 + 200 * i + 100 * w
            push(worker, parts[2 * ((i + w) % 2)], at, 3, i)
            worker.add(K.wait, at + 20, at + 60)
    path = folder / "trace.json"
    with path.open("wb") as file:
        write_chrome(file, read_trace(written(folder, parts)))
    return path


def test_the_viewer_understands_all_slices_and_flows(window: Browser, tmp_path: Path) -> None:
    path = made(tmp_path)
    events = check_trace(path)
    assert sum(e["ph"] == "s" for e in events) == 80
    check_viewed(window, tmp_path, path, events)


@pytest.mark.parametrize("damage", ["flow", "slice", "name"])
def test_what_the_viewer_does_not_find_is_an_error(
    window: Browser, tmp_path: Path, damage: str
) -> None:
    path = made(tmp_path)
    events = check_trace(path)
    left = json.loads(path.read_text())
    kind = {"flow": "f", "slice": "X", "name": "M"}[damage]
    left["traceEvents"].remove(next(e for e in left["traceEvents"] if e["ph"] == kind))
    path.write_text(json.dumps(left))
    with pytest.raises((AssertionError, KeyError)):
        check_viewed(window, tmp_path, path, events)

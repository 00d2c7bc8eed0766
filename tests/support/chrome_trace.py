"""Checks of a trace against the documented format of Chrome's trace viewer ("Trace Event Format").

Chrome's own viewer is the better judge where it is there (trace_viewer.py). Perfetto's package on PyPI has
no trace processor: it fetches the program at the first use, which test machines cannot.
"""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

Event = dict[str, Any]
_NS = 1e-3  # us; times are whole ns


def check_trace(path: Path) -> list[Event]:
    """Check a file and return its events."""
    found = json.loads(path.read_text())
    assert set(found) == {"displayTimeUnit", "traceEvents"}
    assert found["displayTimeUnit"] in ("ms", "ns")
    events: list[Event] = found["traceEvents"]
    for event in events:
        assert event["ph"] in ("M", "X", "s", "f"), event
        assert isinstance(event["pid"], int)
        assert isinstance(event["name"], str)
        assert event["name"]
        if event["ph"] == "M":
            assert event["name"] in ("process_name", "process_sort_index", "thread_name")
            continue
        assert isinstance(event["tid"], int)
        assert event["ts"] >= 0
        if event["ph"] == "X":
            assert event["dur"] >= 0
    tracks = tracks_of(events)
    for slices in tracks.values():
        check_nesting(slices)
    check_flows(events, tracks)
    named = {event["pid"] for event in events if event["name"] == "process_name"}
    assert {event["pid"] for event in events} == named
    return events


def tracks_of(events: list[Event]) -> dict[tuple[int, int], list[Event]]:
    """Slices by process and thread, those that begin first at the begin, longer ones before shorter ones."""
    tracks: dict[tuple[int, int], list[Event]] = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            tracks[event["pid"], event["tid"]].append(event)
    for slices in tracks.values():
        slices.sort(key=lambda e: (e["ts"], -e["dur"]))
    return tracks


def check_nesting(slices: list[Event]) -> None:
    """A slice of a thread lies within another one or beside it."""
    open_ends: list[float] = []
    for event in slices:
        while open_ends and open_ends[-1] <= event["ts"] + _NS / 2:
            open_ends.pop()
        end = event["ts"] + event["dur"]
        assert not open_ends or end <= open_ends[-1] + _NS / 2, event
        open_ends.append(end)


def check_flows(events: list[Event], tracks: dict[tuple[int, int], list[Event]]) -> None:
    """Each flow has a begin and an end, in this order, both within a slice."""
    starts = {event["id"]: event for event in events if event["ph"] == "s"}
    ends = {event["id"]: event for event in events if event["ph"] == "f"}
    assert set(starts) == set(ends)
    assert len(starts) == sum(event["ph"] == "s" for event in events)
    for number, start in starts.items():
        end = ends[number]
        assert end["bp"] == "e"
        assert (start["cat"], start["name"]) == (end["cat"], end["name"])
        assert start["ts"] <= end["ts"], (start, end)
        for event, kinds in ((start, {"push"}), (end, {"apply"})):
            around = [
                s
                for s in tracks[event["pid"], event["tid"]]
                if s["ts"] <= event["ts"] + _NS / 2 and event["ts"] <= s["ts"] + s["dur"] + _NS / 2
            ]
            assert kinds & {s["cat"] for s in around}, (event, around)


def sums(events: list[Event]) -> dict[tuple[int, str], float]:
    """Seconds by process and kind of slice."""
    found: dict[tuple[int, str], float] = defaultdict(float)
    for event in events:
        if event["ph"] == "X":
            found[event["pid"], event["cat"]] += event["dur"] / 1e6
    return found

"""Chrome's own trace viewer (catapult) as a judge of traces: it imports a file, and tells what it understood.

Chromium has it at chrome://tracing; Debian's build of Chromium lacks it. The package torch-tb-profiler has
the same viewer as one page. Its user interface needs parts of HTML that browsers no longer have, so only its
model and its importers are loaded here. (Perfetto's trace processor is fetched at its first use, which test
machines cannot.)
"""

from __future__ import annotations

import re
from collections import Counter
from importlib.util import find_spec
from pathlib import Path

import browser
from browser import Browser
from chrome_trace import Event

_PAGE = "static/trace_viewer_full.html"
_BEGIN = "'use strict';const global=this.window"  # of its first part; before it stands a library for elements
# In place of that library: any name, any call of it, and any result of that are nothing.
_NOTHING = """
const nothing = () => new Proxy(function () {}, {
  get: (of, name) => name === 'prototype' ? {} : name === Symbol.toPrimitive ? () => '' : nothing(),
  apply: () => nothing(),
});
window.Polymer = nothing();
"""
_IMPORT = """
const model = new tr.Model();
new tr.importer.Import(model).importTraces([arguments[0]]);
const slices = [];
for (const process of Object.values(model.processes))
  for (const thread of Object.values(process.threads))
    for (const slice of thread.sliceGroup.slices)
      slices.push([
        process.pid, process.name, thread.name, slice.title, slice.category, slice.start, slice.duration,
      ]);
const side = (slice) => slice ? [slice.parentContainer.parent.pid, slice.category] : null;
const flows = model.flowEvents.map((f) => [f.duration, side(f.startSlice), side(f.endSlice)]);
return {slices, flows, warnings: model.importWarnings.map((w) => w.message)};
"""


def missing() -> str:
    """Return why there is no viewer, "" if there is one."""
    if browser.MISSING:
        return browser.MISSING
    if find_spec("torch_tb_profiler") is None:
        return "torch-tb-profiler is not installed"
    return ""


def _viewer(folder: Path) -> Path:
    """Write the viewer's model and importers as a page. Its parts that need missing libraries fail alone."""
    spec = find_spec("torch_tb_profiler")
    assert spec is not None
    assert spec.submodule_search_locations is not None
    whole = (Path(spec.submodule_search_locations[0]) / _PAGE).read_text()
    found = re.search(r"<script[^>]*>(.*?)</script>", whole, re.DOTALL)
    assert found is not None
    script = found.group(1)
    parts = script[script.index(_BEGIN) :].split("'use strict';")
    body = "".join(f"<script>'use strict';{part}</script>\n" for part in parts if part)
    path = folder / "viewer.html"
    path.write_text(f"<!DOCTYPE html><meta charset=utf-8><script>{_NOTHING}</script>\n{body}")
    return path


def check_viewed(window: Browser, folder: Path, path: Path, events: list[Event]) -> None:
    """Let the viewer import a file; it must understand all that the file has.

    Args:
        window: A browser.
        folder: Where the viewer's page is written.
        path: The trace.
        events: Its events.
    """
    window.open(_viewer(folder).as_uri())
    seen = window.run(_IMPORT, path.read_text())
    window.messages()  # the parts that fail
    window.open("about:blank")
    assert seen["warnings"] == []
    processes = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    threads = {
        (e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"
    }
    begin = min(e["ts"] for e in events if e["ph"] in "Xsf")
    expected = Counter(
        (
            e["pid"],
            processes[e["pid"]],
            threads[e["pid"], e["tid"]],
            e["name"],
            e["cat"],
            round(e["ts"] - begin),
            round(e["dur"]),
        )
        for e in events
        if e["ph"] == "X"
    )
    # The viewer counts in ms.
    found = Counter((*s[:5], round(1000 * s[5]), round(1000 * s[6])) for s in seen["slices"])
    assert sum(found.values()) == sum(expected.values()) > 0
    assert {key[:5] for key in found} == {key[:5] for key in expected}
    for part in (expected - found, found - expected):
        # Times that are rounded to the other side, of a few.
        assert sum(part.values()) <= 0.05 * len(seen["slices"])
    # Each flow joins a push and its application, and none points backwards.
    ends = {e["id"]: e for e in events if e["ph"] == "f"}
    joined = Counter(
        ((e["pid"], "push"), (ends[e["id"]]["pid"], "apply")) for e in events if e["ph"] == "s"
    )
    assert all(start is not None and end is not None for _, start, end in seen["flows"])
    assert Counter((tuple(start), tuple(end)) for _, start, end in seen["flows"]) == joined
    assert all(duration >= 0 for duration, *_ in seen["flows"])

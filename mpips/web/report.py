"""`mpips report`: the page and the data of runs in one file that needs no server.

Everything is embedded: styles and scripts as they are, data as JSON in which every "<" is an escape, so no
text of a run can end the element or begin another. The Content-Security-Policy in the file allows only its
own scripts and styles, by their digests, and no connection at all.
"""

from __future__ import annotations

import base64
import hashlib
import time
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from mpips.web.files import SCRIPTS, STYLES, page_file
from mpips.web.log_text import log_tail, logs_of
from mpips.web.run_data import RunData, SentParts

_LOG_BYTES = 32 << 10  # bytes from the end of each log that are embedded
_MOST_LOG_BYTES = 4 << 20  # bytes of all logs of a run


def report(
    runs: Sequence[RunData], now: float | None = None, sweep: Mapping[str, Any] | None = None
) -> str:
    """Return the page of these runs as one HTML file. Blocks until all files of the runs are read.

    Args:
        runs: The runs, whose files are read here.
        now: Unix time; None: the current time.
        sweep: Trials of a sweep, as of `SweepData.read`, of which all are listed; None: no sweep.

    Raises:
        ConfigError: A run cannot be read.
    """
    data: dict[str, Any] = {"made_s": time.time() if now is None else now, "runs": [], "logs": {}}
    data["sweep"] = sweep
    for run in runs:
        run.read_all(now)
        found = run.parts(SentParts())
        assert found is not None
        data["runs"].append(msgspec.Raw(found))
        data["logs"][run.name] = _logs(run)
    return _fill(msgspec.json.encode(data).decode())


def _logs(run: RunData) -> dict[str, Any]:
    """Return the logs by attempt, of the newest attempts first while there is room."""
    found: dict[str, Any] = {}
    left = _MOST_LOG_BYTES
    for attempt in sorted(run.attempts, reverse=True):
        logs = []
        for row in logs_of(run.run, attempt):
            most = min(_LOG_BYTES, left)
            tail = log_tail(run.run, attempt, row["rank"], most) if most > 0 else None
            if tail is not None:
                left -= sum(map(len, tail["lines"]))
                logs.append({**row, **tail})
        found[str(attempt)] = logs
    return found


def _fill(data: str) -> str:
    """Return the page with its parts and the data in place of references to them."""
    scripts = "".join(_part(name) for name in SCRIPTS)
    styles = "".join(_part(name) for name in STYLES)
    policy = (
        f"default-src 'none'; script-src '{_digest(scripts)}'; style-src '{_digest(styles)}'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    embedded = (
        data.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")
    )
    head, rest = _part("page.html").split("<!-- begin of references -->")
    _, body = rest.split("<!-- end of references -->")
    body, end = body.rsplit("</body>", 1)
    parts = (
        f'<script type="application/json" id="data">{embedded}</script>\n<script>{scripts}</script>'
    )
    return (
        f'{head}<meta http-equiv="Content-Security-Policy" content="{policy}">\n<style>{styles}</style>{body}'
        f"{parts}\n</body>{end}"
    )


def _part(name: str) -> str:
    content = page_file(name)
    assert content is not None
    return content


def _digest(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()

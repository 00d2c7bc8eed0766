"""`mpips top`: show the state of a run from the files in its directory.

No process of the run is asked: the scheduler replaces status.json about once a second and ranks.json as often
or, with many ranks, less often; the supervisor replaces the lease every two seconds. Ages are computed with
this machine's clock, so they are wrong by the difference between it and the clocks of the run's hosts.
"""

from __future__ import annotations

import math
import textwrap
from pathlib import Path
from typing import Any

import msgspec

from mpips.monitor.lent_hosts import host_lines
from mpips.monitor.producer_lines import producer_lines
from mpips.monitor.progress import Snapshot, fields, fit, plural
from mpips.monitor.sparkline import BLOCKS, Point, over_time, read_points, sparkline
from mpips.rundir.directory import RunFolder
from mpips.rundir.files import RankRow, Status
from mpips.rundir.reading import read_regular
from mpips.rundir.view import RunView, clock_text, view_of
from mpips.terminal.units import age_text

_LONGEST_STATE = 40  # characters of a rank's activity that are shown
_STEADY_STATE = 26  # characters that its column has if there is room, so that columns do not jump
_LONGEST_CURVE = 60  # characters of a curve
_SHORTEST_CURVE = 10
_LONGEST_SUMMARY = 1 << 20  # bytes of summary.txt
_LEAST_ROWS = 8  # lines of the table that curves leave where the height is limited


class TopView(RunView, frozen=True, kw_only=True):
    """A run at one moment as `mpips top` shows it.

    Attributes:
        path: The run directory.
        summary: Content of summary.txt of a run that is done; "": no such file, or the run is not done.
        points: Lines of metrics.jsonl of a run that is not done.
    """

    path: Path
    summary: str
    points: tuple[Point, ...]


def look(run: RunFolder, now: float | None = None) -> TopView:
    """Read the files of a run.

    Args:
        run: The run.
        now: Unix time; None: the current time.

    Raises:
        ConfigError: A file is damaged or cannot be read.
    """
    view = view_of(run, now)
    is_done = view.state == "done"
    return TopView(
        **msgspec.structs.asdict(view),
        path=run.path,
        summary=summary_of(run) if is_done else "",
        points=() if is_done else tuple(read_points(run.metrics_file)),
    )


def summary_of(run: RunFolder) -> str:
    """Return the content of summary.txt; "" without that file."""
    try:
        return read_regular(run.path / "summary.txt", _LONGEST_SUMMARY).decode(errors="replace")
    except OSError:
        return ""


_PLAIN = (
    "name",
    "path",
    "state",
    "alive",
    "note",
    "status",
    "events",
    "now",
    "quiet_s",
    "summary",
    "load",
    "members",
    "producers",
)


def as_dict(view: TopView) -> dict[str, Any]:
    """Return the view as plain values, for scripts; the lines of metrics.jsonl are left out."""
    values = {name: getattr(view, name) for name in _PLAIN}
    plain: dict[str, Any] = msgspec.to_builtins({**values, "ranks": view.rows}, enc_hook=str)
    return plain


def head(view: TopView, width: int) -> list[str]:
    """Return the lines above the table, each of at most `width` characters."""
    status = view.status
    lines = [f"{view.name}  {view.state}"]
    if status is None:
        return [lines[0][:width]]
    lines[0] += f"  attempt {status.generation}"
    if view.failures:
        lines[0] += f", {plural(view.failures, 'failure')}"
    if status.time_s:
        lines[0] += f"  {clock_text(status.time_s)}"
    lines = textwrap.wrap(lines[0], width, break_on_hyphens=False)
    if view.note:
        lines += textwrap.wrap(view.note, width, break_long_words=False, break_on_hyphens=False)
    p = status.progress
    parts = fields(Snapshot.of(p if view.alive else msgspec.structs.replace(p, left_s=None)))
    lines.append(fit(parts, width))
    below = _below(status)
    if below:
        lines.append(fit(below, width))
    return lines


def _below(status: Status) -> list[tuple[int, str]]:
    """Return the fields of the line below the progress, with weights as in `fit`."""
    parts = []
    if status.checkpoint:
        parts.append((2, f"checkpoint {Path(status.checkpoint).name}"))
    if status.paths:
        # Workers are named where they differ.
        differ = len(set(status.paths.values())) > 1
        names = [
            f"{name} ({plural(n, 'worker')})" if differ else name
            for name, n in sorted(status.paths.items())
        ]
        parts.append((1, f"updates {', '.join(names)}"))
    return parts


def curves(view: TopView, width: int, levels: str = BLOCKS) -> list[str]:
    """Return a line each for loss and rate of all samples over time; none for a run without such values.

    Args:
        view: The run.
        width: Characters of a line.
        levels: Characters of the curve; see `sparkline`.
    """
    lines = []
    progress = [point for point in view.points if point.samples_per_s is not None]
    columns = {
        "loss": ([(p.time_s, p.loss) for p in progress], "{:.4f}"),
        "samples/s": ([(p.time_s, p.samples_per_s or None) for p in progress], "{:,.0f}"),
    }
    for name, (points, form) in columns.items():
        known = [value for _, value in points if value is not None and math.isfinite(value)]
        if len(known) < 2:
            continue
        ends = f"{form.format(known[0])} to {form.format(known[-1])}"
        room = min(width - len(ends) - 12, _LONGEST_CURVE)
        if room >= _SHORTEST_CURVE:
            # With more than one point in an interval of time, a gap means that the run stood still.
            means = over_time(points, min(room, len(known) * 2 // 3 + 1))
            lines.append(f"{name:<10}{sparkline(means, levels)}  {ends}")
    return lines


def loads(view: TopView, width: int) -> list[str]:
    """Return a line each for consistency that changes, busy tables, those with limits, rows and links.

    There is no line without any of its kind. A row is named by table and key, with its pulls and pushes per
    second and its part of all rows of the table. A link is a pair of hosts; its bytes are those of pushes and
    pulls together.

    Args:
        view: The run.
        width: Characters of a line.
    """
    tables = [
        (f"{table.name} {_short(table.updates_per_s)}/s", table.updates_per_s)
        for table in view.load.tables
    ]
    limits = [
        (
            f"{table.name} {_short(table.rows_made)} made, {_short(table.rows_refused)} refused, "
            f"{_short(table.rows_evicted)} evicted, {_short(table.rows_returned)} returned",
            float(table.rows_made + table.rows_refused),
        )
        for table in view.load.tables
    ]
    stored = [
        (
            f"{table.name} {_short(table.rows_cold)} cold, {_short(table.rows_promoted)} promoted, "
            f"{_short(table.rows_demoted)} demoted",
            float(table.rows_cold + table.rows_demoted),
        )
        for table in view.load.tables
    ]
    rows = []
    for row in view.load.rows:
        served = row.pulls_per_s + row.pushes_per_s
        text = f"{row.table}[{row.key}] {_short(served)}/s ({row.share:.1%})"
        rows.append((text, served, row.share))
    rows.sort(key=lambda row: -row[2])
    links = []
    for link in view.load.links:
        moved = link.push_bytes_per_s + link.pull_bytes_per_s
        links.append((f"{link.worker_host} - {link.server_host} {_short(moved / 1e6)} MB/s", moved))
    bound, switched, backup = view.load.bound, view.load.switched, view.load.backup
    now = "ASP, after the switch" if switched else "BSP, before the switch"
    found = (
        "" if switched is None else f"{'model':<10}{now}"[:width],
        "" if bound is None else f"{'bound':<10}{plural(bound, 'clock')}, of SSP('auto')"[:width],
        "" if backup is None else f"{'backup':<10}{plural(backup, 'worker')}, of BSP"[:width],
        _listed("tables", tables, width),
        _listed("limits", limits, width),
        _listed("storage", stored, width),
        _listed("rows", [row[:2] for row in rows], width),
        _listed("links", links, width),
    )
    return [line for line in found if line]


def _listed(name: str, items: list[tuple[str, float]], width: int) -> str:
    """Return a line with the first items that have a rate and fit; "" without such items."""
    line = f"{name:<10}"
    shown = 0
    for text, rate in items:
        more = (", " if shown else "") + text
        if not rate or len(line) + len(more) > width:
            break
        line += more
        shown += 1
    return line if shown else ""


HEADINGS = ("rank", "role", "host", "state", "clock", "rate/s", "stale", "queue", "MB/s", "heard")


def rows(view: TopView) -> list[tuple[str, ...]]:
    """Return the cells of the table: a row for each rank, in the order of HEADINGS.

    The rate of a worker is in samples if it reports them, else in clocks; that of a server is in records.
    """
    return [_cells(row, view.now, view.alive, view.quiet_s) for row in view.rows]


def _cells(row: RankRow, now: float, alive: bool, quiet_s: float) -> tuple[str, ...]:
    is_worker, is_server = "worker" in row.role, "server" in row.role
    rate = row.records_per_s if not is_worker else row.samples_per_s or row.clocks_per_s
    moved = (row.push_bytes_per_s + row.pull_bytes_per_s) / 1e6
    stale = "-"
    if row.staleness is not None:
        stale = f"{row.staleness:.1f}/{row.max_staleness}"
    heard = age_text(now - row.heard_s) if row.heard_s else "never"
    if alive and row.heard_s and now - row.heard_s > quiet_s:
        heard += " !"
    works = is_worker or is_server
    return (
        str(row.rank),
        row.role.replace("scheduler + server", "sched + server"),
        row.host,
        row.state[:_LONGEST_STATE],
        f"{row.clock:,}" if is_worker else "-",
        _short(rate) if works else "-",
        stale if works else "-",
        str(row.queue) if works else "-",
        _short(moved) if works else "-",
        heard,
    )


def _short(number: float) -> str:
    """Return a number with two or three digits: 0.12, 3.4, 560, 12k, 3.4M."""
    for unit, scale in (("E", 1e18), ("P", 1e15), ("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if number >= scale * 10:
            return f"{number / scale:.0f}{unit}"
        if number >= scale and scale > 1e3:
            return f"{number / scale:.1f}{unit}"
    return f"{number:.0f}" if number >= 100 or number == 0 else f"{number:.2g}"


_RIGHT = (0, 4, 5, 6, 7, 8, 9)  # columns aligned to the right
_SHRINKS = (3, 2)  # columns that become narrower, in this order: state, host
_LEAST = 6  # width down to which they do
_GIVEN_UP = (7, 6, 8, 4, 0)  # columns that are then left out, in this order


def columns(cells: list[tuple[str, ...]], width: int) -> dict[int, int]:
    """Return the widths of the columns that are shown: with gaps at most `width`, if that is possible."""
    widths = {i: max(len(row[i]) for row in [HEADINGS, *cells]) for i in range(len(HEADINGS))}

    def excess() -> int:
        return sum(widths.values()) + len(widths) - 1 - width

    for i in _SHRINKS:
        widths[i] = max(min(widths[i], _LEAST), widths[i] - max(excess(), 0))
    for i in _GIVEN_UP:
        if excess() > 0:
            del widths[i]
    widths[3] += min(max(_STEADY_STATE - widths[3], 0), max(-excess(), 0))
    return widths


def table(view: TopView, width: int, height: int = 0) -> list[str]:
    """Return the lines of the table, at most `height` (0: any number); the last one counts omitted ranks."""
    cells = rows(view)
    widths = columns(cells, width)
    lines = [_line(row, widths)[:width] for row in [HEADINGS, *cells]]
    if height and len(lines) > height:
        n_shown = max(height - 1, 1)
        lines = [*lines[:n_shown], f"... and {len(lines) - n_shown} more ranks; --once shows all"]
    return lines


def _line(row: tuple[str, ...], widths: dict[int, int]) -> str:
    """Return one row with its cells cut or padded to the widths of the columns."""
    parts = []
    for i, width in widths.items():
        text = row[i]
        cut = text if len(text) <= width else text[: width - 1] + "~"
        parts.append(f"{cut:>{width}}" if i in _RIGHT else f"{cut:<{width}}")
    return " ".join(parts).rstrip()


def page(view: TopView, width: int, height: int = 0, levels: str = BLOCKS) -> list[str]:
    """Return the whole view on at most `height` lines (0: any number) of `width` characters.

    Args:
        view: The run.
        width: Characters of a line.
        height: Number of lines.
        levels: Characters of the curves; see `sparkline`.
    """
    above = head(view, width)
    if view.summary:
        # A run that is done shows its summary instead of the last state of its ranks.
        return [*above[:1], "", *view.summary.rstrip("\n").split("\n")]
    lines = [*host_lines(view.members, view.now), *producer_lines(view.producers)]
    above += [line[:width] for line in lines]
    drawn = [*curves(view, width, levels), *loads(view, width)]
    if not height or height - len(above) - len(drawn) > min(len(view.rows) + 1, _LEAST_ROWS):
        above += drawn
    if not view.rows:
        return above
    return [*above, "", *table(view, width, max(height - len(above) - 1, 2) if height else 0)]

"""`mpips plot`: the curves of runs as one picture, drawn by matplotlib from what the page gets of them."""

from __future__ import annotations

import io
import json
import math
import re
from collections.abc import Callable, Sequence
from typing import Any

from mpips.errors import CapabilityError, ConfigError
from mpips.monitor.about import (
    VALIDATION,
    EvaluatedStep,
    best_of,
    epochs_at,
    higher_is_better,
    metric_of,
    read_result,
)
from mpips.web.run_data import RunData, SentParts

AXES = {
    "epoch": "epochs",
    "samples": "samples",
    "step": "steps",
    "time": "time since the start, s",
}
CHARTS = ("loss", "metrics", "throughput", "staleness", "workers")
_COLOURS = ("#0072b2", "#d55e00", "#00805d", "#b14f8b", "#7a5c00", "#2a8fd0", "#a66f00", "#555f6e")
_ACTIVITIES = ("compute", "wait", "push", "pull", "snapshot")
_ACTIVITY_COLOURS = ("#0072b2", "#e69f00", "#00966d", "#cc79a7", "#55606f")
_MOST_BARS = 32  # workers that have a bar each; of more the mean of each run is drawn
_MOST_METRICS = 12
_MOST_STALENESS = 64  # the last bin counts this staleness and more
_SIZE = (6.4, 3.6)  # of a chart, inches

Point = tuple[float, float]
Draw = Callable[[Any], None]


class PlottedRun:
    """The numbers of one run that the page also gets, as points."""

    def __init__(self, run: RunData) -> None:
        """Read the run; blocks until all of its files are read.

        Raises:
            ConfigError: It cannot be read within some minutes.
        """
        run.read_all()
        parts = json.loads(run.parts(SentParts()) or b"{}")
        self.name = run.name
        state, curve = parts["state"], parts.get("curve", {"columns": [], "rows": [], "tests": []})
        self.about: dict[str, Any] = state.get("about") or {}
        self._rows = [dict(zip(curve["columns"], row, strict=True)) for row in curve["rows"]]
        self.tests: list[Any] = curve["tests"]
        self.history = parts.get("history", {"marks": [], "rows": []})
        began = [e["time_s"] for e in state.get("events", ()) if e["event"] == "began"]
        self._begin_s: float = began[0] if began else state.get("created_s", 0.0)
        result = read_result(run.run)
        self.staleness = result.staleness if result is not None else ()

    @property
    def has_epochs(self) -> bool:
        """True if the job counts epochs."""
        return bool(self.about.get("epochs"))

    @property
    def counts_samples(self) -> bool:
        """False for a script with losses that counts no samples."""
        return not self._rows or bool(self._rows[-1]["samples"])

    def _place(self, axis: str, row: dict[str, Any]) -> float:
        if axis == "time":
            return float(row["time_s"]) - self._begin_s
        return epochs_at(self.about["epochs"], row["step"]) if axis == "epoch" else float(row[axis])

    def points(self, column: str, axis: str) -> list[Point]:
        """Return the points of a column of the curve; NaN separates attempts.

        Except over time, an earlier attempt has no points at places that a later one repeats.
        """
        found, last = list[Point](), None
        for row in self._rows:
            x = self._place(axis, row)
            if last is not None and row["generation"] != last:
                if axis != "time":
                    found = [point for point in found if point[0] < x]
                found.append((x, math.nan))
            last = row["generation"]
            found.append((x, row[column] if row[column] is not None else math.nan))
        losses = self.about.get("losses") or []
        is_short = sum(not math.isnan(y) for _, y in found) < 2
        # A run that was too short for several rows has the losses of its epochs.
        if column == "loss" and is_short and len(losses) > 1 and axis == "epoch":
            return [(float(epoch), float(loss)) for epoch, loss in losses]
        return found

    def evaluations(self, metric: str, axis: str) -> list[Point]:
        """Return the points of a metric."""
        rows = [{"time_s": t[0], "step": t[1], "samples": t[2]} for t in self.tests]
        values = [test[3].get(metric) for test in self.tests]
        return [
            (self._place(axis, row), float(value))
            for row, value in zip(rows, values, strict=True)
            if value is not None
        ]

    def best(self, metric: str, axis: str) -> tuple[float, float, int] | None:
        """Return place, value and epoch of the best evaluation by a metric; None: it is not known."""
        tests = [test for test in self.tests if test[3].get(metric) is not None]
        evaluations = [EvaluatedStep(test[1], test[5], test[3]) for test in tests]
        own, recorded = metric_of(metric), self.about.get("best") or {}
        higher = higher_is_better(own)
        best = best_of(evaluations, metric, higher)
        # The direction of a metric of the task's own is not known here, but its best checkpoint may be.
        if higher is None and recorded.get("metric") == own:
            best = next((each for each in evaluations if each.epochs == recorded["epoch"]), None)
        if best is None:
            return None
        time_s, step, samples, metrics, *_ = tests[evaluations.index(best)]
        place = self._place(axis, {"time_s": time_s, "step": step, "samples": samples})
        return place, float(metrics[metric]), best.epochs

    def worker_shares(self) -> list[tuple[str, list[float]]]:
        """Return of each worker its shares of time by activity, in the newest attempt with counts."""
        last = self.history["rows"][-1] if self.history["rows"] else {"generation": -1}
        roles: list[str] = []
        for mark in self.history["marks"]:
            if mark["type"] == "head" and mark["generation"] == last["generation"]:
                roles = mark["roles"]
        found = []
        # A damaged line may have fewer values than there are ranks.
        columns = [last.get(name, ()) for name in ("elapsed", *_ACTIVITIES[1:])]
        for role, seconds in zip(roles, zip(*columns, strict=False), strict=False):
            worker = next((p for p in role.split(" + ") if p.split(" ")[0] == "worker"), None)
            elapsed, *times = map(float, seconds)
            if worker is None or not elapsed > 0:
                continue
            parts = [max(part, 0.0) for part in times]
            parts = [max(elapsed - sum(parts), 0.0), *parts]
            found.append((worker, [part / sum(parts) for part in parts]))
        return found


def axis_of(runs: Sequence[PlottedRun], wanted: str) -> str:
    """Return the axis: the wanted one; "": epochs if all runs count them, else samples, else steps.

    Raises:
        ConfigError: A run does not count the wanted epochs.
    """
    without = [run.name for run in runs if not run.has_epochs]
    if wanted == "epoch" and without:
        raise ConfigError(
            f"--x epoch: {without[0]} does not count epochs; use samples, step or time"
        )
    by_count = "samples" if any(run.counts_samples for run in runs) else "step"
    return wanted or (by_count if without else "epoch")


def picture(
    runs: Sequence[RunData],
    ending: str,
    axis: str = "",
    charts: Sequence[str] = (),
    log: bool = False,
) -> bytes:
    """Return a picture of runs as the content of a file. Blocks until the runs are read.

    Args:
        runs: The runs, at least one; each has a colour.
        ending: Ending of the file's name: ".png", ".svg", ".pdf" or another format of matplotlib.
        axis: A key of AXES; "": epochs if all runs count them, else samples.
        charts: Names of CHARTS; (): all that have something to show.
        log: Draw the loss on a logarithmic scale.

    Raises:
        CapabilityError: matplotlib is not installed.
        ConfigError: There is nothing to draw, the ending names no format, or a run cannot be read.
    """
    try:
        from matplotlib.backend_bases import FigureCanvasBase
        from matplotlib.figure import Figure
    except ImportError:
        raise CapabilityError(
            "mpips plot needs matplotlib, which is not installed: pip install matplotlib"
        ) from None
    kind = ending.removeprefix(".").lower()
    if kind not in FigureCanvasBase.get_supported_filetypes():
        raise ConfigError(
            f"the ending {ending!r} of the file names no format of a picture: use .png, .svg or .pdf"
        )
    plotted = [PlottedRun(run) for run in runs]
    axis = axis_of(plotted, axis)
    made = {
        "loss": _loss(plotted, axis, log),
        "metrics": _metrics(plotted, axis),
        "throughput": _throughput(plotted, axis),
        "staleness": _staleness(plotted, always="staleness" in charts),
        "workers": _workers(plotted),
    }
    for name in charts:
        if not made[name]:
            names = ", ".join(run.name for run in plotted)
            raise ConfigError(f"--chart {name}: the run directory of {names} has no such numbers")
    drawn = [draw for name in (charts or CHARTS) for draw in made[name]]
    if not drawn:
        names = ", ".join(run.name for run in plotted)
        raise ConfigError(
            f"{names}: nothing to draw yet; a run has curves from its first second on"
        )
    columns = min(len(drawn), 2)
    lines = math.ceil(len(drawn) / columns)
    figure = Figure(figsize=(_SIZE[0] * columns, _SIZE[1] * lines), layout="constrained")
    for i, draw in enumerate(drawn):
        axes = figure.add_subplot(lines, columns, i + 1)
        draw(axes)
        axes.spines[["top", "right"]].set_visible(False)
    # Names stand once, above all charts.
    keys: dict[str, Any] = {}
    for axes in figure.axes:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            keys.setdefault(label, handle)
    figure.legend(keys.values(), keys.keys(), loc="outside upper left", ncols=3, frameon=False)
    content = io.BytesIO()
    figure.savefig(content, format=kind, dpi=130)
    return content.getvalue()


def _curves(axes: Any, axis: str, title: str) -> None:
    axes.set_title(title, loc="left", fontsize=11)
    axes.set_xlabel(AXES[axis])
    axes.grid(alpha=0.25)
    if axis == "epoch":
        axes.xaxis.get_major_locator().set_params(integer=True)


def _label(text: str) -> str:
    """Return a name as matplotlib shows it: "$" would begin a formula, "_" hide the entry of a legend.

    Characters that XML, and so SVG, cannot have are "?".
    """
    shown = "".join(c if c.isprintable() else "?" for c in text)
    return " " * shown.startswith("_") + shown.replace("$", r"\$")


def _without_time(name: str) -> str:
    """Return the name of a run without the time and the token of `mpips run`, at most 24 characters."""
    name = re.sub(r"-\d{8}-\d{6}-[0-9a-f]{4}$", "", name)
    return name if len(name) <= 24 else name[:23] + "..."


def _title(metric: str) -> str:
    """Return the name of a metric as a title."""
    if metric.startswith(VALIDATION):
        return f"{_title(metric_of(metric))}, validation data"
    if metric in ("auc", "rmse", "mae"):
        return metric.upper()
    return metric.replace("_", " ").strip().capitalize()


def _has_line(points: Sequence[Point]) -> bool:
    return sum(not math.isnan(y) for _, y in points) > 1


def _loss(runs: Sequence[PlottedRun], axis: str, log: bool) -> list[Draw]:
    found = [run.points("loss", axis) for run in runs]
    if not any(any(not math.isnan(y) for _, y in points) for points in found):
        return []

    def draw(axes: Any) -> None:
        for i, (run, points) in enumerate(zip(runs, found, strict=True)):
            marker = None if _has_line(points) else "."
            _line(axes, points, i, label=_label(run.name), marker=marker)
        _curves(axes, axis, "Training loss")
        if log:
            axes.set_yscale("log")

    return [draw]


def _line(axes: Any, points: Sequence[Point], i: int, **more: Any) -> None:
    dashes = ("-", "--", ":", "-.")[i // len(_COLOURS) % 4]
    xs, ys = [x for x, _ in points], [y for _, y in points]
    axes.plot(xs, ys, dashes, color=_COLOURS[i % len(_COLOURS)], linewidth=1.5, **more)


def _metrics(runs: Sequence[PlottedRun], axis: str) -> list[Draw]:
    names = list(dict.fromkeys(name for run in runs for test in run.tests for name in test[3]))

    def drawing(metric: str) -> Draw:
        def draw(axes: Any) -> None:
            for i, run in enumerate(runs):
                points = run.evaluations(metric, axis)
                _line(axes, points, i, label=_label(run.name), marker=".")
                best = run.best(metric, axis)
                if best is not None and len(points) > 1:
                    x, y, epoch = best
                    colour = _COLOURS[i % len(_COLOURS)]
                    axes.plot([x], [y], "o", mfc="white", mec=colour, mew=2, markersize=8)
                    text = f"{y:.4g}, epoch {epoch}"
                    axes.annotate(text, (x, y), (4, 6), textcoords="offset points", fontsize=8)
            _curves(axes, axis, _label(_title(metric)))

        return draw

    return [drawing(name) for name in names[:_MOST_METRICS]]


def _throughput(runs: Sequence[PlottedRun], axis: str) -> list[Draw]:
    found = [run.points("samples_per_s", axis) for run in runs]
    if not any(map(_has_line, found)):
        return []

    def draw(axes: Any) -> None:
        for i, (run, points) in enumerate(zip(runs, found, strict=True)):
            _line(axes, points, i, label=_label(run.name))
        _curves(axes, axis, "Throughput, samples/s of all workers")
        axes.set_ylim(bottom=0)

    return [draw]


def _staleness(runs: Sequence[PlottedRun], always: bool) -> list[Draw]:
    """Return the histogram; [] without one, and unless `always` if no update was stale, as under BSP."""
    shown = [(i, run) for i, run in enumerate(runs) if sum(run.staleness) > 0]
    if not shown or not (always or any(sum(run.staleness[1:]) for _, run in shown)):
        return []
    n_bins = max(len(run.staleness) for _, run in shown)

    def draw(axes: Any) -> None:
        width = 0.8 / len(shown)
        for place, (i, run) in enumerate(shown):
            total = sum(run.staleness)
            shares = [n / total for n in run.staleness]
            at = [value - 0.4 + (place + 0.5) * width for value in range(len(shares))]
            axes.bar(at, shares, width, color=_COLOURS[i % len(_COLOURS)], label=_label(run.name))
        axes.set_title("Staleness of updates", loc="left", fontsize=11)
        axes.set_xlabel(
            "staleness, updates" + (" (64: and more)" if n_bins > _MOST_STALENESS else "")
        )
        axes.set_ylabel("share of updates")
        axes.xaxis.get_major_locator().set_params(integer=True)

    return [draw]


def _workers(runs: Sequence[PlottedRun]) -> list[Draw]:
    """Return the bars of the workers' time, or those of the mean of each run if there are many workers."""
    each = [(run, run.worker_shares()) for run in runs]
    bars: list[tuple[str, list[float]]]
    if sum(len(shares) for _, shares in each) <= _MOST_BARS:
        several = len(runs) > 1
        bars = [
            (f"{_without_time(run.name)}, {w}" if several else w, s)
            for run, shares in each
            for w, s in shares
        ]
    else:
        bars = [
            (
                f"{_without_time(run.name)}, mean",
                [sum(part) / len(shares) for part in zip(*(s for _, s in shares), strict=True)],
            )
            for run, shares in each
            if shares
        ]
    if not bars:
        return []

    def draw(axes: Any) -> None:
        left = [0.0] * len(bars)
        places = range(len(bars))
        for k, name in enumerate(_ACTIVITIES):
            part = [shares[k] for _, shares in bars]
            axes.barh(places, part, left=left, color=_ACTIVITY_COLOURS[k], label=name)
            left = [a + b for a, b in zip(left, part, strict=True)]
        axes.set_yticks(places, [_label(name) for name, _ in bars], fontsize=8)
        axes.invert_yaxis()
        axes.set_xlim(0, 1)
        axes.set_title("Time of workers", loc="left", fontsize=11)
        axes.set_xlabel("share of the time")

    return [draw]

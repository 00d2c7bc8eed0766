"""The text of a summary: a line for each thing that it shows, wrapped."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mpips.monitor.progress import duration, plural
from mpips.terminal.screen import styled
from mpips.terminal.table import text_table
from mpips.terminal.units import decimal_size

_WIDTH = 79  # columns of the text
_MARGIN = 14  # columns of the names
_MOST_LINES = 3  # lines of options; summary.json contains all of them
HASHED = 1 << 60  # features, fewer than hashed keys can be
_MOST_EPOCHS = 12  # epochs whose metrics are shown
METRICS = (
    *("accuracy", "auc", "log_loss", "cross_entropy", "rmse", "r2"),
    *("f1", "pr_auc", "calibration", "mae", "loss"),
)


def metric_label(name: str) -> str:
    """Return the name of a metric for people; "loss" in results is the mean of an epoch of training."""
    return "training loss" if name == "loss" else name.replace("_", " ")


def text(s: Mapping[str, Any], colour: bool = False) -> str:
    """Return the summary as text: about twenty lines of at most 79 characters.

    Args:
        s: The summary, from `mpips.monitor.summary`.
        colour: The title and the names of the lines have styles.
    """
    rows: list[tuple[str, str]] = []
    if s["run_dir"]:
        rows.append(("run", _short_path(s["run_dir"])))
    rows.append(("where", _where(s)))
    libraries = (v if k == "MPI" else f"{k} {v}" for k, v in s["versions"].items())
    rows.append(("versions", ", ".join(libraries)))
    rows += _of_task(s) if "options" in s else [("trained", _steps(s))]
    rows.append(("updates", _updates(s)))
    rows.append(("staleness", staleness_text(s["staleness"])))
    rows.append(("traffic", _traffic(s)))
    if s["run_dir"]:
        rows.append(("restarts", _restarts(s["setbacks"])))
    rows += _checkpoint(s["checkpoint"])
    epochs = f", {plural(s['epochs'], 'epoch')}" if "epochs" in s else ""
    title = f"mpips: {s['task']}{epochs}, ended {s['ended']}"
    lines = [line for name, value in rows for line in _row(name, value, colour)]
    return "\n".join([styled(title, "bold", colour), *lines])


def _of_task(s: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the rows that only a training has, not a script."""
    rows = [
        *([("model", s["model"])] if s.get("model") else []),
        ("options", _options(s["options"])),
        ("data", _data(s)),
        ("trained", _trained(s)),
    ]
    if s.get("stopped"):
        rows.append(("ended early", s["stopped"]))
    rows += _best(s)
    # Summaries of earlier versions have no name of the data.
    held = s.get("evaluated_data") or ("validation" if s.get("validation") else "test")
    for name in metric_names(s["history"]):
        if s.get(name) is not None:
            of = "mean of the last epoch" if name == "loss" else held
            rows.append((metric_label(name), f"{s[name]:.4f}  ({of})"))
    if len(s["history"]) > 1:
        by_epoch = _by_epoch(s["history"])
        rows += [("" if i else "by epoch", line) for i, line in enumerate(by_epoch)]
    if s.get("test_metrics") and held == "validation":
        of = f"after epoch {s['test_epoch']}" + (", the best" if s.get("best") else "")
        rows.append(("test", f"{metrics_text(s['test_metrics'])}  ({of})"))
    if s.get("hint"):
        rows.append(("note", s["hint"]))
    return rows


def _best(s: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the row of the best evaluation: that of the checkpoint, or else of the history."""
    saved = s.get("best")
    best = saved or s.get("best_epoch")
    if not best:
        return []
    shown = f"{metric_label(best['metric'])} {best['value']:.4f} after epoch {best['epoch']}"
    shown += f" of {s['epochs']}" if "epochs" in s else ""
    return [("best", f"{shown}, in {Path(saved['path']).name}" if saved else shown)]


def metric_names(rows: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """Return the names of metrics in the order in which they are shown.

    Args:
        rows: Metrics by name, with the epoch or without. Names of a task's own metrics come first.
    """
    own = dict.fromkeys(name for row in rows for name in row if name not in ("epoch", *METRICS))
    return (*own, *METRICS)


def metrics_text(metrics: Mapping[str, float | None]) -> str:
    """Return metrics with their names, such as "accuracy 0.9749, cross entropy 0.1234"."""
    found = [(name, metrics.get(name)) for name in metric_names([metrics])]
    return ", ".join(f"{metric_label(name)} {v:.4f}" for name, v in found if v is not None)


def _by_epoch(history: Sequence[Mapping[str, float]]) -> list[str]:
    """Return a table of the metrics of all epochs; of many epochs every second one, and so on, to the last.

    If only some of many epochs were evaluated, the table has these.
    """
    rows, of = list(history), "epoch"
    evaluated = [row for row in rows if len(row) > 2]
    if len(rows) > _MOST_EPOCHS and 1 < len(evaluated) < len(rows):
        rows, of = evaluated, "evaluated epoch"
    stride = -(-len(rows) // _MOST_EPOCHS)
    shown = rows[(len(rows) - 1) % stride :: stride]
    names = [
        name for name in metric_names(shown) if any(row.get(name) is not None for row in shown)
    ]
    cells = [("epoch", *map(metric_label, names))]
    for row in shown:
        values = ["-" if row.get(name) is None else f"{row[name]:.4f}" for name in names]
        cells.append((f"{row['epoch']:.0f}", *values))
    n = len(cells[0])
    lines = text_table(
        cells, right=range(n), width=_WIDTH - _MARGIN - 2, optional=range(n - 1, 1, -1)
    )
    if len(shown) < len(history):
        each = f"each {of}" if stride == 1 else f"every {_ordinal(stride)} {of}"
        lines.append(f"({each} of {len(history)})")
    return lines


def _ordinal(n: int) -> str:
    """Return a number from 2 on as a word or with its ending: second, third, 4th, 21st."""
    if n in (2, 3):
        return ("second", "third")[n - 2]
    ending = "th" if n // 10 % 10 == 1 else {1: "st", 2: "nd", 3: "rd"}.get(n % 10, "th")
    return f"{n}{ending}"


def _row(name: str, value: str, colour: bool = False) -> list[str]:
    """Return the lines of one row: its name, and its value wrapped beside it."""
    width = _WIDTH - _MARGIN - 2
    # Lines of a table stay as they are.
    parts = [value] if len(value) <= width else []
    parts = parts or textwrap.wrap(value, width, break_long_words=False, break_on_hyphens=False)
    if name == "options" and len(parts) > _MOST_LINES:
        parts = [*parts[:_MOST_LINES], "..."]
    first = styled(f"{name:<{_MARGIN}}", "faint", colour and bool(name))
    margins = [first, *[" " * _MARGIN] * (len(parts) - 1)]
    return [f"  {margin}{part}" for margin, part in zip(margins, parts, strict=True)]


def _short_path(path: str) -> str:
    """Return a path relative to the working folder if it lies below it."""
    try:
        return str(Path(path).relative_to(Path.cwd()))
    except ValueError:
        return path


def _where(s: Mapping[str, Any]) -> str:
    hosts = s["hosts"]
    named = ", ".join(hosts[:4]) + (f" and {len(hosts) - 4} more" if len(hosts) > 4 else "")
    roles = ", ".join(role if n == 1 else f"{n} {role}s" for role, n in s["roles"].items())
    pairs = s["pairs"]
    one = ", ".join(pairs) if len(pairs) == 1 else ", ".join(f"{k} x {n}" for k, n in pairs.items())
    return f"{named}: {roles}; transport {one}"


def _options(options: Mapping[str, Any]) -> str:
    if not options:
        return "all defaults"
    return " ".join(f"{key}={_value(value)}" for key, value in options.items())


def _value(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))


def _data(s: Mapping[str, Any]) -> str:
    size = f": {plural(s['n_samples'], 'sample')}" if s["n_samples"] else ""
    # Samples that a task reads itself have no features.
    if size and s["n_features"]:
        size += f", {_features(s['n_features'])}"
    bad = {split: f"; {plural(n, 'bad line')} skipped" for split, n in s.get("skipped", {}).items()}
    held = ""
    if part := s.get("validation"):
        held = f"; validation {part if isinstance(part, str) else f'{part:g} of it'}"
        held += bad.get("validation", "")
    test = f"; test {s['test']}{bad.get('test', '')}" if s["test"] else ""
    return f"{s['train']}{size}{bad.get('train', '')}{held}{test}"


def _features(n: int) -> str:
    """Return the number of features as text; hashed keys have no number."""
    return "hashed features" if n >= HASHED else plural(n, "feature")


def _trained(s: Mapping[str, Any]) -> str:
    text = (
        f"step {s['steps']:,}, {plural(s['samples'], 'sample')} in {s['seconds']:,.2f} s: "
        f"{s['samples_per_s']:,.0f} samples/s"
    )
    if s["setbacks"]["restarts"]:
        text += " (last attempt)"
    if s["wall_seconds"] is not None:
        text += f"; {duration(s['wall_seconds'])} since training began"
    return text


def _steps(s: Mapping[str, Any]) -> str:
    return f"step {s['steps']:,}; {duration(s['wall_seconds'])} since training began"


def _updates(s: Mapping[str, Any]) -> str:
    last = " (last attempt)" if s["setbacks"]["restarts"] else ""
    text = f"{s['updates_pushed']:,} pushed{last}, {s['updates_applied']:,} applied"
    kinds = ("rejected", "scaled", "compensated", "late")
    return text + "".join(f", {s[f'updates_{k}']:,} {k}" for k in kinds if s[f"updates_{k}"])


# Ranges [low, high) of staleness in the text.
_BINS = ((0, 1), (1, 2), (2, 4), (4, 8), (8, 16), (16, 64), (64, 65))


def staleness_text(counts: Sequence[int]) -> str:
    """Return a histogram of staleness in one line.

    Args:
        counts: Number of updates by staleness; entry 64 counts a staleness of 64 and more.
    """
    total = sum(counts)
    if total == 0:
        return "no updates"
    mean = sum(n * count for n, count in enumerate(counts)) / total
    shares = []
    for low, high in _BINS:
        n = sum(counts[low:high])
        if n:
            name = f"{low}" if high == low + 1 else f"{low}-{high - 1}"
            name = "64 and more" if low == 64 else name
            shares.append(f"{name}: {_percent(n / total)}")
    return f"mean {mean:.2f}; " + ", ".join(shares)


def _percent(share: float) -> str:
    return f"{share:.0%}" if share >= 0.01 else f"{100 * share:.2g}%"


def _traffic(s: Mapping[str, Any]) -> str:
    return f"{decimal_size(s['pushed_bytes'])} pushed, {decimal_size(s['pulled_bytes'])} pulled"


def _restarts(s: Mapping[str, Any]) -> str:
    if not s["restarts"]:
        return "none"
    cost = f"{s['seconds']:.1f} s without work, {plural(s['steps'], 'step')} repeated"
    return f"{s['restarts']}: {cost}; last cause: {s['causes'][-1]}"


def _checkpoint(saved: Mapping[str, Any] | None) -> list[tuple[str, str]]:
    if saved is None:
        return []
    if "error" in saved:
        return [("checkpoint", f"not written: {saved['error']}")]
    notes = [("", note) for note in saved["notes"]]
    return [("checkpoint", f"{_short_path(saved['path'])}, {decimal_size(saved['bytes'])}"), *notes]

"""Findings as a table, as JSON, as a plot, and as the calibration file of `mpips plan`."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from mpips.bench.measure import Comparison, Findings, spread
from mpips.doctor.description import describe_machine, versions
from mpips.errors import CapabilityError


def calibration_path() -> Path:
    """Return the path of the calibration file: MPIPS_CALIBRATION, or a file in the user's cache."""
    chosen = os.environ.get("MPIPS_CALIBRATION")
    if chosen:
        return Path(chosen)
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "mpips" / "calibration.json"


def as_json(found: Findings) -> dict[str, Any]:
    """Return all findings, the machine and the versions as plain values."""
    return {
        "ratios": {c.name: round(c.ratio, 4) for c in found.comparisons},
        "bars": {c.name: _bar_text(c) for c in found.comparisons if c.bar},
        "missed": [c.name for c in found.comparisons if c.met is False],
        "comparisons": {
            c.name: {
                "what": c.what,
                "unit": c.unit,
                "ours": c.ours,
                "baseline": c.baseline,
                "baseline_name": c.baseline_name,
                "ratios": [round(r, 4) for r in c.ratios],
            }
            for c in found.comparisons
        },
        "figures": {
            f.name: {"what": f.what, "unit": f.unit, "median": f.median, "values": f.values}
            for f in found.figures
        },
        "skipped": found.skipped,
        "notes": found.notes,
        "machine": describe_machine(),
        "versions": versions(),
    }


def as_text(found: Findings) -> str:
    """Return a table: each ratio with its range, its two sides and its bar; then figures and notes."""
    lines = []
    if found.comparisons:
        width = max(len(c.name) for c in found.comparisons)
        base = max(len(c.baseline_name) for c in found.comparisons)
        lines.append(
            f"{'ratio':<{width}}  {'':>8}  {'(least .. most)':>17}  {'mpips':>12}  "
            f"{'baseline':>12}  {'':<{base}}  bar"
        )
        for c in found.comparisons:
            low, high = min(c.ratios), max(c.ratios)
            lines.append(
                f"{c.name:<{width}}  {c.ratio:>8.3f}  {f'({low:.3f} .. {high:.3f})':>17}  "
                f"{_value(c.ours, c.unit):>12}  {_value(c.baseline, c.unit):>12}  "
                f"{c.baseline_name:<{base}}  {_bar_text(c)}{_verdict(c)}".rstrip()
            )
    if found.figures:
        lines += ["", "figures"]
        width = max(len(f.name) for f in found.figures)
        for f in found.figures:
            around = f"  (spread {spread(f.values):.0%})" if len(f.values) > 1 and f.median else ""
            lines.append(f"{f.name:<{width}}  {_number(f.median)} {f.unit}{around}  {f.what}")
    for name, reason in found.skipped.items():
        lines.append(f"not measured: {name}: {reason}")
    lines += [f"note: {note}" for note in found.notes]
    return "\n".join(lines)


def write_calibration(found: Findings, path: Path) -> None:
    """Write the medians that `mpips plan` uses. Values of other suites of the same machine stay in the file.

    Raises:
        CapabilityError: The file cannot be written.
    """
    figures: dict[str, Any] = {}
    try:
        old = json.loads(path.read_text())
        if isinstance(old, dict) and old.get("machine", {}).get("cpu") == describe_machine()["cpu"]:
            figures = old.get("figures", {})
    except (OSError, ValueError):
        pass
    for c in found.comparisons:
        figures[c.name] = {"ours": _median(c.ours), "baseline": _median(c.baseline), "unit": c.unit}
    for f in found.figures:
        figures[f.name] = {"ours": f.median, "unit": f.unit}
    data = {"format": 1, "machine": describe_machine(), "versions": versions(), "figures": figures}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        new = path.with_name(f".{path.name}.{os.getpid()}")
        new.write_text(json.dumps(data, indent=1))
        new.replace(path)
    except OSError as error:
        raise CapabilityError(f"cannot write the calibration file {path}: {error}") from None


def plot(found: Findings, path: Path) -> None:
    """Draw a bar for each ratio, longer is better, with a tick at its bar.

    Raises:
        CapabilityError: matplotlib is not installed, there is no ratio, or the file cannot be written.
    """
    try:
        import matplotlib
    except ImportError:
        raise CapabilityError("--plot needs matplotlib: pip install matplotlib") from None
    matplotlib.use("agg")
    import matplotlib.pyplot as plt

    shown = [c for c in found.comparisons if c.ratio > 0][::-1]
    if not shown:
        raise CapabilityError("--plot: this suite has no ratio to draw; remove --plot")
    figure, axes = plt.subplots(figsize=(9, 1.4 + 0.32 * len(shown)), layout="constrained")
    for y, c in enumerate(shown):
        # Invert ratios of times, so that longer is better for all bars.
        better = [1 / r if _smaller_is_better(c) else r for r in c.ratios]
        middle = 1 / c.ratio if _smaller_is_better(c) else c.ratio
        colour = {True: "#2a7f62", False: "#b3412e", None: "#4a6fa5"}[c.met]
        axes.barh(y, middle, color=colour, height=0.6)
        axes.plot([min(better), max(better)], [y, y], color="black", linewidth=1)
        if c.bar is not None:
            bar = 1 / c.bar[1] if _smaller_is_better(c) else c.bar[1]
            axes.plot([bar, bar], [y - 0.4, y + 0.4], color="black", linewidth=2)
    axes.axvline(1.0, color="grey", linewidth=0.8, linestyle="--")
    axes.set_xscale("log")
    axes.set_yticks(
        range(len(shown)), [f"{c.name}  ({c.baseline_name})" for c in shown], fontsize=8
    )
    axes.set_xlabel(
        "times as good as the baseline (median; line: least to most; black tick: the bar)"
    )
    try:
        figure.savefig(path, dpi=130)
    except (OSError, ValueError) as error:
        raise CapabilityError(f"cannot write the plot {path}: {error}") from None
    finally:
        plt.close(figure)


def _smaller_is_better(c: Comparison) -> bool:
    return c.bar[0] == "<=" if c.bar is not None else c.unit in ("us", "ms", "s", "cores")


def _bar_text(c: Comparison) -> str:
    return f"{c.bar[0]} {c.bar[1]:g}" if c.bar is not None else ""


def _verdict(c: Comparison) -> str:
    return {True: "  met", False: "  MISSED", None: ""}[c.met]


def _median(values: list[float]) -> float:
    return sorted(values)[len(values) // 2]


def _value(values: list[float], unit: str) -> str:
    return f"{_number(_median(values))} {unit}"


def _number(x: float) -> str:
    if x == 0 or 0.001 <= abs(x) < 1e6:
        return f"{x:,.0f}" if abs(x) >= 1000 else f"{x:.3g}"
    return f"{x:.3e}"

"""A plot of what `mpips plan` predicts."""

from __future__ import annotations

from pathlib import Path

from mpips.errors import CapabilityError
from mpips.monitor.progress import plural
from mpips.plan.planning import Plan


def plot(plan: Plan, path: Path) -> None:
    """Draw samples per second over workers, a line for each number of servers, into the file `path`.

    Raises:
        CapabilityError: matplotlib is missing, no time is predicted, or the file cannot be written.
    """
    try:
        import matplotlib
    except ImportError:
        raise CapabilityError("--plot needs matplotlib: pip install matplotlib") from None
    matplotlib.use("agg")
    import matplotlib.pyplot as plt

    if not plan.cells:
        reason = plan.no_time or "no steps were made here"
        raise CapabilityError(f"--plot has nothing to draw, because no time is predicted: {reason}")
    figure, axes = plt.subplots(figsize=(8, 5), layout="constrained")
    for n in sorted({c.servers for c in plan.cells}):
        mine = sorted((c.workers, c.samples_per_s) for c in plan.cells if c.servers == n)
        axes.plot(*zip(*mine, strict=True), marker="o", label=plural(n, "server"))
    a, p = plan.assignment, plan.prediction
    assert p is not None
    axes.plot([len(a.workers)], [plan.samples_per_s], "k*", markersize=14, label="this plan")
    axes.set_xscale("log", base=2)
    axes.set_xlabel("workers")
    axes.set_ylabel("samples per second, predicted")
    axes.set_title(f"{plan.config.task} on {plan.config.data.train_files}")
    axes.grid(alpha=0.3)
    axes.legend()
    try:
        figure.savefig(path, dpi=130)
    except (OSError, ValueError) as error:
        raise CapabilityError(f"the plot {path} cannot be written: {error}") from None
    finally:
        plt.close(figure)

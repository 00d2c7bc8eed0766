"""The suite `train`: time that mpips adds to a training step, idle CPU, and more ranks than cores."""

from __future__ import annotations

from mpips.bench.launching import Options, on_ranks
from mpips.bench.measure import Comparison, Findings

# Ranks: one scheduler, then servers, then workers.
_ALONE = 1 + 1 + 1
_CROWDED = 1 + 2 + 3
_FOUR_WORKERS = 1 + 1 + 4


def run(suite: str, options: Options, nodes: int) -> Findings:
    """Measure all parts on this machine. `nodes` has no effect.

    Raises:
        BenchError: A launch failed.
    """
    found = on_ranks("train_step", 2, options)
    found.add(on_ranks("idle", 4, options))
    found.add(_oversubscribed(options))
    found.add(_ring_scaling(options))
    return found


def alternate(program: str, sizes: tuple[int, int], options: Options) -> tuple[Findings, Findings]:
    """Launch a program alternately on two numbers of ranks.

    Args:
        program: Name of a module of mpips.bench.rank.
        sizes: The two numbers of ranks.
        options: Repetitions and sizes.

    Returns:
        Findings of each number of ranks; a figure has one value per launch, in the order of the launches.
    """
    sides = Findings(), Findings()
    for _ in range(options.repetitions):
        for side, n in zip(sides, sizes, strict=True):
            for figure in on_ranks(program, n, options).figures:
                known = next((f for f in side.figures if f.name == figure.name), None)
                if known is None:
                    side.figures.append(figure)
                else:
                    known.values += figure.values
    return sides


def _oversubscribed(options: Options) -> Findings:
    """Compare six ranks with three.

    Only w6a has a bar: its steps are short, so the way in which ranks wait decides the result.
    """
    many, few = alternate("samples", (_CROWDED, _ALONE), options)
    found = Findings()
    for ours, baseline in zip(many.figures, few.figures, strict=True):
        name = "oversubscribed" if ours.name == "w6a" else f"oversubscribed_{ours.name}"
        found.comparisons.append(
            Comparison(
                name=name,
                what=f"{ours.what} under BSP, 2 servers and 3 workers",
                unit=ours.unit,
                ours=ours.values,
                baseline=baseline.values,
                baseline_name="1 server, 1 worker",
            )
        )
    return found


def _ring_scaling(options: Options) -> Findings:
    four, one = alternate("pushes", (_FOUR_WORKERS, _ALONE), options)
    comparison = Comparison(
        name="ring_scaling",
        what="pushes of 4 KiB (ASP, dense) into one server from 4 workers together",
        unit="pushes/s",
        ours=four.figures[0].values,
        baseline=one.figures[0].values,
        baseline_name="1 worker",
    )
    return Findings(comparisons=[comparison])

"""The suites `scale` (memory, messages and rates with more ranks and more rows) and `soak` (with time)."""

from __future__ import annotations

from mpips.bench import growth
from mpips.bench.launching import Options, on_ranks
from mpips.bench.measure import Figure, Findings

_SIZES = (1, 2, 4, 8, 16, 32)
_QUICK_SIZES = (1, 2, 4)
_BIG_TABLE_RANKS = 1 + 2 + 1
_SOAK_RANKS = 4


def run(suite: str, options: Options, nodes: int) -> Findings:
    """Run one of the two suites on this machine. `nodes` has no effect.

    Raises:
        BenchError: A launch failed.
    """
    if suite == "scale" and options.workers:
        return growth.run(options.workers, options.servers or max(options.workers // 10, 1))
    if suite == "soak":
        return on_ranks("soak", _SOAK_RANKS, options, timeout_s=options.seconds + 120.0)
    found = _crowds(options)
    found.add(on_ranks("big_table", _BIG_TABLE_RANKS, options))
    return found


def _crowds(options: Options) -> Findings:
    """Launch each number of ranks; return figures `ranks_<n>_<name>` and a note with a table of them."""
    sizes = _QUICK_SIZES if options.quick else _SIZES
    columns = {n: on_ranks("crowd", n, options).figures for n in sizes}
    found = Findings(notes=[_table(columns)])
    for n, figures in columns.items():
        for f in figures:
            name = f"ranks_{n}_{f.name}"
            found.figures.append(Figure(name=name, what=f.what, unit=f.unit, values=f.values))
    return found


def _table(columns: dict[int, list[Figure]]) -> str:
    rows = [["per number of ranks", *(str(n) for n in columns)]]
    for i, first in enumerate(next(iter(columns.values()))):
        cells = [_short(figures[i].median, first.unit) for figures in columns.values()]
        rows.append([f"{first.name} ({first.what})", *cells])
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = [
        "  ".join(
            [
                row[0].ljust(widths[0]),
                *(c.rjust(w) for c, w in zip(row[1:], widths[1:], strict=True)),
            ]
        )
        for row in rows
    ]
    return "\n".join(lines)


def _short(value: float, unit: str) -> str:
    if unit == "bytes":
        return f"{value / 2**20:.1f} MiB"
    return f"{value:.4g} {unit}"

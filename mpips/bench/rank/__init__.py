"""Programs that `mpips.bench.launching` starts on the ranks of a benchmark.

Each program is a function `NAME(ranks, options) -> Findings | None`. All ranks call it. It returns findings
on one rank and None on the others.
"""

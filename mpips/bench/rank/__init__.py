"""Programs that `mpips.bench.launching` starts on the ranks of a benchmark.

Each module has `run(ranks, options) -> Findings | None`. All ranks call it. It returns findings on one rank
and None on the others.
"""

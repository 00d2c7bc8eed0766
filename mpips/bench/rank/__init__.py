"""Programs that run on the ranks of a benchmark: `run(ranks, options)` returns findings or None."""

"""Measurements for developers of mpips: other systems, growth with the size of a job, costs of features.

`python -m tests.bench SUITE`, in the root of the repository, runs a suite; with `--record` its figures are
appended to `history.jsonl`, from which docs/benchmarks.md takes its tables of versions. What a user measures
on a machine of their own is in `mpips.bench`, whose parts these suites use. Open `suites.py` first.
"""

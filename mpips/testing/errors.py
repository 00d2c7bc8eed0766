"""The error of benchmarks and of runs that are disturbed on purpose."""

from __future__ import annotations

from mpips.errors import MpipsError


class BenchError(MpipsError):
    """The ranks of a benchmark, or of a run that is disturbed on purpose, failed."""

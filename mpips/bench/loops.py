"""The compiled loops that are baselines of benchmarks. A build with MPIPS_BENCH=OFF has none of them."""

from __future__ import annotations

from mpips.errors import CapabilityError

try:
    from mpips.bench._loops import (
        RobinMap,
        handover,
        stream_copy,
        stream_in_place,
        stream_names,
        stream_sum,
        stream_touch,
        stream_triad,
    )
except ModuleNotFoundError as error:
    raise CapabilityError(
        "this build of mpips has no loops for `mpips bench`: build it again with "
        "`pip install --config-settings=cmake.define.MPIPS_BENCH=ON .`"
    ) from error

__all__ = [
    "RobinMap",
    "handover",
    "stream_copy",
    "stream_in_place",
    "stream_names",
    "stream_sum",
    "stream_touch",
    "stream_triad",
]

"""The compiled loops that benchmarks compare with; a build may leave them out (MPIPS_BENCH=OFF)."""

from __future__ import annotations

from mpips.errors import CapabilityError

try:
    from mpips.bench._loops import (
        RobinMap,
        stream_copy,
        stream_in_place,
        stream_names,
        stream_sum,
        stream_touch,
        stream_triad,
    )
except ModuleNotFoundError as error:
    raise CapabilityError(
        "this mpips was built without the loops that `mpips bench` compares with; build it again with "
        "`pip install --config-settings=cmake.define.MPIPS_BENCH=ON .`"
    ) from error

__all__ = [
    "RobinMap",
    "stream_copy",
    "stream_in_place",
    "stream_names",
    "stream_sum",
    "stream_touch",
    "stream_triad",
]

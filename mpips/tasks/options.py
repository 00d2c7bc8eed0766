"""Types of task options with their accepted ranges, and what optimizers of all tasks share."""

from __future__ import annotations

from typing import Annotated, TypeAlias

import msgspec

Rate: TypeAlias = Annotated[float, msgspec.Meta(gt=0)]
Penalty: TypeAlias = Annotated[float, msgspec.Meta(ge=0)]
Count: TypeAlias = Annotated[int, msgspec.Meta(ge=1)]

# Where Adagrad's sums of squares start: above 0, so that a chance tiny first gradient makes no
# whole step, and below the squares of usual mean gradients, so that others nearly do.
INITIAL_ACCUMULATOR = 1e-4

"""Types of task options with their accepted ranges, and a value that the optimizers of all tasks share."""

from __future__ import annotations

from typing import Annotated, TypeAlias

import msgspec

Rate: TypeAlias = Annotated[float, msgspec.Meta(gt=0)]
Penalty: TypeAlias = Annotated[float, msgspec.Meta(ge=0)]
Count: TypeAlias = Annotated[int, msgspec.Meta(ge=1)]

# Initial value of Adagrad's sums of squares. It is above 0, so that a tiny first gradient does not make a
# step of full length, and below the squares of usual mean gradients, so that these nearly do.
INITIAL_ACCUMULATOR = 1e-4

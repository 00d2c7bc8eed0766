"""Types of task options with their accepted ranges, and a value that the optimizers of all tasks share."""

from __future__ import annotations

from typing import Annotated, TypeAlias

import msgspec

from mpips.errors import ConfigError

Rate: TypeAlias = Annotated[float, msgspec.Meta(gt=0)]
Penalty: TypeAlias = Annotated[float, msgspec.Meta(ge=0)]
Count: TypeAlias = Annotated[int, msgspec.Meta(ge=1)]

RowPrior: TypeAlias = Annotated[
    Penalty,
    msgspec.Meta(
        description="Where the weights of features are rows (words, or sparse data of more than 65,536 "
        "features): precision of their normal prior. The summed loss of all samples has prior / 2 times the "
        "sum of their squares added."
    ),
]

# Initial value of Adagrad's sums of squares. It is above 0, so that a tiny first gradient does not make a
# step of full length, and below the squares of usual mean gradients, so that these nearly do.
INITIAL_ACCUMULATOR = 1e-4


def refuse_idle(options: msgspec.Struct, name: str, has_rows: bool) -> None:
    """Check that an option has its default, because it has no effect on these data.

    Args:
        options: The options of a task.
        name: The option, one of `l2` and `prior`.
        has_rows: The weights of features are rows.

    Raises:
        ConfigError: It has another value.
    """
    value = getattr(options, name)
    if value == getattr(type(options)(), name):
        return
    other, where = ("prior", "rows") if has_rows else ("l2", "a dense table")
    raise ConfigError(
        f"options.{name} = {value:g} has no effect: the weights of features are {where} for these data, with "
        f"the penalty options.{other}; leave it out"
    )

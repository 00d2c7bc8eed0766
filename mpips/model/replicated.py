"""The placement of a dense table: on servers, or replicated on every worker.

A replicated table lies in the memory of every node that has workers. The workers sum the updates of a clock
themselves and apply the optimizer with the servers' kernels, so the values have the bits that the same table
has on servers (native/src/reduction/reduction.hpp). Servers hold a copy, which checkpoints contain. With
"auto" a job decides at its start (mpips/model/auto_placement.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from mpips.errors import ConfigError
from mpips.model.accepted import is_count
from mpips.model.consistency import BSP, Consistency
from mpips.model.optimizer import SGD, Optimizer
from mpips.model.python_rule import PythonRule, replace_values


@dataclass(frozen=True)
class Replicated:
    """Every worker holds the table; see DenseTable.placement.

    Attributes:
        check_every: Number of clocks between two comparisons of the copies on different nodes; 0: none.
    """

    check_every: int = 0

    def __post_init__(self) -> None:
        """Raise ConfigError if `check_every` is not a count."""
        if not is_count(self.check_every) or self.check_every < 0:
            raise ConfigError(
                f"Replicated: check_every = {self.check_every!r}: must be a whole number, 0 or more"
            )
        object.__setattr__(self, "check_every", int(self.check_every))


TablePlacement: TypeAlias = Replicated | Literal["servers", "auto"]


def placement_of(value: object) -> TablePlacement:
    """Return the placement that a user has given, as a value or by its name.

    Raises:
        ConfigError: `value` is not a placement; the message lists those that exist.
    """
    if value == "replicated":
        return Replicated()
    if value == "servers":
        return "servers"
    if value == "auto":
        return "auto"
    if isinstance(value, Replicated):
        return value
    raise ConfigError(
        f"placement = {value!r}: must be 'servers', 'replicated', Replicated() or 'auto'"
    )


def common_placement(value: object, consistency: Consistency) -> TablePlacement:
    """Return the placement of all parameters of a model, as a user has given it.

    Raises:
        ConfigError: `value` is not a placement, or does not fit the consistency model.
    """
    try:
        found = placement_of(value)
        if isinstance(found, Replicated):
            check_replicated(consistency, SGD())
    except ConfigError as error:
        raise ConfigError(f"prepare: {error}") from None
    return found


def check_replicated(consistency: Consistency, optimizer: Optimizer | PythonRule) -> None:
    """Raise ConfigError if a table with this consistency and rule cannot be replicated."""
    if not isinstance(consistency, BSP) or consistency.backup:
        raise ConfigError(
            f"a replicated table needs consistency BSP() without backup workers, not {consistency}: every "
            "worker applies the update of every clock; use placement = 'servers'"
        )
    if isinstance(optimizer, PythonRule) and optimizer.function is not replace_values:
        raise ConfigError(
            f"a replicated table needs an optimizer of mpips, not the Python rule {optimizer.name}, which "
            "runs on servers; use placement = 'servers'"
        )

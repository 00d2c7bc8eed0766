"""A user's own optimizer, written in Python."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mpips.errors import ConfigError

Float32 = NDArray[np.float32]
RuleFunction = Callable[[Float32, Sequence[Float32], Float32, int], object]


@dataclass(frozen=True, repr=False)
class PythonRule:
    """A user's own rule, called by the server for each update with NumPy arrays.

    `function(values, state, gradient, step)` changes `values` and `state` in place, returning None.
    values: float32, (n,). state: `n_state` float32 arrays of shape (n,), zeros at first. gradient:
    float32, (n,). step: updates that this shard has applied, this one included; a clock in which
    nothing was pushed is none. The arrays are valid during the call only. All servers must find the
    same function.

    Under `Scale()` the rule gets the whole gradient, and of what it changed in `values` the server
    takes 1/(1+staleness); `state` stays as the rule left it. That is a smaller learning rate for every
    rule that moves values in proportion to one, but not for a rule that computes them anew from state.

    Attributes:
        function: The rule.
        n_state: float32 state values per parameter.
        name: What reports call it; by default "module:function".
    """

    function: RuleFunction
    n_state: int = 0
    name: str = ""

    def __post_init__(self) -> None:
        """Refuse what cannot be called or counted."""
        if not callable(self.function):
            raise ConfigError(f"a rule must be callable, not {self.function!r}")
        if isinstance(self.n_state, bool) or not isinstance(self.n_state, int) or self.n_state < 0:
            raise ConfigError(f"n_state = {self.n_state!r}: must be a whole number, 0 or more")
        object.__setattr__(self, "name", self.name or self.path)

    def __repr__(self) -> str:
        """Without addresses: the same in every process."""
        return f"PythonRule({self.path!r}, n_state={self.n_state}, name={self.name!r})"

    def __call__(
        self, values: Float32, state: Sequence[Float32], gradient: Float32, step: int
    ) -> None:
        """Apply one gradient.

        Raises:
            TypeError: The function returned something: it made new values, but must change these.
        """
        result: object = self.function(values, state, gradient, step)
        if result is not None:
            raise TypeError(f"{self.name} must change its arrays in place and return None")

    @property
    def state_names(self) -> tuple[str, ...]:
        """What checkpoints call the states."""
        return tuple(f"state_{i}" for i in range(self.n_state))

    @property
    def path(self) -> str:
        """Where the function is defined, "module:function"."""
        named = self.function if hasattr(self.function, "__qualname__") else type(self.function)
        return f"{named.__module__}:{named.__qualname__}"

    def to_config(self) -> dict[str, Any]:
        """The mapping from which `from_config` finds the function again, if it can be imported."""
        return {"name": self.path, "n_state": self.n_state}


def import_function(path: str) -> RuleFunction:
    """The function that "module:function" names; the function part may have dots."""
    module_name, _, function_name = path.partition(":")
    try:
        found: Any = importlib.import_module(module_name)
    except (ImportError, ValueError) as error:
        raise ConfigError(
            f"optimizer {path!r}: module {module_name!r} cannot be imported ({error}); "
            "it must lie on PYTHONPATH of every server"
        ) from error
    for part in function_name.split("."):
        if not hasattr(found, part):
            raise ConfigError(
                f"optimizer {path!r}: module {module_name!r} has no {function_name!r}"
            )
        found = getattr(found, part)
    if not callable(found):
        raise ConfigError(f"optimizer {path!r} is {found!r}, not a function")
    function: RuleFunction = found
    return function

"""PythonRule: an optimizer that a user writes in Python."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from mpips.errors import ConfigError

Float32 = NDArray[np.float32]
RuleFunction = Callable[[Float32, Sequence[Float32], Float32, int], object]


@dataclass(frozen=True, repr=False)
class PythonRule:
    """A rule of the user's own; the server calls it for each update with NumPy arrays.

    `function(values, state, gradient, step)` changes `values` and `state` in place and returns None.
    values: float32, shape (n,). state: `n_state` float32 arrays of shape (n,), initially 0. gradient:
        float32,
    shape (n,). step: number of updates that this shard has applied, including this one; a clock without
    pushes is not an update. The arrays are valid only during the call. All servers must find the same
    function.

    Under `Scale()` the rule receives the unscaled gradient. The server applies 1 / (1 + staleness) of the
    change that the rule made to `values`, and leaves `state` as the rule set it. This equals a smaller
    learning rate for each rule whose change of the values is proportional to a rate, but not for a rule that
    computes the values anew from its state.

    Attributes:
        function: The rule.
        n_state: Number of float32 state values per parameter.
        name: Name in reports; "": "module:function".
    """

    function: RuleFunction
    n_state: int = 0
    name: str = ""

    n_row_state: ClassVar[int] = 0
    row_state_names: ClassVar[tuple[str, ...]] = ()

    def __post_init__(self) -> None:
        """Raise ConfigError if `function` is not callable or `n_state` is not a count."""
        if not callable(self.function):
            raise ConfigError(f"PythonRule: function = {self.function!r}: must be callable")
        if isinstance(self.n_state, bool) or not isinstance(self.n_state, int) or self.n_state < 0:
            raise ConfigError(
                f"PythonRule: n_state = {self.n_state!r}: must be a whole number, 0 or more"
            )
        object.__setattr__(self, "name", self.name or self.path)

    def __repr__(self) -> str:
        """Return a text without memory addresses, which is equal in all processes."""
        return f"PythonRule({self.path!r}, n_state={self.n_state}, name={self.name!r})"

    def __call__(
        self, values: Float32, state: Sequence[Float32], gradient: Float32, step: int
    ) -> None:
        """Apply one gradient.

        Raises:
            TypeError: The function returned a value; it must change its arrays in place.
        """
        result: object = self.function(values, state, gradient, step)
        if result is not None:
            raise TypeError(f"{self.name} must change its arrays in place and return None")

    @property
    def state_names(self) -> tuple[str, ...]:
        """Names of the states in checkpoints."""
        return tuple(f"state_{i}" for i in range(self.n_state))

    @property
    def path(self) -> str:
        """Place where the function is defined: "module:function"."""
        named = self.function if hasattr(self.function, "__qualname__") else type(self.function)
        return f"{named.__module__}:{named.__qualname__}"

    def to_config(self) -> dict[str, Any]:
        """Return the mapping from which `from_config` makes this rule, if the function can be imported."""
        return {"name": self.path, "n_state": self.n_state}


def replace_values(values: Float32, state: Sequence[Float32], gradient: Float32, step: int) -> None:
    """Replace the values by the pushed ones: the rule of a table that holds what workers set."""
    values[:] = gradient


def import_function(path: str) -> RuleFunction:
    """Import the function that "module:function" names; the part after the colon may have dots.

    Raises:
        ConfigError: The module cannot be imported, has no such name, or the name is not that of a function.
    """
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

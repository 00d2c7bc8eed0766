"""Between arrays of JAX and NumPy arrays that handles take.

Values are pulled into a new array each time: on a CPU JAX may use that memory itself, without a copy, so it
must never change again.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from mpips.errors import ConfigError

Float32 = NDArray[np.float32]

DTYPES = ("float32", "bfloat16", "float16")


def refuse_traced(what: str, value: Any) -> None:
    """Raise ConfigError for a value within a function that JAX traces. `what` names the call."""
    if isinstance(value, jax.core.Tracer):
        raise ConfigError(
            f"{what} was called within a function that JAX traces (jit, grad, vmap, ...): pull before it, "
            "pass what was pulled as an argument, and push the gradient that it returns"
        )


def as_gradient(what: str, value: Any, shape: tuple[int, ...]) -> Float32:
    """Return a gradient as float32, C-contiguous. Blocks until JAX has computed it.

    Args:
        what: Names the gradient in errors: "the gradient of 'w'".
        value: float32, bfloat16 or float16, an array of JAX or NumPy.
        shape: Shape that it must have.

    Raises:
        ConfigError: The shape or dtype is another one.
        ValueError: It has NaN or infinity.
    """
    found = np.asarray(value)
    if found.shape != shape:
        raise ConfigError(f"{what} has shape {found.shape}: must be {shape}")
    if found.dtype.name not in DTYPES:
        raise ConfigError(f"{what} is {found.dtype.name}: must be one of {', '.join(DTYPES)}")
    gradient = np.ascontiguousarray(found, dtype=np.float32)
    with np.errstate(over="ignore", invalid="ignore"):
        is_suspect = not np.isfinite(gradient.sum())  # finite values may add up to infinity
    if is_suspect and not (finite := np.isfinite(gradient)).all():
        raise ValueError(
            f"{what} has {np.count_nonzero(~finite)} values that are NaN or infinite; nothing was pushed"
        )
    return gradient.reshape(shape)


def as_jax(values: NDArray[Any], like: Any) -> jax.Array:
    """Return values as an array of JAX, of the dtype and shape of `like` and on its devices."""
    shaped = values.reshape(np.shape(like)).astype(like.dtype, copy=False)
    is_placed = isinstance(like, jax.Array)
    array: jax.Array = jax.device_put(shaped, like.sharding) if is_placed else jnp.asarray(shaped)
    return array

"""Typed access to the C++ vector kernels.

Each kernel exists once per instruction set ("scalar", "avx2", "avx512"); all give the same bits,
and `mpips.kernels.reference` defines them. The widest that the machine supports is used, unless the
environment variable MPIPS_KERNELS or the argument `kernels` names another. Arrays are float32 and
contiguous, taken as they are and never copied (else TypeError); the interpreter lock is released
while a kernel runs. A name that this machine does not have is a `mpips.errors.KernelError`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from mpips import _native
from mpips._native import OptimizerConfig, available_kernels, kernels_name

__all__ = [
    "OptimizerConfig",
    "add",
    "all_finite",
    "all_within",
    "available_kernels",
    "compensate",
    "copy_finite",
    "kernels_name",
    "scale",
    "update",
]

Float32 = NDArray[np.float32]


def update(
    config: OptimizerConfig,
    values: Float32,
    state: Sequence[Float32] | Float32,
    gradient: Float32,
    step: int = 1,
    gradient_scale: float = 1.0,
    rate_scale: float = 1.0,
    kernels: str | None = None,
) -> None:
    """Apply one gradient in place; `values` and `state` change.

    Args:
        config: The rule and its hyperparameters.
        values: float32, any shape of n elements.
        state: `config.n_state` arrays of n float32; slot k starts as `config.initial_state(k)`.
        gradient: float32, n elements.
        step: Counts the updates of these values, this one included, from 1.
        gradient_scale: Multiplied onto the gradient before anything else.
        rate_scale: Multiplied onto the learning rate of this update. In Momentum and Nesterov that is the
            rate with which the gradient, clipped and with its decay, enters the velocity.
        kernels: An instruction set by name; None is the chosen one.

    Raises:
        ValueError: Sizes differ, the state has not the slots of the rule, or `step` is 0.
    """
    if len(state) != config.n_state:
        raise ValueError(f"{config.kind} has {config.n_state} states, not {len(state)}")
    slots = [state[k] if k < config.n_state else None for k in range(2)]
    _native.update(
        config, values, slots[0], slots[1], gradient, step, gradient_scale, rate_scale, kernels
    )


def add(dst: Float32, src: Float32, kernels: str | None = None) -> None:
    """`dst += src`; float32, of the same size."""
    _native.add(dst, src, kernels)


def scale(dst: Float32, factor: float, kernels: str | None = None) -> None:
    """`dst *= factor`, the factor rounded to float32 first."""
    _native.scale(dst, factor, kernels)


def all_finite(src: Float32, kernels: str | None = None) -> bool:
    """True if `src` holds neither NaN nor infinity; stops at the first."""
    return _native.all_finite(src, kernels)


def all_within(src: Float32, bound: float, kernels: str | None = None) -> bool:
    """True if no magnitude in `src` is greater than `bound`, and there is no NaN; stops at the first."""
    return _native.all_within(src, bound, kernels)


def copy_finite(
    dst: Float32, src: Float32, past_caches: bool = False, kernels: str | None = None
) -> bool:
    """`dst = src`; True if `src` holds neither NaN nor infinity. One pass.

    With `past_caches` the stores go around the caches: for arrays larger than these. `dst` must then
    lie at a multiple of 64 bytes.

    Raises:
        ValueError: Sizes differ, or `dst` does not lie so.
    """
    return _native.copy_finite(dst, src, past_caches, kernels)


def compensate(
    out: Float32,
    gradient: Float32,
    values: Float32,
    base: Float32,
    lambda_: float,
    kernels: str | None = None,
) -> None:
    """Correct a late gradient: `out = gradient + lambda_ gradient^2 (values - base)`.

    Delay compensation of Zheng et al., "Asynchronous Stochastic Gradient Descent with Delay
    Compensation", ICML 2017.

    Args:
        out: float32, n elements; may be `gradient` itself.
        gradient: float32, n elements, computed on `base`.
        values: float32, n elements: the values now.
        base: float32, n elements: the values then.
        lambda_: Strength of the correction; 0 is none.
        kernels: An instruction set by name; None is the chosen one.
    """
    _native.compensate(out, gradient, values, base, lambda_, kernels)

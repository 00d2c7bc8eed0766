"""Typed access to the C++ vector kernels.

Each kernel exists once per instruction set ("scalar", "avx2", "avx512"). All give the same bits, which
`mpips.kernels.reference` defines: open that file first. The widest instruction set of the machine is used,
unless the environment variable MPIPS_KERNELS or the argument `kernels` names another one; a name that this
machine does not have raises `mpips.errors.KernelError`. Arrays must be float32 and contiguous, else
TypeError; they are never copied. Kernels release the interpreter lock while they run.
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
    "centred_sums",
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
    past_caches: bool = False,
) -> None:
    """Apply one gradient in place; `values` and `state` change.

    Args:
        config: The rule and its hyperparameters.
        values: float32, any shape of n elements; of row_adagrad one row.
        state: `config.n_state` arrays of n float32, and `config.n_row_state` arrays of one; slot k starts as
            `config.initial_state(k)`.
        gradient: float32, n elements.
        step: Number of this update of the values, from 1.
        gradient_scale: Factor of the gradient, applied before everything else.
        rate_scale: Factor of the learning rate of this update. In Momentum and Nesterov it scales what the
            gradient (clipped, with its decay) adds to the velocity.
        kernels: An instruction set by name; None: the one in use.
        past_caches: Store the values past the caches, if their address is a multiple of 64 bytes. The bits
            are the same.

    Raises:
        ValueError: Sizes differ, `state` does not have the rule's number of slots, or `step` is 0.
        KernelError: This machine does not have the instruction set.
    """
    n_state = config.n_state + config.n_row_state
    if len(state) != n_state:
        raise ValueError(f"{config.kind} needs {n_state} states, not {len(state)}")
    slots = [state[k] if k < n_state else None for k in range(2)]
    _native.update(
        config,
        values,
        slots[0],
        slots[1],
        gradient,
        step,
        gradient_scale,
        rate_scale,
        past_caches,
        kernels,
    )


def add(dst: Float32, src: Float32, kernels: str | None = None) -> None:
    """Compute `dst += src`; both float32, of the same size."""
    _native.add(dst, src, kernels)


def scale(dst: Float32, factor: float, kernels: str | None = None) -> None:
    """Compute `dst *= factor`; the factor is rounded to float32 first."""
    _native.scale(dst, factor, kernels)


def all_finite(src: Float32, kernels: str | None = None) -> bool:
    """Return True if no value of `src` is NaN or infinite; stops at the first that is."""
    return _native.all_finite(src, kernels)


def all_within(src: Float32, bound: float, kernels: str | None = None) -> bool:
    """Return True if all magnitudes are at most `bound` and no value is NaN; stops at the first exception."""
    return _native.all_within(src, bound, kernels)


def centred_sums(src: Float32, centre: float, kernels: str | None = None) -> tuple[float, float]:
    """Return the sum of `src - centre` and the sum of its squares, in one pass.

    Differences are rounded to float32. They and their squares are summed in float32 over at most 16 values,
    and in float64 over these. `centre` is rounded to float32 first.
    """
    return _native.centred_sums(src, centre, kernels)


def copy_finite(
    dst: Float32, src: Float32, past_caches: bool = False, kernels: str | None = None
) -> bool:
    """Copy `src` to `dst` and return True if no value is NaN or infinite, in one pass.

    Args:
        dst: float32, n elements.
        src: float32, n elements.
        past_caches: Use stores that bypass the caches, for arrays larger than the caches. The address of
            `dst` must then be a multiple of 64 bytes.
        kernels: An instruction set by name; None: the one in use.

    Raises:
        ValueError: Sizes differ, or the address of `dst` is wrong.
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

    This is the delay compensation of Zheng et al., "Asynchronous Stochastic Gradient Descent with Delay
    Compensation", ICML 2017.

    Args:
        out: float32, n elements; may be `gradient` itself.
        gradient: float32, n elements, computed on `base`.
        values: float32, n elements: the present values.
        base: float32, n elements: the values when the gradient was computed.
        lambda_: Strength of the correction; 0: none.
        kernels: An instruction set by name; None: the one in use.
    """
    _native.compensate(out, gradient, values, base, lambda_, kernels)

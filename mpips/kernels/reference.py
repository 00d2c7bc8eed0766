"""The definition of every kernel, in NumPy.

The C++ kernels do the same float32 operations in the same order, so results agree bit for bit. No
multiplication and addition are fused: every operation rounds. A change of a rule starts here. Arrays are
float32 of shape (n,) and change in place; `state` has shape (n_state, n), or (1, 1) for row_adagrad.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import msgspec
import numpy as np
from numpy.typing import NDArray

from mpips._native import OptimizerConfig

Float32 = NDArray[np.float32]


class Args(msgspec.Struct, frozen=True):
    """The constants of one update, computed in float64 and rounded to float32 once.

    Attributes:
        gradient_scale: Factor of the gradient; in Momentum and Nesterov it includes the rate.
        clip_value: Gradients are clipped to it; at most the gradient bound of the rule.
        coupled_decay: weight_decay; 0 in AdamW.
        decoupled_decay: lr * weight_decay in AdamW; 0 in all other rules.
        lr: Learning rate times `rate`; in Adam and AdamW divided by 1 - beta1^step.
        rate: Factor of the learning rate by the policy for stale pushes. It is 1 in Momentum and Nesterov,
            where the rate scales what the gradient adds to the velocity.
        momentum: Factor of the velocity.
        decay1: beta1.
        rest1: 1 - beta1.
        decay2: beta2; rho in RMSProp.
        rest2: 1 - decay2.
        root_scale: 1 / sqrt(1 - beta2^step).
        eps: Added to the root.
        inverse_lr: 1 / learning rate (FTRL).
        l1: Weight of the L1 term (FTRL).
        l2: Weight of the L2 term (FTRL).
        beta: Added to the root of n (FTRL).
        share: 1 / every (DelayedNesterov).
        is_due: True if the update changes the momentum (DelayedNesterov).
    """

    gradient_scale: np.float32
    clip_value: np.float32
    coupled_decay: np.float32
    decoupled_decay: np.float32
    lr: np.float32
    rate: np.float32
    momentum: np.float32
    decay1: np.float32
    rest1: np.float32
    decay2: np.float32
    rest2: np.float32
    root_scale: np.float32
    eps: np.float32
    inverse_lr: np.float32
    l1: np.float32
    l2: np.float32
    beta: np.float32
    share: np.float32
    is_due: bool


FLT_MAX = np.finfo(np.float32).max
# Larger gradients are clipped to these bounds. A mean of squares is then finite however it is rounded, and a
# sum of squares, which never decays, is finite for 2^28 of them.
GRADIENT_BOUNDS = {
    "adagrad": 2.0**50,
    "row_adagrad": 2.0**50,
    "ftrl": 2.0**50,
    "rmsprop": 1.8e19,
    "adam": 1.8e19,
    "adamw": 1.8e19,
}
VELOCITY_RULES = ("momentum", "nesterov", "delayed_nesterov")
BIAS_CORRECTED = ("adam", "adamw")


def prepare(
    config: OptimizerConfig, step: int, gradient_scale: float, rate_scale: float = 1.0
) -> Args:
    """Compute the constants of one update; `step` is its number, from 1."""
    gradient_factor, rate = float(np.float32(gradient_scale)), float(np.float32(rate_scale))
    velocity = config.kind in VELOCITY_RULES
    entry = rate if velocity else 1.0
    bound = min(config.clip_value or np.inf, GRADIENT_BOUNDS.get(config.kind, np.inf))
    decay2 = config.rho if config.kind == "rmsprop" else config.beta2
    first, second = 1.0, 1.0
    if config.kind in BIAS_CORRECTED:
        first, second = 1.0 - config.beta1**step, 1.0 - config.beta2**step
    decoupled = config.kind == "adamw"
    return Args(
        gradient_scale=np.float32(gradient_factor * entry),
        clip_value=np.float32(bound * entry),
        coupled_decay=np.float32(0.0 if decoupled else config.weight_decay * entry),
        decoupled_decay=np.float32(config.lr * config.weight_decay * rate if decoupled else 0.0),
        lr=np.float32(config.lr / first * (1.0 if velocity else rate)),
        rate=np.float32(1.0 if velocity else rate),
        momentum=np.float32(config.momentum),
        decay1=np.float32(config.beta1),
        rest1=np.float32(1.0 - config.beta1),
        decay2=np.float32(decay2),
        rest2=np.float32(1.0 - decay2),
        root_scale=np.float32(1.0 / math.sqrt(second)),
        eps=np.float32(config.eps),
        inverse_lr=np.float32(1.0 / config.lr if config.lr > 0 else np.inf),
        l1=np.float32(config.l1),
        l2=np.float32(config.l2),
        beta=np.float32(config.beta),
        share=np.float32(1.0 / config.every if config.every > 0 else 1.0),
        is_due=config.every > 0 and step % int(config.every) == 0,
    )


def effective_gradient(w: Float32, gradient: Float32, a: Args) -> Float32:
    """Return the gradient that every rule gets: scaled, clipped (NaN stays NaN), with coupled decay."""
    g: Float32 = gradient * a.gradient_scale
    g = np.maximum(-a.clip_value, np.minimum(a.clip_value, g))
    g += a.coupled_decay * w
    return g


def sgd(w: Float32, state: Float32, g: Float32, a: Args) -> None:
    """Gradient descent (Robbins and Monro 1951)."""
    w -= a.lr * g


def replace(w: Float32, state: Float32, g: Float32, a: Args) -> None:
    """The pushed value, whatever the value was before."""
    w[:] = a.lr * g


def momentum(w: Float32, state: Float32, g: Float32, a: Args) -> None:
    """Heavy ball (Polyak 1964): the gradient is added to the velocity with factor 1."""
    (m,) = state
    m[:] = a.momentum * m + g
    w -= a.lr * m


def nesterov(w: Float32, state: Float32, g: Float32, a: Args) -> None:
    """Nesterov 1983 in the form of Sutskever et al. 2013; the gradient is that of the stored weights."""
    (m,) = state
    m[:] = a.momentum * m + g
    w -= a.lr * (g + a.momentum * m)


def delayed_nesterov(w: Float32, state: Float32, g: Float32, a: Args) -> None:
    """Delayed Nesterov (Liu et al., arXiv 2401.09135, algorithm 3 with c = 0); `state` is (m, buffer)."""
    m, buffer = state
    part = a.share * g
    buffer += part
    if not a.is_due:
        w -= a.lr * part
        return
    m[:] = a.momentum * m + buffer
    w -= a.lr * (part + a.momentum * m)
    buffer[:] = 0


def adagrad(w: Float32, state: Float32, g: Float32, a: Args) -> None:
    """Adagrad (Duchi, Hazan and Singer, JMLR 2011)."""
    (s,) = state
    s += g * g
    w -= a.lr * g / (np.sqrt(s) + a.eps)


def mean_square(g: Float32) -> np.float32:
    """Return the mean of squares: element i is added to sum i % 8, and these sums in pairs."""
    lanes = np.zeros(8, np.float32)
    for start in range(0, len(g), 8):
        part = g[start : start + 8]
        lanes[: len(part)] += part * part
    even = (lanes[0] + lanes[4]) + (lanes[2] + lanes[6])
    odd = (lanes[1] + lanes[5]) + (lanes[3] + lanes[7])
    return np.float32((even + odd) / np.float32(len(g))) if len(g) else np.float32(0)


def row_adagrad(w: Float32, state: Float32, g: Float32, a: Args) -> None:
    """Row-wise Adagrad (Gupta, Anil and Singer, KDD 2021); the arrays are one row, with one state."""
    (s,) = state
    s += mean_square(g)
    w -= a.lr * g / (np.sqrt(s) + a.eps)


def rmsprop(w: Float32, state: Float32, g: Float32, a: Args) -> None:
    """RMSProp (Tieleman and Hinton 2012, lecture 6.5), with eps outside the root."""
    (s,) = state
    s[:] = a.decay2 * s + a.rest2 * (g * g)
    w -= a.lr * g / (np.sqrt(s) + a.eps)


def adam(w: Float32, state: Float32, g: Float32, a: Args) -> None:
    """Adam (Kingma and Ba, ICLR 2015)."""
    m, v = state
    m[:] = a.decay1 * m + a.rest1 * g
    v[:] = a.decay2 * v + a.rest2 * (g * g)
    w -= a.lr * m / (np.sqrt(v) * a.root_scale + a.eps)


def adamw(w: Float32, state: Float32, g: Float32, a: Args) -> None:
    """AdamW (Loshchilov and Hutter, ICLR 2019): decoupled weight decay, then Adam."""
    w -= a.decoupled_decay * w
    adam(w, state, g, a)


def ftrl(w: Float32, state: Float32, g: Float32, a: Args) -> None:
    """FTRL-Proximal per coordinate (McMahan et al., KDD 2013); `state` is (z, n).

    The paper starts from w = 0. Here a weight may start at any value: at its first gradient, z becomes the
    value whose solution is that weight. A coordinate whose n stays 0 does not change at all. Without l1 the
    update is w -= rate g / curvature, so a stale gradient enters z multiplied by its rate, and n unchanged.
    """
    z, n = state

    # Start where n = 0: solve the proximal formula for z.
    curvature = (a.beta + np.float32(0)) * a.inverse_lr + a.l2
    start = np.where(w == 0, np.float32(0), -(w * curvature) - np.copysign(a.l1, w))
    z_old = np.where(n == 0, start, z)

    # Accumulate.
    n_new = n + g * g
    root = np.sqrt(n_new)
    sigma = (root - np.sqrt(n)) * a.inverse_lr
    z_new = z_old + a.rate * g - sigma * w

    # Solve for the weight, which is exactly 0 where |z| <= l1.
    curvatures = (a.beta + root) * a.inverse_lr + a.l2
    solution = (np.copysign(a.l1, z_new) - z_new) / curvatures
    solution = np.where(np.abs(z_new) <= a.l1, np.float32(0), solution)

    # Leave coordinates unchanged that have had no gradient yet.
    untouched = n_new == 0
    z[:] = np.where(untouched, z, z_new)
    w[:] = np.where(untouched, w, solution)
    n[:] = n_new


RULES: dict[str, Callable[[Float32, Float32, Float32, Args], None]] = {
    "sgd": sgd,
    "momentum": momentum,
    "nesterov": nesterov,
    "delayed_nesterov": delayed_nesterov,
    "adagrad": adagrad,
    "row_adagrad": row_adagrad,
    "rmsprop": rmsprop,
    "adam": adam,
    "adamw": adamw,
    "ftrl": ftrl,
    "replace": replace,
}


def update(
    config: OptimizerConfig,
    values: Float32,
    state: Float32,
    gradient: Float32,
    step: int = 1,
    gradient_scale: float = 1.0,
    rate_scale: float = 1.0,
) -> None:
    """Apply one gradient in place, as `mpips.kernels.update` does."""
    args = prepare(config, step, gradient_scale, rate_scale)
    RULES[config.kind](values, state, effective_gradient(values, gradient, args), args)


def add(dst: Float32, src: Float32) -> None:
    """Compute `dst += src`."""
    dst += src


def scale(dst: Float32, factor: float) -> None:
    """Compute `dst *= factor`; the factor is rounded to float32 first."""
    dst *= np.float32(factor)


def all_finite(src: Float32) -> bool:
    """Return True if no value is NaN or infinite."""
    return bool(np.isfinite(src).all())


def all_within(src: Float32, bound: float) -> bool:
    """Return True if all magnitudes are at most `bound` and no value is NaN."""
    return bool((np.abs(src) <= np.float32(bound)).all())


def centred_sums(src: Float32, centre: float) -> tuple[float, float]:
    """Return the sum of `src - centre` and the sum of its squares.

    32 partial sums, of elements that are equal modulo 32, are taken in float32 over a block of 512 values and
    added up in float64.
    """
    away = src - np.float32(centre)
    whole = len(src) // 512 * 512
    result = []
    for terms, rest in (
        (away, away[whole:].astype(np.float64)),
        (away * away, away[whole:].astype(np.float64) ** 2),
    ):
        partial = np.zeros((whole // 512, 32), np.float32)
        for row in range(16):
            partial += terms[:whole].reshape(-1, 16, 32)[:, row]
        lanes = [0.0] * 32
        for block in partial.astype(np.float64):
            lanes = [lane + value for lane, value in zip(lanes, block.tolist(), strict=True)]
        total = 0.0
        for value in (*lanes, *rest.tolist()):
            total += value
        result.append(total)
    return result[0], result[1]


def copy_finite(dst: Float32, src: Float32) -> bool:
    """Copy `src` to `dst`; return True if no value is NaN or infinite."""
    dst[:] = src
    return all_finite(src)


def compensate(
    out: Float32, gradient: Float32, values: Float32, base: Float32, lambda_: float
) -> None:
    """Correct a late gradient (Zheng et al., ICML 2017); `out` may be `gradient`.

    The gradient is not squared first: its square could be infinite, and infinity times zero is NaN.
    """
    total = gradient + np.float32(lambda_) * (values - base) * gradient * gradient
    out[:] = np.maximum(-np.float32(FLT_MAX), np.minimum(np.float32(FLT_MAX), total))

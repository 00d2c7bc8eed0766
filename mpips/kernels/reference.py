"""The meaning of every kernel, in NumPy.

The C++ kernels do these float32 operations in this order, so results agree bit for bit. A change of
a rule starts here. Nothing is fused: each line rounds after every operation. Arrays are float32 of
shape (n,) and change in place; state is (n_state, n).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mpips._native import OptimizerConfig

Float32 = NDArray[np.float32]


@dataclass(frozen=True)
class Args:
    """What a rule reads, each computed in float64 and rounded once.

    Attributes:
        decoupled_decay: lr * weight_decay, of AdamW only.
        coupled_decay: weight_decay, of all others.
        lr: Learning rate, times `rate`; of Adam and AdamW divided by 1 - beta1^step.
        rate: What the policy for stale pushes multiplies the learning rate with; 1 for Momentum and
            Nesterov, where the gradient bears it on its way into the velocity.
        clip_value: At most the gradient bound of the rule.
        decay1: beta1; rest1 is 1 - beta1.
        decay2: beta2, or rho of RMSProp; rest2 is 1 minus it.
        root_scale: 1 / sqrt(1 - beta2^step).
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


FLT_MAX = np.finfo(np.float32).max
# What a rule takes a larger gradient for. A mean of its squares is finite however it is rounded; a sum of
# squares, which never decays, for 2^28 of them.
GRADIENT_BOUNDS = {
    "adagrad": 2.0**50,
    "ftrl": 2.0**50,
    "rmsprop": 1.8e19,
    "adam": 1.8e19,
    "adamw": 1.8e19,
}
VELOCITY_RULES = ("momentum", "nesterov")


def prepare(
    config: OptimizerConfig, step: int, gradient_scale: float, rate_scale: float = 1.0
) -> Args:
    """Round the hyperparameters of one update; `step` counts from 1."""
    gradient_factor, rate = float(np.float32(gradient_scale)), float(np.float32(rate_scale))
    velocity = config.kind in VELOCITY_RULES
    entry = rate if velocity else 1.0
    bound = min(config.clip_value or np.inf, GRADIENT_BOUNDS.get(config.kind, np.inf))
    decay2 = config.rho if config.kind == "rmsprop" else config.beta2
    first, second = 1.0, 1.0
    if config.uses_step:
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
    )


def effective_gradient(w: Float32, gradient: Float32, a: Args) -> Float32:
    """Scale, clip (NaN stays NaN), then coupled weight decay: what every rule gets."""
    g: Float32 = gradient * a.gradient_scale
    g = np.maximum(-a.clip_value, np.minimum(a.clip_value, g))
    g += a.coupled_decay * w
    return g


def sgd(w: Float32, state: Float32, g: Float32, a: Args) -> None:
    """Gradient descent (Robbins and Monro 1951)."""
    w -= a.lr * g


def momentum(w: Float32, state: Float32, g: Float32, a: Args) -> None:
    """Heavy ball (Polyak 1964): the velocity takes whole gradients."""
    (m,) = state
    m[:] = a.momentum * m + g
    w -= a.lr * m


def nesterov(w: Float32, state: Float32, g: Float32, a: Args) -> None:
    """Nesterov 1983 in the form of Sutskever et al. 2013, evaluated at the weights stored."""
    (m,) = state
    m[:] = a.momentum * m + g
    w -= a.lr * (g + a.momentum * m)


def adagrad(w: Float32, state: Float32, g: Float32, a: Args) -> None:
    """Duchi, Hazan and Singer, JMLR 2011."""
    (s,) = state
    s += g * g
    w -= a.lr * g / (np.sqrt(s) + a.eps)


def rmsprop(w: Float32, state: Float32, g: Float32, a: Args) -> None:
    """Tieleman and Hinton 2012, lecture 6.5; eps outside the root."""
    (s,) = state
    s[:] = a.decay2 * s + a.rest2 * (g * g)
    w -= a.lr * g / (np.sqrt(s) + a.eps)


def adam(w: Float32, state: Float32, g: Float32, a: Args) -> None:
    """Kingma and Ba, ICLR 2015."""
    m, v = state
    m[:] = a.decay1 * m + a.rest1 * g
    v[:] = a.decay2 * v + a.rest2 * (g * g)
    w -= a.lr * m / (np.sqrt(v) * a.root_scale + a.eps)


def adamw(w: Float32, state: Float32, g: Float32, a: Args) -> None:
    """Adam with decoupled weight decay (Loshchilov and Hutter, ICLR 2019), the decay first."""
    w -= a.decoupled_decay * w
    adam(w, state, g, a)


def ftrl(w: Float32, state: Float32, g: Float32, a: Args) -> None:
    """FTRL-Proximal per coordinate (McMahan et al., KDD 2013); state is (z, n).

    The paper starts from w = 0. Here a weight may start anywhere: at its first gradient z becomes
    the one whose solution is that weight. A coordinate with n = 0 is left exactly as it is. Without l1
    this is w -= rate g / curvature, so a stale gradient enters z with its rate and n as it is.
    """
    z, n = state

    # The starting point: solve the proximal formula for z.
    curvature = (a.beta + np.float32(0)) * a.inverse_lr + a.l2
    start = np.where(w == 0, np.float32(0), -(w * curvature) - np.copysign(a.l1, w))
    z_old = np.where(n == 0, start, z)

    # Accumulate.
    n_new = n + g * g
    root = np.sqrt(n_new)
    sigma = (root - np.sqrt(n)) * a.inverse_lr
    z_new = z_old + a.rate * g - sigma * w

    # Solve for the weight; l1 makes it exactly zero.
    curvatures = (a.beta + root) * a.inverse_lr + a.l2
    solution = (np.copysign(a.l1, z_new) - z_new) / curvatures
    solution = np.where(np.abs(z_new) <= a.l1, np.float32(0), solution)

    untouched = n_new == 0
    z[:] = np.where(untouched, z, z_new)
    w[:] = np.where(untouched, w, solution)
    n[:] = n_new


RULES: dict[str, Callable[[Float32, Float32, Float32, Args], None]] = {
    "sgd": sgd,
    "momentum": momentum,
    "nesterov": nesterov,
    "adagrad": adagrad,
    "rmsprop": rmsprop,
    "adam": adam,
    "adamw": adamw,
    "ftrl": ftrl,
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
    """Apply one gradient in place: what `mpips.kernels.update` does."""
    args = prepare(config, step, gradient_scale, rate_scale)
    RULES[config.kind](values, state, effective_gradient(values, gradient, args), args)


def add(dst: Float32, src: Float32) -> None:
    """`dst += src`."""
    dst += src


def scale(dst: Float32, factor: float) -> None:
    """`dst *= factor`, the factor rounded to float32 first."""
    dst *= np.float32(factor)


def all_finite(src: Float32) -> bool:
    """True if there is neither NaN nor infinity."""
    return bool(np.isfinite(src).all())


def all_within(src: Float32, bound: float) -> bool:
    """True if no magnitude is greater than `bound`, and there is no NaN."""
    return bool((np.abs(src) <= np.float32(bound)).all())


def copy_finite(dst: Float32, src: Float32) -> bool:
    """`dst = src`; True if there is neither NaN nor infinity."""
    dst[:] = src
    return all_finite(src)


def compensate(
    out: Float32, gradient: Float32, values: Float32, base: Float32, lambda_: float
) -> None:
    """Delay compensation (Zheng et al., ICML 2017); `out` may be `gradient`.

    The gradient is not squared first: infinity times no movement would be NaN.
    """
    total = gradient + np.float32(lambda_) * (values - base) * gradient * gradient
    out[:] = np.maximum(-np.float32(FLT_MAX), np.minimum(np.float32(FLT_MAX), total))

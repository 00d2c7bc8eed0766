"""Checked parameters of an estimator. Estimators store what they are given, and `fit` checks it."""

from __future__ import annotations

import math
import numbers
from typing import Any

import msgspec

from mpips.errors import ConfigError
from mpips.model.consistency import BSP, Consistency
from mpips.model.consistency import of_name as consistency_of
from mpips.model.local_sgd import Local
from mpips.model.optimizer import SGD, Adagrad, Adam, Momentum, Nesterov, Optimizer, RMSProp

# The rules of estimators with their default rates. AdamW and FTRL act on the weight itself, of which servers
# have only the change since the beginning of the fit (see training.py).
RULES: dict[str, tuple[type[Optimizer], float]] = {
    "adam": (Adam, 0.01),
    "adagrad": (Adagrad, 0.1),
    "rmsprop": (RMSProp, 0.01),
    "sgd": (SGD, 0.1),
    "momentum": (Momentum, 0.01),
    "nesterov": (Nesterov, 0.01),
}


class Settings(msgspec.Struct, frozen=True):
    """The checked parameters; see MpipsClassifier."""

    hidden: tuple[int, ...]
    rule: Optimizer
    consistency: Consistency
    alpha: float
    batch_size: int
    max_iter: int
    shuffle: bool
    tol: float  # -inf: the loss ends no fit
    n_iter_no_change: int


def settings_of(estimator: Any) -> Settings:
    """Return the checked parameters of an estimator.

    Raises:
        ValueError: Names the parameter, its value and what is accepted.
    """
    hidden = estimator.hidden
    if not isinstance(hidden, tuple | list) or not all(_is_count(n) for n in hidden):
        raise _wrong(
            estimator, "hidden", "must be a tuple of numbers of units, such as (100,); (): linear"
        )
    for name in ("batch_size", "max_iter", "n_iter_no_change"):
        if not _is_count(getattr(estimator, name)):
            raise _wrong(estimator, name, "must be a whole number of 1 or more")
    if not _is_number(estimator.alpha) or not estimator.alpha >= 0:
        raise _wrong(estimator, "alpha", "must be a number of 0 or more")
    if estimator.tol is not None and (not _is_number(estimator.tol) or not estimator.tol >= 0):
        raise _wrong(estimator, "tol", "must be a number of 0 or more, or None")
    return Settings(
        hidden=tuple(int(n) for n in hidden),
        rule=_rule(estimator),
        consistency=_consistency(estimator),
        alpha=float(estimator.alpha),
        batch_size=int(estimator.batch_size),
        max_iter=int(estimator.max_iter),
        shuffle=bool(estimator.shuffle),
        tol=-math.inf if estimator.tol is None else float(estimator.tol),
        n_iter_no_change=int(estimator.n_iter_no_change),
    )


def _rule(estimator: Any) -> Optimizer:
    given, rate = estimator.optimizer, estimator.learning_rate
    if rate is not None and (not _is_number(rate) or not rate > 0):
        raise _wrong(estimator, "learning_rate", "must be a number greater than 0, or None")
    if isinstance(given, str) and given in RULES:
        kind, default = RULES[given]
        try:
            return kind(float(default if rate is None else rate))
        except ConfigError as error:
            raise ValueError(f"{type(estimator).__name__}: learning_rate: {error}") from None
    if not isinstance(given, Optimizer) or type(given) not in [kind for kind, _ in RULES.values()]:
        raise _wrong(
            estimator,
            "optimizer",
            f"must be one of {', '.join(map(repr, RULES))}, or a value such as mpips.Momentum(0.01)",
        )
    if given.weight_decay:
        raise _wrong(estimator, "optimizer", "must have no weight_decay; use alpha")
    if rate is not None:
        raise _wrong(
            estimator,
            "learning_rate",
            "must be None where the optimizer is a value, which has a rate",
        )
    return given


def _consistency(estimator: Any) -> Consistency:
    given = estimator.consistency
    try:
        found = consistency_of(given) if isinstance(given, str) else given
    except ConfigError as error:
        raise ValueError(f"{type(estimator).__name__}: {error}") from None
    if not isinstance(found, Consistency) or isinstance(found, Local):
        raise _wrong(
            estimator,
            "consistency",
            "must be 'bsp', 'ssp', 'asp', 'auto', or a value such as mpips.SSP(2)",
        )
    if isinstance(found, BSP) and found != BSP():
        raise _wrong(
            estimator, "consistency", "must have reduce = 'mean' and no backup workers: use 'bsp'"
        )
    return found


def _is_count(value: Any) -> bool:
    return isinstance(value, numbers.Integral) and not isinstance(value, bool) and int(value) >= 1


def _is_number(value: Any) -> bool:
    is_real = isinstance(value, numbers.Real) and not isinstance(value, bool)
    return is_real and math.isfinite(value)


def _wrong(estimator: Any, name: str, accepted: str) -> ValueError:
    return ValueError(
        f"{type(estimator).__name__}: {name} = {getattr(estimator, name)!r}: {accepted}"
    )

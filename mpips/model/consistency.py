"""Consistency models and what happens to a stale update.

BSP: bulk synchronous parallel (Valiant 1990). SSP: stale synchronous parallel (Ho et al., "More
Effective Distributed ML via a Stale Synchronous Parallel Parameter Server", NIPS 2013). ASP: fully
asynchronous (Dean et al., "Large Scale Distributed Deep Networks", NIPS 2012). The staleness of an
update is the number of updates that its table has taken since the values it was computed on: those that
the push names as `base`, else those of the worker's newest pull.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from mpips import _native
from mpips.errors import ConfigError

REDUCTIONS = ("mean", "sum")


def _check(condition: bool, sentence: str) -> None:
    if not condition:
        raise ConfigError(sentence)


def is_count(value: object) -> bool:
    """Return True for a whole number; a bool is none."""
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)


def check_value(what: str, value: object, kinds: tuple[type, ...], example: str) -> None:
    """Refuse what is none of these kinds; a class in place of a value is the usual mistake.

    Raises:
        ConfigError: Names what was given and an example of what is accepted.
    """
    if isinstance(value, kinds):
        return
    if isinstance(value, type):
        raise ConfigError(f"{what} = {value.__name__} is a class: give a value, {value.__name__}()")
    raise ConfigError(f"{what} = {value!r}: must be a value such as {example}")


def unknown_name(what: str, name: object, valid: Mapping[str, Any]) -> ConfigError:
    """The error for a name that is not in `valid`: lists what is, and the nearest."""
    near = difflib.get_close_matches(str(name), valid, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    return ConfigError(f"unknown {what} {name!r}; valid are {', '.join(sorted(valid))}{hint}")


@dataclass(frozen=True)
class Accept:
    """Apply every update, whatever its staleness."""

    name: ClassVar[str] = "accept"


@dataclass(frozen=True)
class Scale:
    """Make an update of staleness tau with the learning rate lr/(1+tau).

    After Zhang et al., "Staleness-aware Async-SGD for Distributed Deep Learning", IJCAI 2016. The
    gradient itself stays whole, since a rule that divides by its root mean square (Adam, AdamW, Adagrad,
    RMSProp) would undo a factor. Weight decay, coupled or not, is scaled with the rate. The rate of
    Momentum and Nesterov is that with which a gradient enters the velocity, so a stale one counts less
    for good. In FTRL the weight moves by that share of what a fresh gradient would move it (with
    l1 = 0), and the sum of squares takes the gradient whole. PythonRule: see there.
    """

    name: ClassVar[str] = "scale"


@dataclass(frozen=True)
class Reject:
    """Drop updates whose staleness exceeds `max_staleness`; the worker is told."""

    max_staleness: int = 16
    name: ClassVar[str] = "reject"

    def __post_init__(self) -> None:
        """Refuse a bound that is not a count."""
        _check(
            is_count(self.max_staleness) and 0 <= self.max_staleness < 2**32,
            f"max_staleness = {self.max_staleness}: must be a whole number from 0 to 2^32-1",
        )


@dataclass(frozen=True)
class Compensate:
    """Delay compensation g + lambda g*g*(w_now - w_base) (Zheng et al., DC-ASGD, ICML 2017).

    Pushes must carry `base`, the values that the gradient was computed on.
    """

    lambda_: float = 0.04
    name: ClassVar[str] = "compensate"

    def __post_init__(self) -> None:
        """Refuse a factor that is no positive number, or too large for float32 to multiply with."""
        _check(
            isinstance(self.lambda_, (int, float, np.number))
            and not isinstance(self.lambda_, (bool, np.complexfloating))
            and math.isfinite(self.lambda_)
            and 0 < self.lambda_ <= 1e18,
            f"lambda_ = {self.lambda_}: must be greater than 0 and at most 1e+18",
        )


Policy = Accept | Scale | Reject | Compensate
POLICIES: dict[str, type[Policy]] = {c.name: c for c in (Accept, Scale, Reject, Compensate)}


@dataclass(frozen=True)
class BSP:
    """One update per clock: the workers' pushes, summed in worker order.

    Attributes:
        reduce: "mean" divides the sum by the number of workers in it, "sum" does not.
        backup: A clock closes when all but this many workers have sent theirs; pushes that come
            later are dropped and counted. 0 waits for all and is bitwise repeatable.
    """

    reduce: str = "mean"
    backup: int = 0
    name: ClassVar[str] = "bsp"

    def __post_init__(self) -> None:
        """Refuse unknown reductions and negative numbers of backup workers."""
        _check(
            self.reduce in REDUCTIONS,
            f"reduce = {self.reduce!r}: must be 'mean' or 'sum'",
        )
        _check(
            is_count(self.backup) and self.backup >= 0,
            f"backup = {self.backup}: must be 0 or more",
        )


@dataclass(frozen=True)
class SSP:
    """A worker at clock c reads values that hold all updates up to clock c - bound - 1."""

    bound: int = 2
    policy: Policy = Accept()
    name: ClassVar[str] = "ssp"

    def __post_init__(self) -> None:
        """Refuse a bound that is not a count, and a policy that is none."""
        _check(
            is_count(self.bound) and 0 <= self.bound < 2**31,
            f"bound = {self.bound}: must be a whole number from 0 to 2^31-1",
        )
        check_value("policy", self.policy, tuple(POLICIES.values()), "Scale()")


@dataclass(frozen=True)
class ASP:
    """Updates are applied as they arrive; nobody waits for anybody."""

    policy: Policy = Accept()
    name: ClassVar[str] = "asp"

    def __post_init__(self) -> None:
        """Refuse a policy that is none."""
        check_value("policy", self.policy, tuple(POLICIES.values()), "Scale()")


Consistency = BSP | SSP | ASP
MODELS: dict[str, type[Consistency]] = {c.name: c for c in (BSP, SSP, ASP)}


def of_name(name: str) -> Consistency:
    """Return the model of this name with its defaults.

    Raises:
        ConfigError: Lists the names.
    """
    if name.lower() not in MODELS:
        raise unknown_name("consistency", name, MODELS)
    return MODELS[name.lower()]()


def native(consistency: Consistency) -> _native.ConsistencyConfig:
    """The value that the C++ server takes."""
    policy: Policy = Accept() if isinstance(consistency, BSP) else consistency.policy
    return _native.ConsistencyConfig(
        model=_native.Model.__members__[consistency.name.upper()],
        bound=consistency.bound if isinstance(consistency, SSP) else 0,
        policy=_native.Policy.__members__[policy.name.upper()],
        max_staleness=policy.max_staleness if isinstance(policy, Reject) else 0,
        lambda_=policy.lambda_ if isinstance(policy, Compensate) else 0.0,
        mean=isinstance(consistency, BSP) and consistency.reduce == "mean",
    )


def parse_policy(name: str, options: Mapping[str, Any]) -> Policy:
    """A policy from its name and the options that belong to it."""
    if name not in POLICIES:
        raise unknown_name("staleness policy", name, POLICIES)
    return POLICIES[name](**options)


def judges_staleness(consistency: Consistency) -> bool:
    """True if what becomes of a push depends on its staleness."""
    return not isinstance(consistency, BSP) and not isinstance(consistency.policy, Accept)


def needs_base(consistency: Consistency) -> bool:
    """True if pushes must carry the values they were computed on."""
    return not isinstance(consistency, BSP) and isinstance(consistency.policy, Compensate)

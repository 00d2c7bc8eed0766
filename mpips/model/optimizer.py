"""Optimizers: the rule by which a server changes a table's values when a gradient arrives.

Each is a value, checked when it is made; the arithmetic is `mpips.kernels.reference` and its C++
kernels. Before the rule the gradient is scaled by the server, clipped to [-clip_value, clip_value]
and, except in AdamW, given the weight decay. Rules that square it bound it first, so that no sum leaves
float32: RMSProp, Adam and AdamW at 1.8e19, Adagrad and FTRL, whose sums never decay, at 2^50 (1.1e15).
State lies beside the values: `n_state` float32 each, in the order of `state_names`, which are also the
names in checkpoints.
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Iterable, Mapping
from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar

import numpy as np

from mpips import _native
from mpips.errors import ConfigError
from mpips.model.python_rule import PythonRule, import_function

__all__ = [
    "FTRL",
    "OPTIMIZERS",
    "SGD",
    "Adagrad",
    "Adam",
    "AdamW",
    "Momentum",
    "Nesterov",
    "Optimizer",
    "PythonRule",
    "RMSProp",
    "from_config",
]


@dataclass(frozen=True)
class Range:
    """The accepted values of a hyperparameter: low <= value <= high, or value < high if open."""

    low: float
    high: float
    open_high: bool = False

    def __contains__(self, value: object) -> bool:
        """False for NaN and for what is no number."""
        if not isinstance(value, (float, int, np.number)):
            return False
        inside = self.low <= value <= self.high
        return bool(inside and not (self.open_high and value == self.high))

    def __str__(self) -> str:
        """As error messages say it."""
        bound = "less than" if self.open_high else "at most"
        return f"at least {self.low:g} and {bound} {self.high:g}"


# Within these all products and quotients of hyperparameters are finite in float32.
LARGEST = 1e18
RATE = Range(0.0, LARGEST)
POSITIVE = Range(1e-18, LARGEST)
FRACTION = Range(0.0, 1.0, open_high=True)
EPSILON = Range(1e-30, LARGEST)

# What the kernels know besides kind, lr, weight_decay and clip_value; 0 where a rule lacks it.
HYPERPARAMETERS = [
    "momentum",
    "beta1",
    "beta2",
    "rho",
    "eps",
    "l1",
    "l2",
    "beta",
    "initial_accumulator",
]


@dataclass(frozen=True)
class Optimizer:
    """What all built-in rules share.

    Attributes:
        lr: Learning rate.
        weight_decay: L2 decay, added to the gradient as weight_decay * w (AdamW: see there).
        clip_value: Bound of every gradient element; 0 is off.
    """

    lr: float = 0.01
    _: KW_ONLY
    weight_decay: float = 0.0
    clip_value: float = 0.0

    name: ClassVar[str]
    n_state: ClassVar[int]
    state_names: ClassVar[tuple[str, ...]] = ()
    ranges: ClassVar[dict[str, Range]] = {"lr": RATE, "weight_decay": RATE, "clip_value": RATE}

    def __post_init__(self) -> None:
        """Refuse what is no number or lies outside its range; integers become floats."""
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            accepted = self.ranges[field.name]
            if isinstance(value, bool) or value not in accepted:
                raise ConfigError(
                    f"optimizer {self.name}: {field.name} = {value!r}: must be {accepted}"
                )
            object.__setattr__(self, field.name, float(value))

    def to_config(self) -> dict[str, Any]:
        """The mapping from which `from_config` makes this value again."""
        return {"name": self.name, **dataclasses.asdict(self)}

    def native(self) -> _native.OptimizerConfig:
        """The value that the C++ kernels take.

        Raises:
            KernelError: MPIPS_KERNELS names an instruction set that this machine does not have.
        """
        absent = dict.fromkeys(HYPERPARAMETERS, 0.0)
        return _native.OptimizerConfig(kind=self.name, **{**absent, **dataclasses.asdict(self)})


@dataclass(frozen=True)
class SGD(Optimizer):
    """Gradient descent (Robbins and Monro 1951): w -= lr g."""

    name: ClassVar[str] = "sgd"
    n_state: ClassVar[int] = 0


@dataclass(frozen=True)
class Momentum(Optimizer):
    """Heavy ball (Polyak 1964): m = momentum m + g; w -= lr m.

    Attributes:
        momentum: Share of the velocity kept at each update.
    """

    momentum: float = 0.9

    name: ClassVar[str] = "momentum"
    n_state: ClassVar[int] = 1
    state_names: ClassVar[tuple[str, ...]] = ("momentum",)
    ranges: ClassVar[dict[str, Range]] = {**Optimizer.ranges, "momentum": FRACTION}


@dataclass(frozen=True)
class Nesterov(Optimizer):
    """Nesterov 1983, after Sutskever et al. 2013: m = momentum m + g; w -= lr (g + momentum m).

    Attributes:
        momentum: Share of the velocity kept at each update.
    """

    momentum: float = 0.9

    name: ClassVar[str] = "nesterov"
    n_state: ClassVar[int] = 1
    state_names: ClassVar[tuple[str, ...]] = ("momentum",)
    ranges: ClassVar[dict[str, Range]] = {**Optimizer.ranges, "momentum": FRACTION}


@dataclass(frozen=True)
class Adagrad(Optimizer):
    """Duchi, Hazan and Singer, JMLR 2011: s += g^2; w -= lr g / (sqrt(s) + eps).

    Attributes:
        eps: Keeps the quotient finite while s is 0.
        initial_accumulator: Where s starts; greater values make the first steps smaller.
    """

    eps: float = 1e-10
    initial_accumulator: float = 0.0

    name: ClassVar[str] = "adagrad"
    n_state: ClassVar[int] = 1
    state_names: ClassVar[tuple[str, ...]] = ("accumulator",)
    ranges: ClassVar[dict[str, Range]] = {
        **Optimizer.ranges,
        "eps": EPSILON,
        "initial_accumulator": RATE,
    }


@dataclass(frozen=True)
class RMSProp(Optimizer):
    """Tieleman and Hinton 2012: s = rho s + (1 - rho) g^2; w -= lr g / (sqrt(s) + eps).

    Attributes:
        rho: Share of the mean square kept at each update.
        eps: Keeps the quotient finite while s is 0.
    """

    lr: float = 0.001
    rho: float = 0.9
    eps: float = 1e-8

    name: ClassVar[str] = "rmsprop"
    n_state: ClassVar[int] = 1
    state_names: ClassVar[tuple[str, ...]] = ("mean_square",)
    ranges: ClassVar[dict[str, Range]] = {**Optimizer.ranges, "rho": FRACTION, "eps": EPSILON}


@dataclass(frozen=True)
class Adam(Optimizer):
    """Kingma and Ba, ICLR 2015, with bias correction.

    Steps are the updates that were applied, not clocks; embedding rows count their own.

    Attributes:
        beta1: Share of the first moment kept at each update.
        beta2: Share of the second moment kept at each update.
        eps: Added to the root of the corrected second moment.
    """

    lr: float = 0.001
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8

    name: ClassVar[str] = "adam"
    n_state: ClassVar[int] = 2
    state_names: ClassVar[tuple[str, ...]] = ("m", "v")
    ranges: ClassVar[dict[str, Range]] = {
        **Optimizer.ranges,
        "beta1": FRACTION,
        "beta2": FRACTION,
        "eps": EPSILON,
    }


@dataclass(frozen=True)
class AdamW(Adam):
    """Adam with decoupled weight decay (Loshchilov and Hutter, ICLR 2019).

    w -= lr weight_decay w comes first and does not touch the moments.
    """

    _: KW_ONLY
    weight_decay: float = 0.01

    name: ClassVar[str] = "adamw"


@dataclass(frozen=True)
class FTRL(Optimizer):
    """FTRL-Proximal (McMahan et al., KDD 2013), per coordinate, for sparse linear models.

    The weight is exactly 0 while |z| <= l1. A weight that starts elsewhere than at 0 stays where it
    is until its first gradient and goes on from there: z begins as the value whose solution it is.
    `weight_decay` is added to the gradient as in the other rules and not needed beside l2.

    Attributes:
        lr: The paper's alpha.
        beta: The paper's beta, which damps the first steps: the rate is lr / (beta + sqrt(n)).
        l1: Regulariser that makes weights zero.
        l2: Regulariser of the squared weight, added to the curvature.
    """

    lr: float = 0.1
    beta: float = 1.0
    l1: float = 0.0
    l2: float = 0.0

    name: ClassVar[str] = "ftrl"
    n_state: ClassVar[int] = 2
    state_names: ClassVar[tuple[str, ...]] = ("z", "n")
    ranges: ClassVar[dict[str, Range]] = {
        **Optimizer.ranges,
        "lr": POSITIVE,
        "beta": POSITIVE,
        "l1": RATE,
        "l2": RATE,
    }


OPTIMIZERS: dict[str, type[Optimizer]] = {
    c.name: c for c in (SGD, Momentum, Nesterov, Adagrad, RMSProp, Adam, AdamW, FTRL)
}


def from_config(config: Mapping[str, Any] | str) -> Optimizer | PythonRule:
    """Make the optimizer that a mapping describes; a name alone stands for {"name": name}.

    Args:
        config: "name" and that optimizer's hyperparameters, all of them optional. A name like
            "my_module:my_function" is a PythonRule, with "n_state" as its only other key.

    Raises:
        ConfigError: A name, key or value is not accepted, or the function cannot be imported.
    """
    options = {"name": config} if isinstance(config, str) else dict(config)
    name = options.pop("name", None)
    if isinstance(name, str) and ":" in name:
        _check_keys(name, options, ["n_state"])
        return PythonRule(import_function(name), **options)
    if not isinstance(name, str) or name not in OPTIMIZERS:
        raise ConfigError(_unknown("optimizer", name, OPTIMIZERS))
    cls = OPTIMIZERS[name]
    _check_keys(name, options, [field.name for field in dataclasses.fields(cls)])
    return cls(**options)


def _unknown(what: str, name: object, valid: Iterable[str]) -> str:
    names = list(valid)
    near = difflib.get_close_matches(str(name).lower(), names, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    return f"unknown {what} {name!r}; valid are {', '.join(names)}{hint}"


def _check_keys(name: str, options: Mapping[str, Any], valid: list[str]) -> None:
    for key in options:
        if key not in valid:
            raise ConfigError(_unknown(f"option of optimizer {name}:", key, valid))

"""Optimizers: the rules by which a server changes the values of a table when an update arrives.

Each optimizer is a value that is checked when it is made. Its arithmetic is defined by
`mpips.kernels.reference` and done by C++ kernels. Before the rule, the server scales the gradient, clips it
to [-clip_value, clip_value] and, except in AdamW, adds the weight decay. Rules that square the gradient bound
it first, so that no sum overflows float32: RMSProp, Adam and AdamW at 1.8e19; Adagrad, RowAdagrad and FTRL,
whose sums never decay, at 2^50 (1.1e15). The state lies beside the values: `n_state` float32 per value, in
the order of `state_names`, and `n_row_state` float32 per row, in the order of `row_state_names`. The names
are also those in checkpoints.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from typing import Annotated, Any, ClassVar, TypeAlias

from msgspec import Meta

from mpips import _native
from mpips.model.accepted import check_fields, unknown_name
from mpips.model.python_rule import PythonRule, import_function

# The package exports these names, so users write mpips.Adam.
__all__ = [
    "FTRL",
    "SGD",
    "Adagrad",
    "Adam",
    "AdamW",
    "DelayedNesterov",
    "Momentum",
    "Nesterov",
    "PythonRule",
    "RMSProp",
    "Replace",
    "RowAdagrad",
]

# In these ranges all products and quotients of hyperparameters are finite in float32.
Rate: TypeAlias = Annotated[float, Meta(ge=0, le=1e18)]
Positive: TypeAlias = Annotated[float, Meta(ge=1e-18, le=1e18)]
Fraction: TypeAlias = Annotated[float, Meta(ge=0, lt=1)]
Every: TypeAlias = Annotated[int, Meta(ge=0, le=2**31 - 1)]
Epsilon: TypeAlias = Annotated[float, Meta(ge=1e-30, le=1e18)]

# Fields of `_native.OptimizerConfig` besides kind, lr, weight_decay and clip_value; 0 if a rule lacks them.
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
    "every",
]


@dataclass(frozen=True)
class Optimizer:
    """Base of the built-in rules.

    Attributes:
        lr: Learning rate.
        weight_decay: L2 decay, added to the gradient as weight_decay * w (for AdamW see there).
        clip_value: Bound of the absolute value of each gradient element; 0: off.
    """

    lr: Rate = 0.01
    _: KW_ONLY
    weight_decay: Rate = 0.0
    clip_value: Rate = 0.0

    name: ClassVar[str]
    n_state: ClassVar[int]
    state_names: ClassVar[tuple[str, ...]] = ()
    n_row_state: ClassVar[int] = 0
    row_state_names: ClassVar[tuple[str, ...]] = ()

    def __post_init__(self) -> None:
        """Check all values against their annotations; integers become floats."""
        check_fields(self, f"optimizer {self.name}: ")
        for field in dataclasses.fields(self):
            object.__setattr__(self, field.name, float(getattr(self, field.name)))

    def to_config(self) -> dict[str, Any]:
        """Return the mapping from which `from_config` makes an equal value."""
        return {"name": self.name, **dataclasses.asdict(self)}

    def native(self) -> _native.OptimizerConfig:
        """Return the value that the C++ kernels take.

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
class Replace(Optimizer):
    """The values become what is pushed: w = lr g. For tables that hold something, and train nothing.

    Under BSP they become the mean or sum of what the workers pushed at a clock; under ASP those of the push
    that was applied last. Finite values are stored as they are, except that
    -0.0 may become 0.0.

    Attributes:
        lr: Factor of the pushed values.
    """

    lr: Rate = 1.0

    name: ClassVar[str] = "replace"
    n_state: ClassVar[int] = 0


@dataclass(frozen=True)
class Momentum(Optimizer):
    """Heavy ball (Polyak 1964): m = momentum m + g; w -= lr m.

    Attributes:
        momentum: Fraction of the velocity that remains after each update.
    """

    momentum: Fraction = 0.9

    name: ClassVar[str] = "momentum"
    n_state: ClassVar[int] = 1
    state_names: ClassVar[tuple[str, ...]] = ("momentum",)


@dataclass(frozen=True)
class Nesterov(Optimizer):
    """Nesterov's momentum (1983; Sutskever et al. 2013): m = momentum m + g; w -= lr (g + momentum m).

    Attributes:
        momentum: Fraction of the velocity that remains after each update.
    """

    momentum: Fraction = 0.9

    name: ClassVar[str] = "nesterov"
    n_state: ClassVar[int] = 1
    state_names: ClassVar[tuple[str, ...]] = ("momentum",)


@dataclass(frozen=True)
class DelayedNesterov(Optimizer):
    """Nesterov's momentum that only every Nth update changes, for updates that arrive one by one.

    Algorithm 3, with c = 0, of B. Liu et al., "Asynchronous Local-SGD Training for Language Modeling", arXiv
    2401.09135. Each update has g = g / N; b += g; w -= lr g. Each Nth one also has m = momentum m + b;
    w -= lr momentum m; b = 0. With every=1 it is Nesterov, with the same bits. It counts the updates of a
    table, or of an embedding row.

    Attributes:
        momentum: Fraction of the velocity that remains after each Nth update.
        every: N. 0: the number of workers of the job, which the job sets at its start.
    """

    lr: Rate = 0.7
    momentum: Fraction = 0.9
    every: Every = 0

    name: ClassVar[str] = "delayed_nesterov"
    n_state: ClassVar[int] = 2
    state_names: ClassVar[tuple[str, ...]] = ("momentum", "buffer")

    def __post_init__(self) -> None:
        """Check all values; `every` stays a whole number."""
        super().__post_init__()
        object.__setattr__(self, "every", int(self.every))

    def native(self) -> _native.OptimizerConfig:
        """As Optimizer.native; `every` = 0 is 1 there, as for a job of one worker."""
        if self.every:
            return super().native()
        return dataclasses.replace(self, every=1).native()


def for_workers(rule: Optimizer, n_workers: int) -> Optimizer:
    """Return the rule with the numbers that follow from the number of workers."""
    if isinstance(rule, DelayedNesterov) and not rule.every:
        return dataclasses.replace(rule, every=n_workers)
    return rule


@dataclass(frozen=True)
class Adagrad(Optimizer):
    """Adagrad (Duchi, Hazan and Singer, JMLR 2011): s += g^2; w -= lr g / (sqrt(s) + eps).

    Attributes:
        eps: Added to the root, so that the quotient is finite while s is 0.
        initial_accumulator: Initial value of s; greater values make the first steps smaller.
    """

    eps: Epsilon = 1e-10
    initial_accumulator: Rate = 0.0

    name: ClassVar[str] = "adagrad"
    n_state: ClassVar[int] = 1
    state_names: ClassVar[tuple[str, ...]] = ("accumulator",)


@dataclass(frozen=True)
class RowAdagrad(Optimizer):
    """Row-wise Adagrad, of embedding tables: s += mean(g^2); w -= lr g / (sqrt(s) + eps), with one s a row.

    The mean is over the `dim` values of the row's gradient. The state of a row is one float32 instead of
    `dim`, so that a row takes half of the memory that it takes with Adagrad (Gupta, Anil and Singer,
    "Training Recommender Systems at Scale: Communication-Efficient Model and Data Parallelism", KDD 2021;
    the rule of FBGEMM's EXACT_ROWWISE_ADAGRAD). Under BSP the gradient is the mean or sum of the clock, as
    in the other rules.

    Attributes:
        eps: Added to the root, so that the quotient is finite while s is 0.
        initial_accumulator: Initial value of s; greater values make the first steps smaller.
    """

    eps: Epsilon = 1e-10
    initial_accumulator: Rate = 0.0

    name: ClassVar[str] = "row_adagrad"
    n_state: ClassVar[int] = 0
    n_row_state: ClassVar[int] = 1
    row_state_names: ClassVar[tuple[str, ...]] = ("row_accumulator",)


@dataclass(frozen=True)
class RMSProp(Optimizer):
    """RMSProp (Tieleman and Hinton 2012): s = rho s + (1 - rho) g^2; w -= lr g / (sqrt(s) + eps).

    Attributes:
        rho: Fraction of the mean square that remains after each update.
        eps: Added to the root, so that the quotient is finite while s is 0.
    """

    lr: Rate = 0.001
    rho: Fraction = 0.9
    eps: Epsilon = 1e-8

    name: ClassVar[str] = "rmsprop"
    n_state: ClassVar[int] = 1
    state_names: ClassVar[tuple[str, ...]] = ("mean_square",)


@dataclass(frozen=True)
class Adam(Optimizer):
    """Adam (Kingma and Ba, ICLR 2015) with bias correction.

    The step of the bias correction is the number of applied updates, not the clock. Each embedding row has
    its own.

    Attributes:
        beta1: Fraction of the first moment that remains after each update.
        beta2: Fraction of the second moment that remains after each update.
        eps: Added to the root of the corrected second moment.
    """

    lr: Rate = 0.001
    beta1: Fraction = 0.9
    beta2: Fraction = 0.999
    eps: Epsilon = 1e-8

    name: ClassVar[str] = "adam"
    n_state: ClassVar[int] = 2
    state_names: ClassVar[tuple[str, ...]] = ("m", "v")


@dataclass(frozen=True)
class AdamW(Adam):
    """Adam with decoupled weight decay (Loshchilov and Hutter, ICLR 2019).

    w -= lr weight_decay w is applied first and does not change the moments.
    """

    _: KW_ONLY
    weight_decay: Rate = 0.01

    name: ClassVar[str] = "adamw"


@dataclass(frozen=True)
class FTRL(Optimizer):
    """FTRL-Proximal (McMahan et al., KDD 2013), per coordinate, for sparse linear models.

    The weight is exactly 0 while |z| <= l1. A weight whose initial value is not 0 has this value until its
    first gradient and moves from there: z starts as the value whose solution is the initial weight.
    `weight_decay` is added to the gradient as in the other rules and is not needed together with l2.

    Attributes:
        lr: Learning rate, alpha in the paper.
        beta: Damps the first steps, beta in the paper: the rate is lr / (beta + sqrt(n)).
        l1: L1 regularisation, which makes weights exactly 0.
        l2: L2 regularisation, added to the curvature.
    """

    lr: Positive = 0.1
    beta: Positive = 1.0
    l1: Rate = 0.0
    l2: Rate = 0.0

    name: ClassVar[str] = "ftrl"
    n_state: ClassVar[int] = 2
    state_names: ClassVar[tuple[str, ...]] = ("z", "n")


OPTIMIZERS: dict[str, type[Optimizer]] = {
    c.name: c
    for c in (SGD, Momentum, Nesterov, DelayedNesterov, Adagrad, RMSProp, Adam, AdamW, FTRL)
}
# Rules of embedding tables alone: they need the whole gradient of a row.
ROW_OPTIMIZERS: dict[str, type[Optimizer]] = {RowAdagrad.name: RowAdagrad}
# Rules that train nothing.
HOLDING_OPTIMIZERS: dict[str, type[Optimizer]] = {Replace.name: Replace}
_ALL = {**OPTIMIZERS, **ROW_OPTIMIZERS, **HOLDING_OPTIMIZERS}


def from_config(config: Mapping[str, Any] | str) -> Optimizer | PythonRule:
    """Make the optimizer that a mapping describes; a name alone stands for {"name": name}.

    Args:
        config: "name" and the hyperparameters of that optimizer, all of them optional. A name like
            "my_module:my_function" is a PythonRule, with "n_state" as its only other key.

    Raises:
        ConfigError: A name, key or value is not accepted, or the function cannot be imported.
    """
    options = {"name": config} if isinstance(config, str) else dict(config)
    name = options.pop("name", None)
    if isinstance(name, str) and ":" in name:
        _check_keys(name, options, ["n_state"])
        return PythonRule(import_function(name), **options)
    if not isinstance(name, str) or name not in _ALL:
        raise unknown_name("optimizer", name, _ALL)
    cls = _ALL[name]
    _check_keys(name, options, [field.name for field in dataclasses.fields(cls)])
    return cls(**options)


def _check_keys(name: str, options: Mapping[str, Any], valid: list[str]) -> None:
    for key in options:
        if key not in valid:
            raise unknown_name(f"option of optimizer {name}:", key, valid)

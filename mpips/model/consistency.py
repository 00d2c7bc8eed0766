"""Consistency models, and what happens to a stale update.

BSP: bulk synchronous parallel (Valiant 1990). SSP: stale synchronous parallel (Ho et al., "More
Effective Distributed ML via a Stale Synchronous Parallel Parameter Server", NIPS 2013). ASP: fully
asynchronous (Dean et al., "Large Scale Distributed Deep Networks", NIPS 2012). LocalSGD, DiLoCo: see
mpips.model.local_sgd. SSP("auto"): see mpips.model.adaptive_bound. BSP(backup="auto"): see
mpips.model.backup_choice.

The staleness of an update is the number of updates that its table has applied since the values that the
update was computed on. These are the values that the push names as `base`, or else those of the worker's
newest pull.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal, TypeAlias

from msgspec import Meta

from mpips import _native
from mpips.errors import ConfigError
from mpips.model.accepted import check_fields, check_value, unknown_name
from mpips.model.local_sgd import DiLoCo, Local, LocalSGD

# The package exports these names, so users write mpips.SSP.
__all__ = [
    "ASP",
    "BSP",
    "SSP",
    "Accept",
    "Compensate",
    "DiLoCo",
    "LocalSGD",
    "Reject",
    "Scale",
    "Switch",
]

Reduction: TypeAlias = Literal["mean", "sum"]
Backup: TypeAlias = Annotated[int, Meta(ge=0)]
Bound: TypeAlias = Annotated[int, Meta(ge=0, le=2**31 - 1)]
AUTO: Literal["auto"] = "auto"
AutoBackup: TypeAlias = Annotated[Backup | Literal["auto"], Meta(description="workers")]
MostBackup: TypeAlias = Annotated[int, Meta(ge=1, le=255)]  # le: what the word of a decision holds
DEFAULT_MOST_BACKUP = 8  # of BSP(backup="auto")
AutoBound: TypeAlias = Annotated[Bound | Literal["auto"], Meta(description="clocks")]
MostBound: TypeAlias = Annotated[int, Meta(ge=1, le=255)]  # le: what the word of a decision holds
DEFAULT_MOST_BOUND = 8  # of SSP("auto")
MaxStaleness: TypeAlias = Annotated[int, Meta(ge=0, le=2**32 - 1)]
AutoStaleness: TypeAlias = Annotated[
    MaxStaleness | Literal["auto"], Meta(description="updates of the table")
]
# float32 arithmetic multiplies with it.
Lambda: TypeAlias = Annotated[float, Meta(gt=0, le=1e18)]
SwitchClock: TypeAlias = Annotated[
    int, Meta(ge=1, le=2**53, description="clocks since the start of the run")
]
UNEVEN: Literal["uneven"] = "uneven"
SwitchPlace: TypeAlias = Annotated[
    SwitchClock | Literal["plateau", "uneven"],
    Meta(description="clocks since the start of the run"),
]
SwitchRate: TypeAlias = Annotated[float, Meta(gt=0, le=1e6)]
OwnSwitchRate: TypeAlias = Annotated[SwitchRate | None, Meta(description="factor")]
NEVER = 2**64 - 1  # a clock that no run reaches
# The keys of MODELS and "auto", and the keys of POLICIES.
ConsistencyName: TypeAlias = Literal["bsp", "ssp", "asp", "local_sgd", "diloco", "switch", "auto"]
PolicyName: TypeAlias = Literal["accept", "scale", "reject", "compensate"]


@dataclass(frozen=True)
class Accept:
    """Apply every update, whatever its staleness."""

    name: ClassVar[str] = "accept"


@dataclass(frozen=True)
class Scale:
    """Apply an update of staleness tau with the learning rate lr / (1 + tau).

    After Zhang et al., "Staleness-aware Async-SGD for Distributed Deep Learning", IJCAI 2016. The gradient
    itself is not scaled, because a rule that divides by a root mean square (Adam, AdamW, Adagrad, RMSProp)
    would undo a factor. Weight decay, coupled or not, is scaled with the rate. In Momentum and Nesterov the
    rate is the factor with which a gradient enters the velocity, so a stale gradient also counts less in all
    later steps. In FTRL a stale gradient moves the weight by 1 / (1 + tau) of what a fresh one would (with
    l1 = 0), and the sum of squares takes the unscaled gradient. For PythonRule see there.
    """

    name: ClassVar[str] = "scale"


@dataclass(frozen=True)
class Reject:
    """Drop updates whose staleness exceeds `max_staleness`; the result of the push reports it.

    With max_staleness = "auto" it is Ringmaster ASGD (Maranjyan, Tyurin, Richtarik, "Ringmaster ASGD: The
    First Asynchronous SGD with Optimal Time Complexity", ICML 2025): updates with a staleness of R or more
    are dropped, where R = ceil(sigma^2 / epsilon). sigma^2 is the variance of a gradient, and epsilon the
    squared norm of the gradient that is to be reached. Each server estimates both for its part of a table,
    from pairs of applied pushes of two workers: epsilon is the squared norm where training is now. R is at
    least the number of workers, so workers of equal speed lose no update. Before the first estimate, after
    some 500 pushes, no update is dropped. Only for dense tables.

    Attributes:
        max_staleness: Greatest staleness of an update that is applied, in updates of the table; or "auto".
    """

    max_staleness: AutoStaleness = 16
    name: ClassVar[str] = "reject"

    def __post_init__(self) -> None:
        """Raise ConfigError for a bound that is not accepted."""
        check_fields(self)


@dataclass(frozen=True)
class Compensate:
    """Delay compensation g + lambda g*g*(w_now - w_base) (Zheng et al., DC-ASGD, ICML 2017).

    Pushes must carry `base`, the values that the gradient was computed on.
    """

    lambda_: Lambda = 0.04
    name: ClassVar[str] = "compensate"

    def __post_init__(self) -> None:
        """Raise ConfigError for a factor that is not accepted."""
        check_fields(self)


Policy = Accept | Scale | Reject | Compensate
POLICIES: dict[str, type[Policy]] = {c.name: c for c in (Accept, Scale, Reject, Compensate)}


@dataclass(frozen=True)
class BSP:
    """One update per clock: the pushes of all workers, summed in the order of the workers.

    Attributes:
        reduce: "mean" divides the sum by the number of workers in it, "sum" does not.
        backup: Number of backup workers. A clock closes when all but this many workers have sent their
            pushes. Pushes that arrive later are dropped and counted. With 0 a clock waits for all workers,
            and results are bitwise repeatable. With "auto" the number begins with 0, and each server changes
            it by the measured times of the workers: to the number with most gradients per second. See
            mpips.model.backup_choice.
        max: Greatest number of "auto". Another number takes none.
    """

    reduce: Reduction = "mean"
    backup: AutoBackup = 0
    max: MostBackup = DEFAULT_MOST_BACKUP
    name: ClassVar[str] = "bsp"

    def __post_init__(self) -> None:
        """Raise ConfigError for an unknown reduction or a number of backup workers that is not accepted."""
        check_fields(self)
        if not isinstance(self.backup, str) and self.max != DEFAULT_MOST_BACKUP:
            raise ConfigError(
                f"max = {self.max} with backup = {self.backup}: applies only to backup = 'auto'; remove it"
            )

    @property
    def most_backup(self) -> int:
        """The greatest number of backup workers that can be in force."""
        return self.max if isinstance(self.backup, str) else self.backup


@dataclass(frozen=True)
class SSP:
    """A worker at clock c reads values that contain all updates up to clock c - bound - 1.

    With bound = "auto" it is dynamic SSP (Zhao et al., "Dynamic Stale Synchronous Parallel Distributed
    Training for Deep Learning", ICDCS 2019): the bound begins with 0 and follows the measured push intervals
    of the workers. A job has one bound for all such tables, and all workers use the same one at a clock. See
    mpips.model.adaptive_bound.

    Attributes:
        bound: Clocks that a worker may be ahead of the slowest one; or "auto".
        policy: Treatment of a stale update.
        max: Greatest bound of "auto". Another bound takes none.
    """

    bound: AutoBound = 2
    policy: Policy = Accept()
    max: MostBound = DEFAULT_MOST_BOUND
    name: ClassVar[str] = "ssp"

    def __post_init__(self) -> None:
        """Raise ConfigError for a bound that is not accepted, or for another value than a policy."""
        check_fields(self)
        if not self.is_adaptive and self.max != DEFAULT_MOST_BOUND:
            raise ConfigError(
                f"max = {self.max} with bound = {self.bound}: applies only to bound = 'auto'; remove it"
            )
        _check_policy(self.policy)

    @property
    def is_adaptive(self) -> bool:
        """True if the bound follows measured push intervals."""
        return isinstance(self.bound, str)

    @property
    def most_bound(self) -> int:
        """The greatest bound that can be in force, clocks."""
        return self.max if isinstance(self.bound, str) else self.bound


@dataclass(frozen=True)
class ASP:
    """Updates are applied as they arrive; no worker waits for another.

    Attributes:
        policy: Treatment of a stale update.
    """

    policy: Policy = Accept()
    name: ClassVar[str] = "asp"

    def __post_init__(self) -> None:
        """Raise ConfigError for another value than a policy."""
        _check_policy(self.policy)


def _check_policy(policy: object) -> None:
    check_value("policy", policy, tuple(POLICIES.values()), "Scale()")


@dataclass(frozen=True)
class Switch:
    """BSP for the first clocks of a run, and ASP from clock `at` on.

    After Li et al., "Sync-Switch: Hybrid Parameter Synchronization for Distributed Deep Learning", ICDCS
    2021: a run that begins under BSP and goes on under ASP is as accurate as one under BSP, and faster where
    workers differ. Here the learning rate is corrected at the switch, and the momentum coefficient stays: in
    sum each gradient moves values by rate / (1 - momentum) times itself, before and after. With the mean of n
    workers BSP moves the values once per clock, and ASP moves them n times. So from clock `at` on each update
    is applied with the rate divided by n, if `reduce` is "mean"; then a clock of n workers moves the values
    as far as before. With "sum" the rate stays. A velocity stays as it is: the rate is a factor of what
    enters it.

    All workers use ASP from the same clock of the run on, in every launch. A pull at clock c sees all updates
    of the first min(c, at) clocks. All tables of a job must have the same `at`.

    With at = "plateau" server 0 decides on the clock, once in a run: when the noise of the mean gradient of
    all workers is as large as the gradient itself, by 8 pairs of clocks. With n workers that is R >= n for
    the R of Ringmaster ASGD (see Reject): a staleness below R slows training down by a constant factor at
    most, and that of ASP with even workers is n - 1. See native/src/server/plateau.hpp.

    With at = "uneven" server 0 decides on the clock, once in a run: when the workers would push a tenth more
    gradients per second under ASP, by the time that each needs for a clock without waiting for others. So a
    job stays under BSP as long as its workers are equally fast in each clock. The name "auto" of a
    consistency model is Switch(BSP(), ASP(), "uneven"). See native/src/server/evenness.hpp.

    All servers and workers have a decision before any of them comes to its clock. See
    native/src/server/server_switch.cpp.

    Attributes:
        first: BSP without backup workers.
        then: ASP with the policy Accept, Scale or Reject with a number.
        at: Clock of the run at which ASP begins, so the number of clocks under BSP; or "plateau"
            or "uneven".
        rate: Factor of the learning rate from that clock on; None: as above.
    """

    first: BSP
    then: ASP
    at: SwitchPlace
    rate: OwnSwitchRate = None
    name: ClassVar[str] = "switch"

    def __post_init__(self) -> None:
        """Raise ConfigError for models, a clock or a factor that are not accepted."""
        check_value("first", self.first, (BSP,), "BSP()")
        check_value("then", self.then, (ASP,), "ASP()")
        check_fields(self)
        if self.first.backup:
            raise ConfigError(
                f"Switch with backup = {self.first.backup}: backup workers let workers skip clocks; set "
                "backup = 0"
            )
        policy = self.then.policy
        if isinstance(policy, Compensate):
            raise ConfigError(
                "Switch with the policy Compensate: updates under BSP have no base; use Accept, Scale or "
                "Reject with a number"
            )
        if isinstance(policy, Reject) and isinstance(policy.max_staleness, str):
            raise ConfigError(
                "Switch with Reject('auto'): its estimate begins with the launch; give a number"
            )

    @property
    def is_adaptive(self) -> bool:
        """True if a server decides on the clock."""
        return isinstance(self.at, str)

    @property
    def place(self) -> str:
        """Where the switch is, for messages."""
        if isinstance(self.at, str):
            return "uneven workers" if self.at == UNEVEN else "a plateau"
        return f"clock {self.at}"

    def rate_of(self, n_workers: int) -> float:
        """Return the factor of the learning rate under ASP in a job with this number of workers."""
        if self.rate is not None:
            return self.rate
        return 1.0 / n_workers if self.first.reduce == "mean" else 1.0


Consistency = BSP | SSP | ASP | LocalSGD | DiLoCo | Switch
# The models with defaults for all options.
PLAIN_MODELS: dict[str, type[BSP | SSP | ASP | LocalSGD | DiLoCo]] = {
    c.name: c for c in (BSP, SSP, ASP, LocalSGD, DiLoCo)
}
MODELS: dict[str, type[Consistency]] = {**PLAIN_MODELS, Switch.name: Switch}
AUTOMATIC = Switch(BSP(), ASP(), UNEVEN)


def of_name(name: str) -> Consistency:
    """Return the model of this name, in any case, with its defaults.

    Raises:
        ConfigError: There is no such model; lists the names. Or it has no defaults.
    """
    if name.lower() == AUTO:
        return AUTOMATIC
    if name.lower() not in MODELS:
        raise unknown_name("consistency", name, [*MODELS, AUTO])
    if name.lower() == Switch.name:
        raise ConfigError(
            "consistency = 'switch' needs the clock of the switch: use Switch(BSP(), ASP(), at=1000), or "
            "at='plateau' or at='uneven'"
        )
    return PLAIN_MODELS[name.lower()]()


def common_reduction(consistency: Consistency) -> Reduction | None:
    """Return how updates of a clock are reduced: under BSP, also that of Switch; None: they are not."""
    if isinstance(consistency, Switch):
        consistency = consistency.first
    return consistency.reduce if isinstance(consistency, BSP) else None


def bsp_until(consistency: Consistency, clocks_before: int) -> int:
    """Return the clock of this launch at which a table's BSP ends: NEVER under BSP, 0 under SSP and ASP.

    Args:
        consistency: The table's model. For a Switch that a server decides on the result is NEVER.
        clocks_before: Clocks of the run at the launch's clock 0.
    """
    if isinstance(consistency, Switch):
        at = consistency.at
        return NEVER if isinstance(at, str) else max(0, at - clocks_before)
    return NEVER if isinstance(consistency, BSP) else 0


def native(consistency: Consistency, n_workers: int) -> _native.ConsistencyConfig:
    """Return the value that the C++ server takes. Servers have no LocalSGD and no DiLoCo: see `served`."""
    assert not isinstance(consistency, Local)
    if isinstance(consistency, Switch):
        policy = consistency.then.policy
        return _native.ConsistencyConfig(
            model=_native.Model.BSP,
            bound=0,
            policy=policy.name,
            max_staleness=_max_staleness(policy),
            lambda_=0.0,
            mean=consistency.first.reduce == "mean",
            switch_at=0 if isinstance(consistency.at, str) else consistency.at,
            rate=consistency.rate_of(n_workers),
            finds_switch=consistency.is_adaptive,
        )
    policy = Accept() if isinstance(consistency, BSP) else consistency.policy
    return _native.ConsistencyConfig(
        model=_native.Model.__members__[consistency.name.upper()],
        bound=consistency.most_bound if isinstance(consistency, SSP) else 0,
        policy=policy.name,
        max_staleness=_max_staleness(policy),
        lambda_=policy.lambda_ if isinstance(policy, Compensate) else 0.0,
        mean=isinstance(consistency, BSP) and consistency.reduce == "mean",
        adaptive=is_adaptive(consistency),
        estimates=estimates_staleness(consistency),
    )


def _max_staleness(policy: Policy) -> int:
    if not isinstance(policy, Reject) or isinstance(policy.max_staleness, str):
        return 0
    return policy.max_staleness


def estimates_staleness(consistency: Consistency) -> bool:
    """Return True for the policy Reject("auto")."""
    policy = consistency.policy if isinstance(consistency, SSP | ASP) else None
    return isinstance(policy, Reject) and isinstance(policy.max_staleness, str)


def is_adaptive(consistency: Consistency) -> bool:
    """Return True for SSP("auto")."""
    return isinstance(consistency, SSP) and consistency.is_adaptive


def estimates_backup(consistency: Consistency) -> bool:
    """Return True for BSP(backup="auto")."""
    return isinstance(consistency, BSP) and isinstance(consistency.backup, str)


def judges_staleness(consistency: Consistency) -> bool:
    """Return True if the staleness of a push decides what happens to it."""
    if isinstance(consistency, Switch):
        consistency = consistency.then
    return isinstance(consistency, SSP | ASP) and not isinstance(consistency.policy, Accept)


def needs_base(consistency: Consistency) -> bool:
    """Return True if pushes must carry the values that they were computed on."""
    return isinstance(consistency, SSP | ASP) and isinstance(consistency.policy, Compensate)

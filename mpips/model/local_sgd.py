"""Low-communication training of dense tables: LocalSGD and DiLoCo, and when they communicate.

Each worker holds the values itself and applies the table's optimizer, the inner rule, to its own pushes at
every clock: an inner step. Workers communicate at outer steps only. A worker then pushes the values that it
had from the servers minus its own ones, servers apply an outer rule to the mean of these differences over all
workers, and the workers go on with the result.

    LocalSGD   The outer rule is SGD(1.0), so workers go on with the mean of their values (S. U. Stich, "Local
               SGD Converges Fast and Communicates Little", ICLR 2019).
    DiLoCo     Any outer rule; Nesterov's momentum by default (A. Douillard et al., "DiLoCo: Distributed
               Low-Communication Training of Language Models", arXiv 2311.08105). With fragments, a delay and
               mixing: "Streaming DiLoCo with overlapping communication", arXiv 2501.18512.

Asynchronous DiLoCo: a worker does not wait at an outer step. Servers apply the outer rule to each worker's
differences as they arrive, and the worker goes on with the values of that moment: B. Liu et al.,
"Asynchronous Local-SGD Training for Language Modeling", arXiv 2401.09135. There the outer rule is
DelayedNesterov by default, and workers may make fewer inner steps by their speed (mpips.worker.local.pace).

On servers a synchronous table is a table under BSP whose optimizer is the outer rule (mpips.model.served),
and an asynchronous one is under ASP. A worker's clock at the servers counts its outer steps. So records,
journal, replicas, exactly-once and cuts are those of any table, and a restart goes back to an outer step.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar, TypeAlias

from msgspec import Meta

from mpips.errors import ConfigError
from mpips.model.accepted import check_fields, check_value, plain
from mpips.model.codec import PushCodec, codec_of
from mpips.model.optimizer import SGD, DelayedNesterov, Nesterov, Optimizer, for_workers
from mpips.model.optimizer import from_config as optimizer_from_config
from mpips.model.python_rule import PythonRule

# The package exports these names, so users write mpips.DiLoCo.
__all__ = ["DiLoCo", "LocalSGD"]

InnerSteps: TypeAlias = Annotated[int, Meta(ge=1, le=2**31 - 1)]
Fragments: TypeAlias = Annotated[int, Meta(ge=1, le=65535)]
Delay: TypeAlias = Annotated[int, Meta(ge=0, le=2**31 - 1)]
OuterBound: TypeAlias = Annotated[int, Meta(ge=0, le=2**31 - 1)]
Mix: TypeAlias = Annotated[float, Meta(ge=0, lt=1)]  # of the job file
DEFAULT_STEPS = 24
DEFAULT_MIX = 0.5  # as in the paper


@dataclass(frozen=True)
class LocalSGD:
    """Workers make steps of their own and go on with the mean of their values every `steps` clocks.

    Attributes:
        steps: Inner steps between two outer steps, H in the papers.
    """

    steps: InnerSteps = DEFAULT_STEPS
    name: ClassVar[str] = "local_sgd"

    def __post_init__(self) -> None:
        """Raise ConfigError for a number of steps that is not accepted."""
        check_fields(self)


@dataclass(frozen=True)
class DiLoCo:
    """Workers make steps of their own; servers apply an outer rule to the mean of the differences.

    Attributes:
        steps: Inner steps between two outer steps of a tensor, H in the papers.
        outer: The outer rule, or its name. Its gradient is the mean over workers of (values from the servers
            minus values of the worker); asynchronous: the difference of one worker. None: Nesterov(0.7, 0.9);
            asynchronous: DelayedNesterov(0.7, 0.9).
        fragments: Number of groups of tables that have their outer steps one after the other, equally spaced
            over `steps`, so that a link carries a part at a time.
        delay: Inner steps that a worker makes between its push and the new values: the communication overlaps
            with them. Less than the steps between two outer steps.
        mix: With a delay: share of the worker's own values when the new ones come, alpha in the paper. None:
            0.5. Without a delay workers take the new values.
        compression: Codec of the differences; see DenseTable.compression, which is the same option.
        asynchronous: Servers apply the differences of each worker when they arrive, and no worker waits for
            another at outer steps.
        bound: Asynchronous: outer steps that a worker may be ahead of the slowest one; None: any number.
        steps_by_speed: Asynchronous: a worker makes fewer than `steps` inner steps if it is slower than the
            fastest one, so that all take about the same time; at least one for each fragment.
    """

    steps: InnerSteps = DEFAULT_STEPS
    outer: Optimizer | str | None = None
    fragments: Fragments = 1
    delay: Delay = 0
    mix: float | None = None
    compression: PushCodec | str | None = None
    asynchronous: bool = False
    bound: OuterBound | None = None
    steps_by_speed: bool = False
    name: ClassVar[str] = "diloco"

    def __post_init__(self) -> None:
        """Raise ConfigError for values that are not accepted or do not fit together."""
        check_value("asynchronous", self.asynchronous, (bool,), "True")
        check_value("steps_by_speed", self.steps_by_speed, (bool,), "True")
        if self.outer is None:
            rule = DelayedNesterov(0.7, 0.9) if self.asynchronous else Nesterov(0.7, 0.9)
            object.__setattr__(self, "outer", rule)
        if isinstance(self.outer, str | Mapping):
            object.__setattr__(self, "outer", optimizer_from_config(self.outer))
        if isinstance(self.outer, PythonRule):
            raise ConfigError(
                f"outer = {self.outer.name!r} is a Python rule: the outer rule must be an optimizer of "
                "mpips, such as Nesterov(0.7, 0.9)"
            )
        check_value("outer", self.outer, (Optimizer,), "Nesterov(0.7, 0.9)")
        if isinstance(self.outer, Optimizer) and self.outer.n_row_state:
            raise ConfigError(
                f"outer = {self.outer.name!r} is a rule of rows: the outer rule is for dense tables, such as "
                "Nesterov(0.7, 0.9)"
            )
        check_fields(self)
        if self.mix is not None and not (
            isinstance(plain(self.mix), int | float) and 0 <= self.mix < 1
        ):
            raise ConfigError(f"mix = {self.mix!r}: must be at least 0 and less than 1")
        if self.fragments > self.steps:
            raise ConfigError(
                f"fragments = {self.fragments} with steps = {self.steps}: each fragment needs an inner step "
                "of its own; use as many fragments as steps at most"
            )
        if self.delay >= self.steps // self.fragments:
            raise ConfigError(
                f"delay = {self.delay} with steps = {self.steps} and fragments = {self.fragments}: must be "
                f"less than the {self.steps // self.fragments} inner steps between two outer steps"
            )
        if self.mix is not None and not self.delay:
            raise ConfigError(
                f"mix = {self.mix} without a delay has no effect: workers take the new values; remove it, or "
                "set delay"
            )
        self._check_asynchronous()
        object.__setattr__(self, "compression", codec_of(self.compression))

    def _check_asynchronous(self) -> None:
        if not self.asynchronous:
            for name, value in (("bound", self.bound), ("steps_by_speed", self.steps_by_speed)):
                if value is not None and value is not False:
                    raise ConfigError(
                        f"{name} = {value} applies only to asynchronous outer steps: remove it, or set "
                        "asynchronous"
                    )
            return
        bound = plain(self.bound)
        if bound is not None and not (type(bound) is int and 0 <= bound < 2**31):
            raise ConfigError(f"bound = {self.bound!r}: must be a whole number from 0, or None")
        if self.delay:
            raise ConfigError(
                f"delay = {self.delay} with asynchronous: a worker waits for no other there, so remove one "
                "of the two"
            )
        if self.bound is not None and self.steps_by_speed:
            raise ConfigError(
                f"bound = {self.bound} with steps_by_speed: outer steps of workers have different lengths "
                "there, so a worker could wait for one that waits for it; remove one of the two"
            )


Local: TypeAlias = LocalSGD | DiLoCo


@dataclass(frozen=True)
class OuterSteps:
    """When the tables of a job have their outer steps: `fragments` of them in a period of `steps` clocks.

    Attributes:
        steps: Inner steps of a period.
        fragments: Outer steps of a period, each of another fragment.
        delay: Inner steps after an outer step until its values are taken.
        asynchronous: Workers do not wait for each other.
        bound: Outer steps that a worker may be ahead of the slowest one; None: any number.
        by_speed: `steps` is the greatest number; each worker has its own.
    """

    steps: int
    fragments: int
    delay: int
    asynchronous: bool = False
    bound: int | None = None
    by_speed: bool = False

    def end(self, number: int) -> int:
        """Return the inner steps of a period that are done at its outer step `number`, from 0."""
        return (number + 1) * self.steps // self.fragments

    def most_behind(self, n_steps: int) -> int:
        """Return the most outer steps by which a worker that is `n_steps` inner steps behind may be behind.

        Workers that continue from images may be at different places of their periods: of n inner steps each
        has ended less than one outer step more, or less, than n * fragments / steps.
        """
        return -(-n_steps * self.fragments // self.steps) + 1

    def ended(self, n_steps: int) -> int | None:
        """Return the fragment with an outer step after `n_steps` of a period; None if no fragment has one."""
        number = -(-n_steps * self.fragments // self.steps) - 1
        return number if number >= 0 and self.end(number) == n_steps else None


def outer_steps(consistency: Local) -> OuterSteps:
    """Return when tables of this consistency have their outer steps."""
    if isinstance(consistency, LocalSGD):
        return OuterSteps(consistency.steps, 1, 0)
    c = consistency
    return OuterSteps(
        c.steps, c.fragments, c.delay, c.asynchronous, c.bound, bool(c.steps_by_speed)
    )


def outer_rule(consistency: Local, n_workers: int) -> Optimizer:
    """Return the rule that servers apply to the mean of the differences, or to those of each worker."""
    if isinstance(consistency, LocalSGD):
        return SGD(1.0)
    assert isinstance(consistency.outer, Optimizer)
    return for_workers(consistency.outer, n_workers)


def mix_of(consistency: Local) -> float:
    """Return the share of a worker's own values when new ones come."""
    if isinstance(consistency, LocalSGD) or not consistency.delay:
        return 0.0
    return DEFAULT_MIX if consistency.mix is None else float(consistency.mix)

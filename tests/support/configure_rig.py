"""A program that is killed while hyperparameters change; see test_configure_journal.

Runs as `python configure_rig.py LOAD HOW NUMBER`, like crash_rig.py, whose lives it extends: in each clock
every worker changes the hyperparameters twice, before its first push and between pushes. A life repeats the
changes of the clock that it goes on in. At the end the bits, and the hyperparameters in force, must be those
of a run that nobody disturbed.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import crash_rig
from crash_life import Life_
from crash_load import Load, dense, rows
from harness import Rig

from mpips import _native
from mpips.model.consistency import ASP, BSP, SSP
from mpips.model.optimizer import SGD, Adagrad, Adam, AdamW, Optimizer

FIELDS = ("lr", "momentum", "beta1", "beta2", "rho", "eps", "weight_decay", "clip_value")


def configure(
    rig: Rig,
    optimizer: Optimizer,
    clock: int = 0,
    *,
    worker: int = 0,
    ordinal: int = 0,
    table: int = 0,
) -> int:
    """Write a change into a worker's ring; returns the record's sequence number."""
    writer = rig.writers[worker]
    assert writer.configure(table, clock, ordinal, optimizer.native())
    return writer.next_sequence - 1


def changed(rule: Optimizer, clock: int, ordinal: int) -> Optimizer:
    """Return the hyperparameters that every worker sets at a place of its program."""
    lr = rule.lr / (2 + clock + 5 * ordinal)
    if isinstance(rule, Adam):
        return replace(rule, lr=lr, beta1=0.5 + 0.1 * clock, beta2=0.9 - 0.25 * ordinal)
    return replace(rule, lr=lr, weight_decay=0.125 * clock)


def in_force(core: _native.ServerCore, table: int) -> tuple[Any, ...]:
    """Return the hyperparameters of a table and the clock of their change."""
    config = core.optimizer(table)
    values = tuple(getattr(config, name) for name in FIELDS)
    return (core.configured_at(table), *values)


class ChangingLoad(Load):
    """Pushes between changes of the hyperparameters of all tables."""

    def _pushes(self, w: int, clock: int) -> Iterator[Any]:
        pushes = list(super()._pushes(w, clock))
        middle = len(pushes) // 2
        yield ("configure 0", w, clock)
        yield from pushes[:middle]
        yield ("configure 1", w, clock)
        yield from pushes[middle:]


class ChangingLife(Life_):
    """A life whose workers change hyperparameters."""

    def say(self, kind: str, w: int, clock: int) -> None:
        if not kind.startswith("configure"):
            return super().say(kind, w, clock)
        writer, ordinal = self.writers[w], int(kind.split()[1])
        for t, table in enumerate(self.load.tables):
            config = changed(table.optimizer, clock, ordinal).native()
            self.until(lambda t=t, c=config: writer.configure(t, clock, ordinal, c))

    def result(self) -> dict[str, bytes]:
        """All that must be as if nothing had happened."""
        found = super().result()
        for t, table in enumerate(self.load.tables):
            found[f"{table.name} hyperparameters"] = pickle.dumps(in_force(self.core, t))
        return found


def loads() -> dict[str, ChangingLoad]:
    """All loads by name."""
    found = {}
    models = {"bsp": BSP(), "backup": BSP(backup=1), "ssp": SSP(2), "asp": ASP()}
    for m, model in models.items():
        tables = [dense(300, "d", Adam(0.1), model), rows(4, "e", AdamW(0.1), model)]
        found[f"adam-{m}"] = ChangingLoad(tables, [(0, 300, ""), (1, 9, ""), (0, 300, "")])
        tables = [dense(20, "d", SGD(0.5), model), rows(4, "e", Adagrad(0.5), model)]
        found[f"small-{m}"] = ChangingLoad(tables, [(0, 20, ""), (1, 3, "")])
        tables = [dense(4, "d", Adam(0.5), model)]
        found[f"alone-{m}"] = ChangingLoad(tables, [(0, 4, "")], 1, clocks=1)
    # Rows of one push wait in their slots while other records follow.
    tables = [dense(300, "d", Adam(0.1), BSP()), rows(4, "e", SGD(0.5), ASP())]
    sizes = [(1, 9, ""), (1, 130, ""), (0, 300, "")]
    found["queued"] = ChangingLoad(tables, sizes, drain_every=7)
    tables = [dense(300, "d", Adam(0.1), BSP()), rows(4, "e", AdamW(0.1), BSP())]
    sizes = [(0, 300, ""), (1, 40, "")]
    found["pair-bsp"] = ChangingLoad(tables, sizes, drain_every=3, partner=True)
    tables = [dense(300, "d", Adam(0.1), ASP()), rows(4, "e", AdamW(0.1), ASP())]
    found["pair-asp"] = ChangingLoad(tables, sizes, 1, drain_every=3, partner=True)
    return found


crash = partial(crash_rig.crash, program=__file__)


if __name__ == "__main__":
    crash_rig.Life_ = ChangingLife  # type: ignore[misc]
    crash_rig.main(loads())

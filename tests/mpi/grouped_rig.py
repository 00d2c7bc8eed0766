"""Groups of workers in tests: who is in them, who ends when, and a session whose pulls are compared."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from playing import Session, workers_with

from mpips import DenseTable, EmbeddingTable, Worker

Float32 = NDArray[np.float32]
Group = tuple[int | tuple[int, ...], ...]  # workers and subgroups
Groups = Sequence[Group]

CLOCKS = 6


def groups_of(n_workers: int) -> Groups:
    """Return groups whose workers are no neighbours: 0, 2 and 5, and 1, 3 and 4."""
    return tuple(tuple(w for w in half if w < n_workers) for half in ((0, 2, 5), (1, 3, 4)))


def nested(n_workers: int) -> Groups:
    """Return a group with subgroups whose workers are no neighbours: 1 and 2, 0 and 4, 3, and 5 and 6."""
    parts = [tuple(w for w in part if w < n_workers) for part in ((2, 1), (0, 4), (3,), (6, 5))]
    return (tuple(part if len(part) > 1 else part[0] for part in parts if part),)


def units_of(groups: Groups, n_workers: int) -> list[int | Group]:
    """Return the groups of several workers, and each other worker by itself."""
    units: list[int | Group] = []
    inside: set[int] = set()
    for group in groups:
        workers = [w for part in group for w in ((part,) if isinstance(part, int) else part)]
        if len(workers) > 1:
            units.append(group)
            inside.update(workers)
    return units + [w for w in range(n_workers) if w not in inside]


def ends_of(n_workers: int) -> list[int]:
    """Return the clocks of each worker.

    Leaders of groups end first, and one worker of no group or of a group is left at the end.
    """
    return [CLOCKS - 2 + w for w in range(n_workers)]


def check_each_clock(
    session: Session,
    main: Callable[[Worker], list[bytes]],
    table: DenseTable | EmbeddingTable,
    expected: Callable[[Groups, Sequence[int], int], Float32],
    servers: int,
    levels: int,
    **options: Any,
) -> None:
    """Run a session in groups; compare what `main` returns of each clock with `expected`. Collective.

    `levels`: 1 or, with subgroups, 2.
    """
    n_workers = workers_with(servers)
    groups = groups_of(n_workers) if levels == 1 else nested(n_workers)
    ends = ends_of(n_workers)
    played = session(main, [table], servers=servers, topology=groups, **options)
    for found in played.values or ():
        for clock, raw in enumerate(found):
            assert raw == expected(groups, ends, clock).tobytes(), clock

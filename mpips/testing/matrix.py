"""The matrix of faults: which process ends, where, in which job, and how.

A cell is one fault in one job: (place, how) of the fault, (task, servers, transport) of the job. The tests
run a fixed sample (tests/fault/test_matrix.py). It contains each task and each way with each side of the job,
each number of servers with each transport, and each place. `python -m tests.bench kills --matrix` runs a
sample with all possible pairs of values, and `--kills` draws cells at random. To add a feature, add a row to
`PLACES`, `HOWS`, `TASKS` or `TRANSPORTS` in faults.py. Places of one group count as one value in the pairs.

A fault ends one launch or several consecutive ones (`PlannedDeath`). A launch is ended from outside
(killing.py finds the process and sends a signal) or from inside, when a process passes a fault point of
native/src/shm/fault.hpp for the n-th time.
"""

from __future__ import annotations

import functools
import itertools
import operator
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from mpips.testing.faults import (
    HOWS,
    N_WORKERS,
    PLACES,
    RECOVERY,
    SERVERS,
    SIDES,
    SLOT,
    STEPS,
    TASKS,
    TRANSPORTS,
)

_SOME = 80  # cells of a job that each step of the search for a sample compares
_START_LAUNCHES = 1.5  # cost of start and end of a run, in launches


class JobShape(msgspec.Struct, frozen=True):
    """The job of a run.

    Attributes:
        task: A key of TASKS.
        servers: Number of servers.
        transport: A key of TRANSPORTS.
    """

    task: str
    servers: int
    transport: str

    def __str__(self) -> str:
        return f"{self.task}, {self.servers} servers, {self.transport}"

    @property
    def n_ranks(self) -> int:
        """Return the number of ranks: scheduler, servers and workers."""
        return 1 + self.servers + N_WORKERS

    @property
    def settings(self) -> list[str]:
        """Return the settings of the configuration, NAME=VALUE."""
        copies = str(330 * self.servers)
        task = [text.replace("{copies}", copies) for text in TASKS[self.task].settings]
        return [*task, SLOT, f"cluster.transport={TRANSPORTS[self.transport][0]}"]

    @property
    def environment(self) -> Mapping[str, str]:
        """Return the environment variables of mpirun."""
        return TRANSPORTS[self.transport][1]


@dataclass(frozen=True)
class FaultCell:
    """One fault in one job.

    Attributes:
        place: A key of PLACES.
        how: A key of HOWS.
        shape: The job.
    """

    place: str
    how: str
    shape: JobShape

    def __str__(self) -> str:
        return f"{self.place}, {self.how}"

    @property
    def possible(self) -> bool:
        """Return True if this fault is possible in this job."""
        place, how, shape = PLACES[self.place], HOWS[self.how], self.shape
        return (
            shape.servers >= place.least_servers
            and (not place.tasks or shape.task in place.tasks)
            and (not how.places or self.place in how.places)
            and (not how.tasks or shape.task in how.tasks)
            and (not how.servers or shape.servers in how.servers)
            and (not how.transports or shape.transport in how.transports)
        )

    @functools.cached_property
    def main_pairs(self) -> set[tuple[str, str]]:
        """Return the pairs of values that the sample of the tests must contain."""
        if PLACES[self.place].tasks:
            return {("place", self.place)}
        shape = self.shape
        side = f"side {SIDES[PLACES[self.place].group]}"
        return {
            ("place", self.place),
            (f"task {shape.task}", side),
            (f"how {self.how}", side),
            (f"servers {shape.servers}", f"transport {shape.transport}"),
        }

    @functools.cached_property
    def pairs(self) -> set[tuple[str, str]]:
        """Return the pairs of values that a full sample must contain: all but those of `how` and `task`."""
        shape = self.shape
        group = f"group {PLACES[self.place].group}"
        # A place that few tasks have needs no other pairs.
        if PLACES[self.place].tasks:
            return {("place", self.place)}
        job = [
            f"task {shape.task}",
            f"servers {shape.servers}",
            f"transport {shape.transport}",
        ]
        found = set(itertools.combinations([group, *job], 2))
        found |= {(f"how {self.how}", value) for value in (group, *job[1:])}
        return found | {("place", self.place)}


class PlannedDeath(msgspec.Struct, frozen=True):
    """The end of one launch.

    Attributes:
        who: As in FaultPlace.
        fault: Part of MPIPS_FAULT for this launch, POINT:PASSAGE; "": the end comes from outside.
        early: True if the launch ends before it makes steps.
        stops: True if the process is stopped before it is killed.
        after_steps: From outside: number of steps of a worker before the end.
    """

    who: str = ""
    fault: str = ""
    early: bool = False
    stops: bool = False
    after_steps: int = 0


class Run(msgspec.Struct, frozen=True):
    """One run and its faults.

    Attributes:
        cells: The faults, in their order; all have the same job.
        seed: Seed of the passages, steps and processes that are drawn.
    """

    cells: tuple[FaultCell, ...]
    seed: int

    def __str__(self) -> str:
        return f"{self.shape}: {'; '.join(str(cell) for cell in self.cells)}"

    @property
    def shape(self) -> JobShape:
        """Return the job."""
        return self.cells[0].shape

    @property
    def settings(self) -> list[str]:
        """Return the settings of the configuration, NAME=VALUE, with those of the faults."""
        options = [text for cell in self.cells for text in HOWS[cell.how].options]
        return [*self.shape.settings, *dict.fromkeys(options)]

    @property
    def event(self) -> str:
        """Return the name of the event during the run; "": none."""
        return "".join(HOWS[cell.how].event for cell in self.cells)

    @property
    def deaths(self) -> list[PlannedDeath]:
        """Return the end of each launch but the last; the same on every call."""
        rng = random.Random(self.seed)
        return [death for cell in self.cells for death in _deaths(cell, rng)]


def _deaths(cell: FaultCell, rng: random.Random) -> Iterator[PlannedDeath]:
    place, how = PLACES[cell.place], HOWS[cell.how]
    for launch in range(how.launches):
        fault = ""
        if place.point:
            fault = f"{place.point}:{place.passage(rng, cell.shape.servers, launch > 0)}"
        yield PlannedDeath(place.who, fault, place.early, how.stops, rng.randint(*STEPS))
    if how.returns:
        yield PlannedDeath(fault=f"{rng.choice(RECOVERY)}:1")


@functools.cache
def cells() -> list[FaultCell]:
    """Return all possible cells."""
    shapes = [JobShape(*values) for values in itertools.product(TASKS, SERVERS, TRANSPORTS)]
    found = [FaultCell(*values) for values in itertools.product(PLACES, HOWS, shapes)]
    return [cell for cell in found if cell.possible]


def draw(rng: random.Random, n_cells: int, without: Iterable[str] = ()) -> Run:
    """Draw a run with random faults. Jobs are equally likely, and so are places and ways.

    Args:
        rng: Source of random numbers.
        n_cells: Number of faults.
        without: Names of HOWS that are not drawn.
    """
    shape = JobShape(rng.choice(list(TASKS)), rng.choice(SERVERS), rng.choice(list(TRANSPORTS)))
    hows = [how for how in HOWS if how not in set(without)]
    chosen: list[FaultCell] = []
    while len(chosen) < n_cells:
        cell = FaultCell(rng.choice(list(PLACES)), rng.choice(hows), shape)
        ends_it = cell.place == "unmarked" and len(chosen) + 1 < n_cells
        if cell.possible and not ends_it and _follows(cell, chosen):
            chosen.append(cell)
    return Run(tuple(chosen), rng.randrange(1 << 30))


def _follows(cell: FaultCell, before: Sequence[FaultCell]) -> bool:
    """Return True if `cell` may come after the cells `before`.

    The supervisor gives up after two consecutive launches that end before they make steps.
    """
    last = before[-1] if before else None
    if last is not None and last.place == "unmarked":
        return False  # the run has ended
    if HOWS[cell.how].is_beside and any(HOWS[c.how].is_beside for c in before):
        return False
    hurried = PLACES[cell.place].early or cell.place == "unmarked"
    return not (hurried and (last is None or PLACES[last.place].early or HOWS[last.how].returns))


# Combinations of faults that the pairs alone do not guarantee.
TOGETHER = (
    ("dense-bsp", 2, "rma", ("server", "stopped"), ("server", "stopped")),
    ("rows-bsp", 2, "p2p", ("server", "stopped"), ("between sends", "twice")),
    ("rows-bsp", 2, "shm", ("between ticks", "thrice"), ("unmarked", "once")),
    ("encoded", 2, "shm", ("between ticks", "thrice"), ("worker", "once")),
    ("local", 2, "shm", ("between ticks", "twice"), ("clock-begun", "twice")),
    # After the third consecutive failure the supervisor no longer uses memory.
    ("dense-asp", 2, "shm", ("placed", "twice"), ("worker", "once")),
)


def sample() -> list[Run]:
    """Return the runs of the fault tests: those that contain the main pairs, and those of TOGETHER."""
    found = covering(lambda cell: cell.main_pairs)
    for i, (task, servers, transport, *faults) in enumerate(TOGETHER):
        shape = JobShape(task, servers, transport)
        found.append(Run(tuple(FaultCell(*fault, shape) for fault in faults), i))
    return found


def covering(
    pairs: Callable[[FaultCell], set[tuple[str, str]]] = operator.attrgetter("pairs"),
    seed: int = 7,
    n_cells: int = 2,
) -> list[Run]:
    """Return runs that together contain all pairs; always the same for a seed.

    The search is greedy. It repeats: choose for each job the faults that add most pairs per launch, then take
    the best job.

    Args:
        pairs: Returns the pairs of a cell.
        seed: Seed of the search. Among the seeds up to 120, the default needs the fewest launches for all
            pairs.
        n_cells: Greatest number of faults in a run, 2 or more.
    """
    rng = random.Random(seed)
    by_shape: dict[JobShape, list[FaultCell]] = {}
    for cell in cells():
        by_shape.setdefault(cell.shape, []).append(cell)
    left = {pair for own in by_shape.values() for cell in own for pair in pairs(cell)}
    runs = []
    while left:
        gained, chosen = max(
            (_best(own, pairs, left, n_cells, rng) for own in by_shape.values()),
            key=lambda found: found[0],
        )
        # What happens beside the run comes first, since the last launch may be over too soon for it.
        chosen = sorted(chosen, key=lambda cell: not HOWS[cell.how].event)
        left -= {pair for cell in chosen for pair in pairs(cell)}
        if gained:
            runs.append(Run(tuple(chosen), rng.randrange(1 << 30)))
    return runs


def _best(
    own: Sequence[FaultCell],
    pairs: Callable[[FaultCell], set[tuple[str, str]]],
    left: set[tuple[str, str]],
    n_cells: int,
    rng: random.Random,
) -> tuple[float, list[FaultCell]]:
    """Return faults of one job that contain many pairs of `left`, and their pairs per launch in front."""
    chosen: list[FaultCell] = []
    held: set[tuple[str, str]] = set()
    launches = _START_LAUNCHES
    for _ in range(n_cells):
        allowed = [cell for cell in own if _follows(cell, chosen)]
        if not allowed:
            break
        best = max(
            rng.sample(allowed, min(len(allowed), _SOME)),
            key=lambda cell: len((pairs(cell) & left) - held) / HOWS[cell.how].n_launches,
        )
        chosen.append(best)
        held |= pairs(best) & left
        launches += HOWS[best.how].n_launches
    return len(held) / launches, chosen

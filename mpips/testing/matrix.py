"""The matrix of faults: which process ends, where, in which job, and how.

A cell is one fault in one job: (place, how) of the fault, (task, servers, transport) of the job. The tests
run a fixed sample that contains all possible pairs of values (tests/fault/test_matrix.py). `mpips bench
recovery --kills` draws cells at random. To add a feature, add a row to `PLACES`, `HOWS`, `TASKS` or
`TRANSPORTS`. Places of one group count as one value in the pairs, and the sample contains each place at
least once.

A fault ends one launch or several consecutive ones (`PlannedDeath`). A launch is ended from outside
(killing.py finds the process and sends a signal) or from inside, when a process passes a fault point of
native/src/shm/fault.hpp for the n-th time.
"""

from __future__ import annotations

import functools
import itertools
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import msgspec

N_WORKERS = 2
SERVERS = (1, 2, 3)
_CLOCKS = (4, 30)  # first and last clock at which a worker ends
_STEPS = (0, 40)  # least and greatest number of steps before a launch is ended from outside
_SOME = 80  # cells of a job that each step of the search for a sample compares
_START_LAUNCHES = 1.5  # cost of start and end of a run, in launches


class FaultJob(msgspec.Struct, frozen=True):
    """Tables of a job, and how the job uses them.

    Attributes:
        settings: Settings of the configuration, NAME=VALUE.
        bits: True if all tables are BSP, so that the bits of the result are those of an undisturbed run.
        evaluates: True if the job has a test file.
    """

    settings: tuple[str, ...]
    bits: bool = False
    evaluates: bool = False


_SLOT = "cluster.slot_kib=1"  # so that a push takes several records
_ROWS = ("options.dense=false", "options.pulls=true", "train.eval_every=1")
_SUM = ("table.consistency=bsp", "table.reduce=sum")
# Shards of slightly more than 512 KiB on any number of servers: `JobShape.settings` replaces {copies}. The
# small table comes first, so that its records travel in the same put as theirs.
_LARGE = (
    "options.rows=false",
    "options.copies={copies}",
    "options.small=true",
    "cluster.ring_slots=64",
)

TASKS: Mapping[str, FaultJob] = {
    "dense-bsp": FaultJob((*_LARGE, *_SUM), bits=True),
    "dense-asp": FaultJob((*_LARGE, "table.consistency=asp")),
    "rows-bsp": FaultJob((*_ROWS, *_SUM), bits=True, evaluates=True),
    "rows-asp": FaultJob((*_ROWS, "table.consistency=asp"), evaluates=True),
    "rows-ssp": FaultJob((*_ROWS, "table.consistency=ssp"), evaluates=True),
    # Dense tables under BSP, rows under ASP.
    "mixed": FaultJob(
        (
            "options.pulls=true",
            "table.consistency=asp",
            *(f"tables.{name}.consistency=bsp" for name in ("seen", "fitted")),
            *(f"tables.{name}.reduce=sum" for name in ("seen", "fitted")),
            "train.eval_every=1",
        ),
        evaluates=True,
    ),
    # One server without rows, another without a shard of one dense table.
    "gaps": FaultJob(("options.gaps=true", "options.pulls=true", *_SUM), bits=True),
}

# (setting `transport`, environment of MPI). Over TCP a short message completes before it arrives.
_TCP = {"OMPI_MCA_btl": "tcp,self"}
TRANSPORTS: Mapping[str, tuple[str, Mapping[str, str]]] = {
    "shm": ("auto", {}),
    "rma": ("rma", _TCP),
    "p2p": ("p2p", _TCP),
}


class FaultPlace(msgspec.Struct, frozen=True):
    """The place at which a launch ends.

    Attributes:
        group: Name of the group of similar places.
        who: From outside: "worker" or "server" (one at random), "scheduler", "any rank", "all ranks",
            "mpirun" or "supervisor". "": from inside, at `point`.
        point: Name of a fault point of native/src/shm/fault.hpp.
        passes: Least and greatest number of the passage that is drawn.
        clocks: "": `passes` counts passages. Otherwise it counts clocks of a worker, and `passage` computes
            the number of the passage from the number of servers.
        early: True if the launch ends before it makes steps.
        least_servers: Least number of servers that the place needs.
    """

    group: str
    who: str = ""
    point: str = ""
    passes: tuple[int, int] = (1, 1)
    clocks: str = ""
    early: bool = False
    least_servers: int = 1

    def passage(self, rng: random.Random, servers: int, again: bool) -> int:
        """Return the number of the passage at which the launch ends.

        Args:
            rng: Draws the passage.
            servers: Number of servers.
            again: True if the launch before ended at the same place; the new one ends where it ended.
        """
        first = self.passes[0] if again else rng.randint(*self.passes)
        if self.clocks == "between ticks":
            return servers * (0 if again else first) + 2
        if self.clocks == "between sends":
            # Count the sends of a clock: the worker's position to each server, then a tick to each server.
            return 2 * servers * (0 if again else first) + servers + 2
        return 1 if again and self.clocks else first


PLACES: Mapping[str, FaultPlace] = {
    "worker": FaultPlace("rank", "worker"),
    "server": FaultPlace("rank", "server"),
    "scheduler": FaultPlace("rank", "scheduler"),
    "all ranks": FaultPlace("launch", "all ranks"),
    "mpirun": FaultPlace("launch", "mpirun"),
    "supervisor": FaultPlace("launch", "supervisor"),
    "start": FaultPlace("launch", "any rank", early=True),
    # In a worker's clock.
    "clock-begun": FaultPlace("clock", "", "clock-begun", _CLOCKS, "one"),
    "placed": FaultPlace("clock", "", "placed", _CLOCKS, "one"),
    "between ticks": FaultPlace("clock", "", "ticking", _CLOCKS, "between ticks", least_servers=2),
    "between sends": FaultPlace("clock", "", "sending", _CLOCKS, "between sends", least_servers=2),
    "clock-ended": FaultPlace("clock", "", "clock-ended", _CLOCKS, "one"),
    # In a worker's push, often of several records.
    "payload": FaultPlace("push", "", "payload", (40, 150)),
    "stamped": FaultPlace("push", "", "stamped", (40, 150)),
    # In a server that applies and acknowledges.
    "word-put": FaultPlace("apply", "", "word-put", (200, 800)),
    "committed": FaultPlace("apply", "", "committed", (30, 100)),
    "acknowledged": FaultPlace("apply", "", "acknowledged", (30, 100)),
    # In a checkpoint.
    "cut-copied": FaultPlace("save", "", "cut-copied", (1, 2)),
    "block-written": FaultPlace("save", "", "block-written", (1, 3)),
    "named": FaultPlace("save", "", "named", (1, 2)),
    # At the end of the run.
    "unmarked": FaultPlace("save", "", "unmarked"),
}

RECOVERY = ("recovering", "taken-over", "resumed")


class How(msgspec.Struct, frozen=True):
    """The way in which launches end at a place.

    Attributes:
        places: Places at which it is possible; empty: all.
        tasks, servers, transports: Values of jobs in which it is possible; empty: all.
        options: Settings of the job, NAME=VALUE.
        launches: Number of consecutive launches that end at the place.
        returns: True if the next launch ends during its recovery.
        stops: True if the process is stopped for a moment before it is killed.
        event: Name of an event during the run (`mpips.testing.beside.make`); "": none.
    """

    places: tuple[str, ...] = ()
    tasks: tuple[str, ...] = ()
    servers: tuple[int, ...] = ()
    transports: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    launches: int = 1
    returns: bool = False
    stops: bool = False
    event: str = ""

    @property
    def n_launches(self) -> int:
        """Return the number of launches that end."""
        return self.launches + self.returns

    @property
    def is_beside(self) -> bool:
        """Return True if the whole run has an event or a special setting."""
        return bool(self.event or self.options)


_RANKS = ("worker", "server")
_LASTING = tuple(
    name
    for name, place in PLACES.items()
    if not place.early and place.who != "supervisor" and name != "unmarked"
)


def _beside(options: tuple[str, ...] = (), event: str = "") -> How:
    """Return a way for a few jobs with an event or a setting, in which one rank is killed."""
    tasks = ("rows-bsp", "dense-asp")
    return How(_RANKS, tasks, (2,), ("shm",), options, event=event)


HOWS: Mapping[str, How] = {
    "once": How(),
    "stopped": How(_RANKS, stops=True),
    "twice": How(_LASTING, launches=2),
    "thrice": How(tuple(p for p in _LASTING if PLACES[p].clocks), launches=3),
    "returning": How(_LASTING, returns=True),
    "helper terminated": _beside(("options.helper=terminated",)),
    "helper alive": _beside(("options.helper=alive",)),
    "disk full": _beside(event="disk"),
    "clock forward": _beside(event="forward"),
    "clock back": _beside(event="back"),
}


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
        return [*task, _SLOT, f"cluster.transport={TRANSPORTS[self.transport][0]}"]

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
            and (not how.places or self.place in how.places)
            and (not how.tasks or shape.task in how.tasks)
            and (not how.servers or shape.servers in how.servers)
            and (not how.transports or shape.transport in how.transports)
        )

    @functools.cached_property
    def pairs(self) -> set[tuple[str, str]]:
        """Return the pairs of values that a sample must contain: all but those of `how` and `task`."""
        shape = self.shape
        group = f"group {PLACES[self.place].group}"
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
        yield PlannedDeath(place.who, fault, place.early, how.stops, rng.randint(*_STEPS))
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
    # After the third consecutive failure the supervisor no longer uses memory.
    ("dense-asp", 2, "shm", ("placed", "twice"), ("worker", "once")),
)


def sample() -> list[Run]:
    """Return the runs of the fault tests: the covering runs and those of TOGETHER."""
    found = covering()
    for i, (task, servers, transport, *faults) in enumerate(TOGETHER):
        shape = JobShape(task, servers, transport)
        found.append(Run(tuple(FaultCell(*fault, shape) for fault in faults), i))
    return found


def covering(seed: int = 73, n_cells: int = 2) -> list[Run]:
    """Return runs that together contain all pairs; always the same for a seed.

    The search is greedy. It repeats: choose for each job the faults that add most pairs per launch, then take
    the best job.

    Args:
        seed: Seed of the search. Of the seeds up to 120, the default needs the fewest launches.
        n_cells: Greatest number of faults in a run, 2 or more.
    """
    rng = random.Random(seed)
    by_shape: dict[JobShape, list[FaultCell]] = {}
    for cell in cells():
        by_shape.setdefault(cell.shape, []).append(cell)
    left = {pair for own in by_shape.values() for cell in own for pair in cell.pairs}
    runs = []
    while left:
        gained, chosen = max(
            (_best(own, left, n_cells, rng) for own in by_shape.values()),
            key=lambda found: found[0],
        )
        left -= {pair for cell in chosen for pair in cell.pairs}
        if gained:
            runs.append(Run(tuple(chosen), rng.randrange(1 << 30)))
    return runs


def _best(
    own: Sequence[FaultCell], left: set[tuple[str, str]], n_cells: int, rng: random.Random
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
            key=lambda cell: len((cell.pairs & left) - held) / HOWS[cell.how].n_launches,
        )
        chosen.append(best)
        held |= best.pairs & left
        launches += HOWS[best.how].n_launches
    return len(held) / launches, chosen

"""The matrix of faults: what ends, where, in which job, and how.

A cell is one fault in one job: (place, how) of the fault, (task, servers, transport) of the job. The tests
run a fixed sample that holds the possible pairs of values (tests/fault/test_matrix.py); `mpips bench
recovery --kills` draws cells at random. A new feature joins by a row in `PLACES`, `HOWS`, `TASKS` or
`TRANSPORTS`. Places of one group count as one value for the sample, which has each of them somewhere.

A fault ends one launch or several in a row (`PlannedDeath`), each from outside (killing.py finds the
process and sends a signal) or from inside, where a process comes to a point of native/src/shm/fault.hpp for
the n-th time.
"""

from __future__ import annotations

import functools
import itertools
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

N_WORKERS = 2
SERVERS = (1, 2, 3)
_CLOCKS = (4, 30)  # first and last one that a worker ends at
_STEPS = (0, 40)  # of a launch, after which it is ended from outside
_SOME = 80  # cells of a job that the search for a sample looks at, at a time
_START_LAUNCHES = 1.5  # what start and end of a run cost


@dataclass(frozen=True)
class FaultJob:
    """Tables of a job, and how they are used.

    Attributes:
        settings: Of the configuration.
        bits: All tables are BSP: the bits of the result are those of a run without a fault.
        evaluates: There is a test file.
    """

    settings: tuple[str, ...]
    bits: bool = False
    evaluates: bool = False


_SLOT = "cluster.slot_kib=1"  # so that a push takes several records
_ROWS = ("options.dense=false", "options.pulls=true", "train.eval_every=1")
_SUM = ("table.consistency=bsp", "table.reduce=sum")
# Shards of 512 KiB and a little on any number of servers: {copies} is filled in by `settings`.
# They follow records that travel in one put with theirs.
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
    # Dense tables BSP, rows ASP.
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
    # A server without a row, another without a part of a dense table.
    "gaps": FaultJob(("options.gaps=true", "options.pulls=true", *_SUM), bits=True),
}

# Setting of the transport, and of MPI: over TCP a short message completes before it arrives.
_TCP = {"OMPI_MCA_btl": "tcp,self"}
TRANSPORTS: Mapping[str, tuple[str, Mapping[str, str]]] = {
    "shm": ("auto", {}),
    "rma": ("rma", _TCP),
    "p2p": ("p2p", _TCP),
}


@dataclass(frozen=True)
class FaultPlace:
    """Where a launch ends.

    Attributes:
        group: Of places that are alike.
        who: From outside: a role, "worker" or "server" (any of them), "any rank", "all ranks", "mpirun" or
            "supervisor". "": where `point` is passed.
        point: See native/src/shm/fault.hpp.
        passes: First and last number of passages of which one is drawn.
        clocks: `passes` counts clocks of a worker: (passages of a clock, passage in it), by the number of
            servers.
        early: Before the launch is at work.
        least_servers: That the place needs.
    """

    group: str
    who: str = ""
    point: str = ""
    passes: tuple[int, int] = (1, 1)
    clocks: str = ""
    early: bool = False
    least_servers: int = 1

    def passage(self, rng: random.Random, servers: int, again: bool) -> int:
        """The passage at which the launch ends; `again`: where the launch before has ended."""
        first = self.passes[0] if again else rng.randint(*self.passes)
        if self.clocks == "between ticks":
            return servers * (0 if again else first) + 2
        if self.clocks == "between sends":
            # A clock sends the worker's place to all servers, then the ticks.
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
    # A worker's clock.
    "clock-begun": FaultPlace("clock", "", "clock-begun", _CLOCKS, "one"),
    "placed": FaultPlace("clock", "", "placed", _CLOCKS, "one"),
    "between ticks": FaultPlace("clock", "", "ticking", _CLOCKS, "between ticks", least_servers=2),
    "between sends": FaultPlace("clock", "", "sending", _CLOCKS, "between sends", least_servers=2),
    "clock-ended": FaultPlace("clock", "", "clock-ended", _CLOCKS, "one"),
    # A worker in a push, often of several records.
    "payload": FaultPlace("push", "", "payload", (40, 150)),
    "stamped": FaultPlace("push", "", "stamped", (40, 150)),
    # A server that applies and acknowledges.
    "word-put": FaultPlace("apply", "", "word-put", (200, 800)),
    "committed": FaultPlace("apply", "", "committed", (30, 100)),
    "acknowledged": FaultPlace("apply", "", "acknowledged", (30, 100)),
    # A checkpoint.
    "cut-copied": FaultPlace("save", "", "cut-copied", (1, 2)),
    "block-written": FaultPlace("save", "", "block-written", (1, 3)),
    "named": FaultPlace("save", "", "named", (1, 2)),
    # The end of the run.
    "unmarked": FaultPlace("save", "", "unmarked"),
}

RECOVERY = ("recovering", "taken-over", "resumed")


@dataclass(frozen=True)
class How:
    """What happens at a place.

    Attributes:
        places: At which ones it can; empty: at all of them.
        tasks, servers, transports: The same of jobs.
        options: Settings of the job.
        launches: So many in a row end at the place.
        returns: The next launch ends while it comes back.
        stops: The process is stopped for a moment before it is killed.
        event: What else goes on; see killing.py.
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
        """Launches that end."""
        return self.launches + self.returns

    @property
    def is_beside(self) -> bool:
        """Something else goes on in all of the run."""
        return bool(self.event or self.options)


_RANKS = ("worker", "server")
_LASTING = tuple(
    name
    for name, place in PLACES.items()
    if not place.early and place.who != "supervisor" and name != "unmarked"
)


def _beside(options: tuple[str, ...] = (), event: str = "") -> How:
    """Something that goes on in a few jobs while one of their ranks is killed."""
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


@dataclass(frozen=True)
class JobShape:
    """The job of a run."""

    task: str
    servers: int
    transport: str

    def __str__(self) -> str:
        return f"{self.task}, {self.servers} servers, {self.transport}"

    @property
    def n_ranks(self) -> int:
        """Scheduler, servers and workers."""
        return 1 + self.servers + N_WORKERS

    @property
    def settings(self) -> list[str]:
        """Of the configuration."""
        copies = str(330 * self.servers)
        task = [text.replace("{copies}", copies) for text in TASKS[self.task].settings]
        return [*task, _SLOT, f"cluster.transport={TRANSPORTS[self.transport][0]}"]

    @property
    def environment(self) -> Mapping[str, str]:
        """Of mpirun."""
        return TRANSPORTS[self.transport][1]


@dataclass(frozen=True)
class FaultCell:
    """One fault in one job."""

    place: str
    how: str
    shape: JobShape

    def __str__(self) -> str:
        return f"{self.place}, {self.how}"

    @property
    def possible(self) -> bool:
        """Whether there is such a fault."""
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
        """What a sample must hold of the cell: its pairs of values, but for those of `how` and `task`."""
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


@dataclass(frozen=True)
class PlannedDeath:
    """The end of one launch.

    Attributes:
        who: See FaultPlace.
        fault: Of MPIPS_FAULT for this launch; "": from outside.
        early: Before it is at work.
        stops: Stopped first.
        after_steps: From outside: when a worker has made so many steps.
    """

    who: str = ""
    fault: str = ""
    early: bool = False
    stops: bool = False
    after_steps: int = 0


@dataclass(frozen=True)
class Run:
    """One run and the faults in it, one after the other."""

    cells: tuple[FaultCell, ...]
    seed: int

    def __str__(self) -> str:
        return f"{self.shape}: {'; '.join(str(cell) for cell in self.cells)}"

    @property
    def shape(self) -> JobShape:
        """The job."""
        return self.cells[0].shape

    @property
    def settings(self) -> list[str]:
        """Of the configuration."""
        options = [text for cell in self.cells for text in HOWS[cell.how].options]
        return [*self.shape.settings, *dict.fromkeys(options)]

    @property
    def event(self) -> str:
        """What else goes on; "": nothing."""
        return "".join(HOWS[cell.how].event for cell in self.cells)

    @property
    def deaths(self) -> list[PlannedDeath]:
        """The end of each launch but the last."""
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
    """All that are possible."""
    shapes = [JobShape(*values) for values in itertools.product(TASKS, SERVERS, TRANSPORTS)]
    found = [FaultCell(*values) for values in itertools.product(PLACES, HOWS, shapes)]
    return [cell for cell in found if cell.possible]


def draw(rng: random.Random, n_cells: int, without: Iterable[str] = ()) -> Run:
    """A run with faults at random; each job, then each place and way of it, as often as another."""
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
    """Two launches in a row that end before they are at work are what the supervisor gives up on."""
    last = before[-1] if before else None
    if last is not None and last.place == "unmarked":
        return False  # the run is over
    if HOWS[cell.how].is_beside and any(HOWS[c.how].is_beside for c in before):
        return False
    hurried = PLACES[cell.place].early or cell.place == "unmarked"
    return not (hurried and (last is None or PLACES[last.place].early or HOWS[last.how].returns))


# Faults that pairs do not bring together for sure.
TOGETHER = (
    ("dense-bsp", 2, "rma", ("server", "stopped"), ("server", "stopped")),
    ("rows-bsp", 2, "p2p", ("server", "stopped"), ("between sends", "twice")),
    ("rows-bsp", 2, "shm", ("between ticks", "thrice"), ("unmarked", "once")),
    # After the third death in a row the supervisor gives memory up.
    ("dense-asp", 2, "shm", ("placed", "twice"), ("worker", "once")),
)


def sample() -> list[Run]:
    """What the tests run."""
    found = covering()
    for i, (task, servers, transport, *faults) in enumerate(TOGETHER):
        shape = JobShape(task, servers, transport)
        found.append(Run(tuple(FaultCell(*fault, shape) for fault in faults), i))
    return found


def covering(seed: int = 1, n_cells: int = 2) -> list[Run]:
    """Runs of up to `n_cells` faults (two or more) that hold all pairs; always the same for a seed.

    Greedy: of each job the faults that add most for each launch they end, of all jobs the best one.
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
    """Faults of one job that together hold much of `left`, and how much they do for each launch."""
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

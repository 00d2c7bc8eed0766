"""Jobs in which launches end, the places at which they end, and the ways in which they do."""

from __future__ import annotations

import random
from collections.abc import Mapping

import msgspec

N_WORKERS = 2
SERVERS = (1, 2, 3)
_CLOCKS = (4, 30)  # first and last clock at which a worker ends
STEPS = (0, 40)  # least and greatest number of steps before a launch is ended from outside


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


SLOT = "cluster.slot_kib=1"  # so that a push takes several records
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
    # Replicated tables beside tables on servers, dense ones and rows, and nothing but replicated tables.
    "replicated": FaultJob(
        (
            "options.pulls=true",
            "options.small=true",
            *(f"tables.{name}.placement=replicated" for name in ("small", "fitted")),
            "train.eval_every=1",
            *_SUM,
        ),
        bits=True,
        evaluates=True,
    ),
    "all-replicated": FaultJob((*_LARGE, "table.placement=replicated", *_SUM), bits=True),
    # Small whole numbers are exact in bfloat16; the rounding and the scales of shared_int8 must repeat after
    # a restart. What is left of a push to the counts is a whole number, too.
    "encoded": FaultJob(
        (
            "options.pulls=true",
            "options.small=true",
            "table.compression=bf16",
            "tables.small.compression={name='randomk',fraction=0.1}",
            "tables.seen.compression={name='topk',fraction=0.1}",
            "tables.rows.compression={name='auto',codecs=['bf16','fp16']}",
            "tables.fitted.compression={name='shared_int8',block=16}",
            "tables.fitted.pull_compression=int8",
            "tables.factors.pull_compression=bf16",
            "train.eval_every=1",
            *_SUM,
        ),
        bits=True,
        evaluates=True,
    ),
    # Each gradient depends on the bits of the copy that servers and workers share, and so do the values. One
    # server has all of it, since each part is encoded by itself.
    "differences": FaultJob(
        (
            "options.pulls=true",
            "options.small=true",
            "table.compression=bf16",
            "tables.seen.pull_compression={name='topk',fraction=0.1}",
            "tables.fitted.pull_compression={name='topk',fraction=0.1}",
            "tables.fitted.partition=layer",
            "tables.small.compression={name='topk',fraction=0.1}",
            "tables.small.pull_compression=onebit",
            "train.eval_every=1",
            *_SUM,
        ),
        bits=True,
        evaluates=True,
    ),
    # The data is converted into a cache, and read in windows of a sixth of a worker's share.
    "windows": FaultJob(
        (*_ROWS, "data.memory_mib=0.02", *_SUM),
        bits=True,
        evaluates=True,
    ),
    # Workers sum their counts themselves; twice the mean over two workers is their sum. The inner state of
    # the fitted table depends on all values that a worker has had.
    "local": FaultJob(
        (
            *_LARGE,
            "table.consistency=diloco",
            "table.steps=2",
            "table.outer={name='sgd',lr=2.0}",
            "tables.fitted.outer={name='nesterov',lr=0.7,momentum=0.5}",
            "tables.fitted.compression=int8",
        ),
        bits=True,
    ),
    # The workers add their updates up before the first one pushes the sums; the small table has a residual.
    "grouped": FaultJob(
        (
            "options.pulls=true",
            "options.small=true",
            "cluster.topology=[[0,1]]",
            "tables.small.compression={name='topk',fraction=0.1}",
            "tables.seen.compression=shared_int8",
            "train.eval_every=1",
            *_SUM,
        ),
        bits=True,
        evaluates=True,
    ),
    # One server without rows, another without a shard of one dense table.
    "gaps": FaultJob(("options.gaps=true", "options.pulls=true", *_SUM), bits=True),
}
REPLICATED = ("replicated", "all-replicated")  # tasks with replicated tables
_SUMMED = (*REPLICATED, "grouped")  # tasks whose workers sum updates themselves
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
        tasks: Keys of TASKS that pass the place; empty: all.
        least_servers: Least number of servers that the place needs.
    """

    group: str
    who: str = ""
    point: str = ""
    passes: tuple[int, int] = (1, 1)
    clocks: str = ""
    early: bool = False
    least_servers: int = 1
    tasks: tuple[str, ...] = ()

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


_FEEDBACK = ("encoded", "differences", "grouped")
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
    "local-saving": FaultPlace("clock", "", "local-saving", _CLOCKS, "one", tasks=("local",)),
    # In a worker's push, often of several records.
    "payload": FaultPlace("push", "", "payload", (40, 150)),
    "stamped": FaultPlace("push", "", "stamped", (40, 150)),
    # In the sum of replicated tables.
    "contributed": FaultPlace("sum", "", "contributed", (8, 60), tasks=_SUMMED),
    "part-summed": FaultPlace("sum", "", "part-summed", (8, 60), tasks=_SUMMED),
    "summed": FaultPlace("sum", "", "summed", (8, 60), tasks=_SUMMED),
    "summed-clock": FaultPlace("sum", "", "summed-clock", _CLOCKS, "one", tasks=_SUMMED),
    # At the end of a push with a residual.
    "residual-made": FaultPlace("residual", "", "residual-made", (20, 90), tasks=_FEEDBACK),
    "residual-tagged": FaultPlace("residual", "", "residual-tagged", (20, 90), tasks=_FEEDBACK),
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
# Group of places -> the side of the job at which they are.
SIDES: Mapping[str, str] = {
    "rank": "outside",
    "launch": "outside",
    "clock": "worker",
    "push": "worker",
    "sum": "worker",
    "residual": "worker",
    "apply": "server",
    "save": "checkpoint",
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

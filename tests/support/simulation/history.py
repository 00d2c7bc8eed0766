"""One history: launches of a job, killed and changed, until a last one ends undisturbed.

`python -m simulation SEED` runs one, and `--count N` so many from this seed on (search.py).
"""

from __future__ import annotations

import os
import random
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from mpips import DenseTable, EmbeddingTable
from mpips.model.served import local_tables
from mpips.recovery.exchange import find_exchange
from mpips.recovery.memory import FILE as MEMORY
from mpips.recovery.memory import Memory
from mpips.rundir.directory import RunFolder
from mpips.session.parts import Parts
from mpips.transport.region import SHM, unlink_job
from simulation.chains import FAILS, longest_chain
from simulation.disk import Checkpoint, Disk
from simulation.dropping import Applied
from simulation.kinds import (
    MAY_GATHER,
    feature_of,
    has,
    has_losing,
    has_scaling,
)
from simulation.launch import Launch, Layout, simulated_start_up
from simulation.local import (
    LocalRounds,
    LocalStart,
    draw_local,
    floors,
    is_exact,
    is_synchronous,
    with_local,
)
from simulation.memory import Node, simulated_memory
from simulation.plateau import drawn_switch
from simulation.program import (
    KEYS,
    Contents,
    Era,
    Watch,
    draw_shape,
    lengths,
    with_a_worker_less,
    with_drops,
    with_gathers,
)
from simulation.row_limits import draw_limits, with_limits
from simulation.stages import STAGES, with_stages
from simulation.switching import change_of_models
from simulation.world import World

N_NODES = 3  # of which a launch uses two
START_UP_TURNS = 500


class Outcome(NamedTuple):
    """Numbers of launches, deaths, lost nodes, moves of ranks, eras, checkpoints and turns of a history.

    `exchanges`: changes of the size in shared memory, `files`: requests for one that ended with a file,
    `links`: checkpoints that would be links of a chain.
    """

    launches: int
    deaths: int
    losses: int
    moves: int
    eras: int
    checkpoints: int
    turns: int
    exchanges: int
    files: int
    links: int


def run(seed: int, clocks: int = 0) -> Outcome:
    """Run one history, with so many clocks of each worker in a launch; 0: the seed draws their number.

    Raises:
        AssertionError: mpips does not keep a promise, or does not come to an end.
    """
    with tempfile.TemporaryDirectory(prefix=f"mpips-simulation-{os.getpid()}-", dir=SHM) as folder:
        history = History(seed, clocks, Path(folder))
        try:
            with (
                history.world.as_time(),
                simulated_memory(history.world),
                drawn_switch(seed),
                simulated_start_up(history.disk, lambda: history.launch),
            ):
                return history.run()
        finally:
            for node in history.nodes:
                node.remove()


class History:
    """A run of one job.

    Attributes:
        launch: The launch at work.
    """

    launch: Launch

    def __init__(self, seed: int, clocks: int, folder: Path) -> None:
        self.seed, self.draws = seed, random.Random(f"history {seed}")
        self.world, self._folder = World(seed), RunFolder(folder)
        self.nodes, self.disk = (
            [Node() for _ in range(N_NODES)],
            Disk(self.world, folder / "files", longest_chain(seed)),
        )
        self.sizes = lengths(self.draws)
        self._has_residuals = self.draws.random() < 0.3
        self.clocks = clocks or self.draws.choice((4, 8, 15, 30))
        self._losses = self._moves = 0
        self.eras: list[Era] = []
        # Draws of features that few histories have.
        self._more = random.Random(f"features {seed}")
        self._feature = feature_of(seed)
        self._local = draw_local(self._more) if self._feature == "local" else None
        self._base_local: LocalStart | None = None
        self._base_floors: list[dict[int, np.ndarray]] = []
        # Nodes lost since a launch was the last to complete its start-up; and whether servers have copies.
        self._lost: set[int] = set()
        self._has_copies = False
        # Turns from the end of start-up on after which a rank of this launch dies; None: none does then.
        self._dies_in: int | None = None
        # The launch that has made the memory of the last era.
        self._memory = -1
        # Reason for which the next launch may start without memory; "": it must continue in it.
        self._may_be_cold = "there is no memory"
        # Draws of changes of the size, and requests that are left; None: there are none.
        self._adaptive = change_of_models(seed, self._feature, self.clocks)
        self._limits = draw_limits(seed, self._feature)
        if self._limits is not None:
            self.sizes["t0"] = 0
        self._is_losing = has_losing(seed)
        self._is_staged = has(seed, STAGES)
        may_scale = self._is_losing or has_scaling(seed)
        self._scaling = random.Random(f"changes {seed}") if may_scale else None
        if self._scaling:
            # Enough for a request, a cut and the clocks behind it.
            self.clocks = max(self.clocks, 15)
        self._scales_left = self._scaling.choice((2, 3, 5)) if self._scaling else 0
        # What a launch starts from if it finds no memory to continue in, by launch.
        self._starts: dict[int, Checkpoint | None] = {}
        self._exchanges = self._files = 0
        # The next launch starts from the exchange that the one before has left, or from memory made from it.
        self._must_exchange = False
        # A rank has died at work and is not replaced: the next launch leaves for one worker less.
        self._must_shrink = False

    def run(self) -> Outcome:
        """Run launches until the job has ended."""
        launches, draws = 0, self.draws
        deaths_left = max(draws.choice((0, 1, 1, 2, 3, 6)), 2 * self._is_losing)
        changes_left = draws.choice((0, 0, 1, 2))
        self._change()
        while True:
            self.disk.forget()
            self.disk.fails = self.shape.fails or FAILS * (self.disk.longest > 0)
            self._starts[launches] = self._next_start()
            self.launch = Launch(
                self.world,
                self.nodes,
                self.disk,
                self._folder,
                self.layout,
                launches,
                self.shape,
                self._begin,
                self._leaves_in(),
            )
            launches += 1
            dies_at, within, self._dies_in = None, False, None
            if deaths_left:
                within = draws.random() < 0.6
                if draws.random() < 0.15:
                    dies_at = draws.randrange(START_UP_TURNS)
                else:
                    self._dies_in = int(draws.expovariate(1 / (20 * self.clocks)))
            if self._scaling and self._must_exchange and self._scaling.random() < 0.6:
                # In a start-up from the exchange.
                dies_at, within = self._scaling.randrange(300), False
                self._dies_in = None
                deaths_left += 1
            stride = draws.choice((0, 400, 60)) if not within else 40
            before = self.world.deaths
            self.world.run(stride, dies_at, within)
            died = self.world.deaths > before
            # A rank that dies while all leave may seem to have left, or to have failed.
            if self.launch.left and (not died or self._scaling.random() < 0.5):  # type: ignore[union-attr]
                deaths_left -= died
                self._scale()
                continue
            if died:
                deaths_left -= 1
                if self.shape.drops == "backup" and self.shape.n_servers > 1:
                    self._may_be_cold = "a worker may be at two clocks"
                changes_left -= self._suffer(changes_left > 0)
                continue
            self.launch.check_end()
            self._check_last()
            if not changes_left:
                break
            changes_left -= 1
            self._lose_all()
            self._change()
        return Outcome(
            launches,
            self.world.deaths,
            self._losses,
            self._moves,
            len(self.eras),
            len(self.disk.written),
            self.world.turns,
            self._exchanges,
            self._files,
            self.disk.n_links,
        )

    def _leaves_in(self) -> int | None:
        """Return after how many turns of its scheduler the next launch is asked for another size, or None."""
        if self._is_losing:
            assert self._scaling is not None
            return 1 + int(self._scaling.expovariate(0.2)) if self._must_shrink else None
        if self._scaling is None or not self._scales_left or self._scaling.random() < 0.1:
            return None
        self._scales_left -= 1
        return 1 + int(self._scaling.expovariate(2 / self.clocks))

    def _scale(self) -> None:
        """Give the job another size after a launch that has left for it, as a supervisor does."""
        draws, left = self._scaling, self.launch.left
        assert draws is not None
        assert left is not None
        self._exchanges += left.in_memory
        self._files += not left.in_memory
        reasons = ("the disk is full", "two nodes", "it was being written when the request came")
        assert left.in_memory or str(left).endswith(reasons), f"without a reason: {left}"
        self._may_be_cold, self._must_exchange = "the size has changed", left.in_memory
        # A supervisor that is killed leaves the memory of the old size.
        if draws.random() < 0.7:
            for node in self.nodes:
                unlink_job(node.token)
            (self._folder.path / MEMORY).unlink(missing_ok=True)
        self._change()

    def _next_start(self) -> Checkpoint | None:
        """Return what the next launch must start from if it does not continue in memory."""
        if self._must_exchange:
            return self.disk.copied
        tokens = {self.nodes[node].token for node in self.layout.nodes}
        exchange = find_exchange(*tokens) if len(tokens) == 1 else None
        return self.disk.copied if self.disk.newer(exchange) else self.disk.newest

    def _change(self) -> None:
        """Change the job."""
        if self._must_shrink and self._must_exchange:
            self._must_shrink = False
            self.shape = with_a_worker_less(self.shape, self._scaling)  # type: ignore[arg-type]
            self.layout = self.layout._replace(workers=self.layout.workers[1:])
            return
        self._must_shrink = False
        shape = draw_shape(self.draws, self.sizes, self.clocks, self._has_residuals)
        if self._feature in ("backup", "reject") and self._more.random() < 0.8:
            shape = with_drops(shape, self._more, self._feature)
        # With synchronous outer steps values are fractions, which other tables would round.
        if self._local is not None and (self._more.random() < 0.9 or not is_exact(self._local)):
            shape = with_local(shape, self._local)
        if self._adaptive is not None:
            shape = self._adaptive(shape, self._more)
        elif self._feature == "gathers":
            shape = with_gathers(shape, self._more)
        elif shape.drops != "backup" and self._feature in MAY_GATHER:
            shape = shape._replace(gathers=self._more.choice((0.0, 0.0, 0.3)))
        if self._limits is not None:
            shape = with_limits(shape, self._limits)
        if self._is_staged:
            shape = with_stages(shape, self._more, self._limits is not None)
        self.shape = shape
        if self._scaling is not None and (self._must_exchange or self._scaling.random() < 0.9):
            # On one node, where the exchange is.
            node = self.layout.servers[0] if self._must_exchange else 0
            self.shape = shape._replace(has_partners=False)
            kind = self._scaling.choice(("rma", "p2p"))
            self.layout = Layout((node,) * shape.n_servers, (node,) * shape.n_workers, kind)
            return
        self._place()

    def _place(self, keeps: Sequence[int] = ()) -> None:
        """Choose where the ranks are. `keeps`: nodes where one of them must be, to reach memory there."""
        draws, shape = self.draws, self.shape
        while True:
            others = [node for node in range(N_NODES) if node not in keeps]
            nodes = [*keeps, *draws.sample(others, 2 - len(keeps))]
            draws.shuffle(nodes)
            how = draws.choice(("one", "apart", "any", "any"))
            servers = draws.choices(nodes[: 1 if how == "one" else 2], k=shape.n_servers)
            workers = draws.choices(nodes[: 1 if how == "one" else 2], k=shape.n_workers)
            if how == "apart":
                servers, workers = [nodes[0]] * shape.n_servers, [nodes[1]] * shape.n_workers
            if not {*servers, *workers}.issuperset(keeps):
                continue
            if keeps or not shape.has_partners or len(set(servers)) == 2:
                break
        self.layout = Layout(tuple(servers), tuple(workers), draws.choice(("rma", "p2p")))

    def _suffer(self, may_change: bool) -> bool:
        """Let more happen after a death; return whether the job is another one now."""
        draws = self.draws
        if not self.eras:
            return False
        if self._is_losing:
            # It must continue in memory, unless it has not yet begun in it.
            self._must_shrink = self.shape.n_workers > 1 and not self._may_be_cold
            return False
        what = draws.choice(("", "", "node", "node", "node", "away", "move", "all", "change"))
        if self._scaling is not None:
            what = draws.choice(("", "", "", "", "all", "change"))
        if self.eras[-1].has_residuals and what in ("node", "away", "move"):
            # A worker's residuals are on its node.
            return False
        if local_tables(self.shape.tables) and what in ("node", "away", "move"):
            self._may_be_cold = "workers' own values are on another node"
        if what in ("node", "away"):
            lost = draws.choice(self.layout.nodes)
            self._losses += 1
            self._lost.add(lost)
            if what == "node":
                self.nodes[lost].remove()
            if what == "away" or draws.random() < 0.5:
                # Another one in its place; one that is away may come back with old memory.
                self.layout = self.layout.with_another(lost, N_NODES)
            is_replicated = any(
                isinstance(t, DenseTable) and t.is_replicated for t in self.shape.tables
            )
            if not self._has_copies or is_replicated or len(self._lost) > 1:
                self._may_be_cold = f"nodes {self._lost} are lost"
        elif what == "move":
            self._moves += 1
            self._place(keeps=self.layout.nodes)
        elif what == "all":
            self._lose_all()
        elif what == "change" and may_change:
            self._change()  # the launch that died may have made its memory of the exchange
            self._may_be_cold, self._must_exchange = "the job has changed", False
            return True
        return False

    def _lose_all(self) -> None:
        self._may_be_cold, self._must_exchange = "there is no memory", False
        for node in self.nodes:
            node.remove()

    def _begin(self, parts: Parts) -> tuple[Era, Sequence[Watch]]:
        """Begin what workers do, or go on with it, once the first rank has started up."""
        memory = parts.generation
        if parts.saving.places:
            assert isinstance(parts.saving.origin, Memory)
            memory = parts.saving.origin.generation
        else:
            assert self._may_be_cold, f"the memory is not used: {parts.cold}"
        if memory != self._memory:
            # Also a launch that was killed at the end of its start-up may have made the memory.
            start = self._starts[memory]
            if not parts.saving.places:
                is_exchange = start is not None and start is self.disk.copied
                assert parts.saving.is_exchange == is_exchange, "not the newest start"
            self._base_local, self._base_floors = None, []
            base = self._base(start) if start is not None else None
            era = Era(self.seed, len(self.eras), self.shape, base)
            self.eras.append(era)
            self.disk.era, self._memory = era.number, memory
            self._watches: Sequence[Watch] = [Watch(era, w) for w in range(self.shape.n_workers)]
            for watch, floor in zip(self._watches, self._base_floors, strict=False):
                watch.floor = floor
            if is_synchronous(self.shape):
                era.rounds = LocalRounds(era, self._base_local)
            if self.shape.drops:
                era.applied = Applied(era, self._watches, parts.placement)
        left = [node for node in self.layout.nodes if find_exchange(self.nodes[node].token)]
        assert not left, f"an exchange is left on nodes {left}"
        if self._dies_in is not None:
            self.world.die_in(self._dies_in)
        self._may_be_cold, self._must_exchange, self._lost = "", False, set()
        self._has_copies = self.shape.has_partners and len(set(self.layout.servers)) > 1
        return self.eras[-1], self._watches

    def _base(self, start: Checkpoint) -> Contents:
        """Return what tables begin with from a checkpoint, and check it by what the program says."""
        cursors, era = [worker.cursor for worker in start.head.workers], self.eras[start.era]
        # Without a cursor of its own era a worker has not ended a clock.
        clocks = [c["clock"] if c.get("era") == era.number else 0 for c in cursors]
        if era.applied is not None:
            return self._dropped_base(start, clocks)
        expected = era.contents(clocks)
        if era.rounds is not None:
            self._local_base(start, clocks, expected)
        images: list[dict[int, Any]] = []
        if local_tables(era.shape.tables) and era.rounds is None:
            images = floors(start.path, start.head.workers, era.shape.tables)
        for i, limited in era.limited.items():
            name = era.shape.tables[i].name
            limited.check(expected.limited[i], [*start.rows.get(name, {})], start.uses.get(name))
        continues = len(local_tables(self.shape.tables)) > 0 and self.shape.n_workers == len(clocks)
        continues = continues and bool(images)
        if continues:
            self._base_floors = [{i: v for i, (v, _) in each.items()} for each in images]
        for i, table in enumerate(era.shape.tables):
            if isinstance(table, EmbeddingTable):
                found = np.zeros((KEYS, 8), np.float32)
                for key, row in start.rows.get(table.name, {}).items():
                    found[key] = row
                whole = found
            elif era.rounds is not None:
                continue
            elif images:
                found = start.dense[table.name]
                whole = found + sum(
                    image[i][1] * (np.arange(len(found)) % len(clocks) == w)
                    for w, image in enumerate(images)
                )
            else:
                # SGD has subtracted what was sent; the rest it would subtract.
                found = start.dense[table.name]
                whole = found - start.unsent(table)
            assert np.array_equal(whole, expected.of(i)), (
                f"the checkpoint at clocks {clocks} has {whole} in table {i}, not {expected.of(i)}"
            )
            later = self.shape.tables[i]
            if isinstance(later, DenseTable) and later.compression is None and not continues:
                # Residuals, or inner steps since the last outer one, are used no more.
                expected.dense[i] = found
        return expected

    def _local_base(self, start: Checkpoint, clocks: Sequence[int], expected: Contents) -> None:
        """Take what tables with synchronous outer steps begin with from a checkpoint; set `expected`."""
        era = self.eras[start.era]
        found = {i: start.dense[era.shape.tables[i].name] for i in local_tables(era.shape.tables)}
        begins = era.rounds.start_from(clocks, found)
        if self.shape.n_workers != len(clocks):
            # Only the values on servers are used.
            begins = begins._replace(workers=None)
        self._base_local = begins
        for i, values in found.items():
            expected.dense[i] = values

    def _dropped_base(self, start: Checkpoint, clocks: Sequence[int]) -> Contents:
        """Return what tables begin with from a checkpoint of an era in which servers may drop pushes."""
        era, found = self.eras[start.era], Contents({}, {})
        for i, table in enumerate(era.shape.tables):
            if isinstance(table, EmbeddingTable):
                found.rows[i] = np.zeros((KEYS, 8), np.float32)
                for key, row in start.rows.get(table.name, {}).items():
                    found.rows[i][key] = row
            else:
                found.dense[i] = start.dense[table.name]
        era.applied.check_cut(clocks, found)
        return found

    def _check_last(self) -> None:
        """Check the checkpoint at the end of a job."""
        start = self.disk.newest
        if not self.disk.fails:
            assert start is not None, "the end has no checkpoint"
            assert start.era == self.eras[-1].number, "the end has no checkpoint"
            at = tuple(worker.cursor["clock"] for worker in start.head.workers)
            # A job that differs in its program alone continues in the memory of the one before, and its era.
            shape = self.eras[-1].shape
            is_at_end = at == shape.clocks or shape.drops == "backup"
            assert is_at_end, f"the last checkpoint is at clocks {at}"
            self._base(start)

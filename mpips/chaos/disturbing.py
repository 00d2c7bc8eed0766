"""One command `mpips chaos`: from its options to the report.

`Disturbance` chooses the kinds of faults, makes the schedule, refuses what must not happen, and runs the
loop. It stores what the report needs, so that an interrupted command has a report as well.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from mpips.chaos.faults import FaultKind, KilledRank, PausedRank
from mpips.chaos.launching import LaunchedRun
from mpips.chaos.links import LinkFault
from mpips.chaos.loop import ChaosLoop, MachineClock
from mpips.chaos.observing import Observation, RunObserver
from mpips.chaos.records import check_records
from mpips.chaos.refusing import (
    only_one,
    refuse_kinds,
    refuse_place,
    refuse_restarts,
    refuse_run,
    restarts_needed,
)
from mpips.chaos.report import ChaosReport, promises_of
from mpips.chaos.schedule import FaultChoice, Intervals, PlannedFault, make_schedule
from mpips.chaos.storage import FilledDisk, FlippedBit
from mpips.chaos.undo import FaultGuard
from mpips.config.schema import JobConfig, load_config
from mpips.errors import ConfigError
from mpips.monitor.progress import plural
from mpips.rundir.directory import RunFolder
from mpips.rundir.view import view_of, view_or_damage

_QUIET_S = 10.0  # seconds without a fault at the beginning, at most; they show the usual rate
_LOOK_S = 0.1  # seconds between two observations before the loop


class ChaosOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of the command.

    Attributes:
        kill: Roles whose ranks are killed; empty: none is.
        others: Names of further kinds of faults.
        fill_disk: Folder that "fill-disk" may fill.
        leave_mib: MiB that "fill-disk" leaves free.
        every_s: Mean seconds between two faults.
        for_s: Seconds of the whole.
        longest_s: Seconds of the longest fault that lasts.
        back_s: Seconds in which the run must be at work again.
        intervals: Distribution of the times.
        seed: Seed of the schedule.
    """

    kill: tuple[str, ...]
    others: tuple[str, ...]
    fill_disk: Path | None
    leave_mib: int
    every_s: float
    for_s: float
    longest_s: float
    back_s: float
    intervals: Intervals
    seed: int

    @property
    def choices(self) -> list[FaultChoice]:
        """The kinds of faults, each as likely as the others."""
        found = [FaultChoice(kind="kill", roles=self.kill)] if self.kill else []
        for name in self.others:
            roles = ("any",) if name in ("pause", "flip-bits") else ()
            found.append(FaultChoice(kind=name, roles=roles))
        return found

    def schedule(self) -> list[PlannedFault]:
        """Return the schedule.

        Raises:
            ConfigError: It has no fault.
        """
        found = make_schedule(
            self.choices,
            self.seed,
            self.every_s,
            self.for_s,
            first_s=min(_QUIET_S, self.every_s, self.for_s / 4),
            intervals=self.intervals,
        )
        if not found:
            raise ConfigError(
                f"--for {self.for_s:g}s --every {self.every_s:g}s --seed {self.seed}: no fault happens in "
                "this time; give a longer --for, a shorter --every or another --seed"
            )
        return found


class Disturbance:
    """Faults in one run, from the beginning to the report. One per process."""

    def __init__(self, options: ChaosOptions, tell: Callable[[str], None]) -> None:
        """Take the options; `tell` prints a line for people.

        Raises:
            ConfigError: The schedule has no fault.
        """
        self._options, self._tell = options, tell
        self._schedule = options.schedule()
        self._run: RunFolder | None = None
        self._config: JobConfig | None = None
        self._loop: ChaosLoop | None = None

    def launch(self, job: str, arguments: Sequence[str], folder: Path) -> None:
        """Start a run, disturb it, and end it. Blocks.

        Raises:
            MpipsError: As in `disturb`; or the run does not start.
        """
        needed = restarts_needed(self._schedule)
        with (
            FaultGuard() as guard,
            LaunchedRun(job, arguments, folder, needed, guard) as launched,
        ):
            run = launched.run
            self._tell(f"mpips chaos: started {run.path}; its output is in {launched.log}")
            try:
                with only_one(run):
                    self._disturb(run, guard)
            finally:
                self._tell(f"mpips chaos: ending {run.path.name} after a last checkpoint")

    def disturb(self, run: RunFolder) -> None:
        """Inject the faults into a run. Blocks.

        Raises:
            ConfigError: The run is refused, or a kind of fault is impossible in it.
            ChaosError: The run makes no steps.
        """
        refuse_run(run)
        with only_one(run), FaultGuard() as guard:
            self._disturb(run, guard)

    def _disturb(self, run: RunFolder, guard: FaultGuard) -> None:
        options, config = self._options, load_config(str(run.config_file), [])
        observer = RunObserver(lambda: view_of(run))
        seen = self._await_work(run, observer)
        kinds = self._kinds(run, config, guard)
        refuse_place(run, seen, options.choices)
        refuse_kinds(kinds, seen)
        refuse_restarts(run, config, seen, self._schedule)
        self._run, self._config = run, config
        self._loop = ChaosLoop(
            observer.look,
            kinds,
            self._schedule,
            for_s=options.for_s,
            back_s=options.back_s,
            clock=MachineClock(),
            tell=self._tell,
        )
        self._tell(
            f"mpips chaos: {plural(len(self._schedule), 'fault')} in {run.path.name} with --seed "
            f"{options.seed}"
        )
        try:
            self._loop.run()
        finally:
            with contextlib.suppress(ConfigError):
                self._loop.end_quiet()

    def _await_work(self, run: RunFolder, observer: RunObserver) -> Observation:
        """Wait until all workers make steps; return what the run shows. Blocks for at most `back_s`.

        Raises:
            ConfigError: A worker makes no steps, or the run has ended.
        """
        clock = MachineClock()
        deadline = clock.monotonic() + self._options.back_s
        while True:
            seen = observer.look()
            if seen.all_move:
                return seen
            if not seen.alive or clock.monotonic() > deadline:
                raise ConfigError(
                    f"{run.path.name}: not every worker has made a step within {self._options.back_s:g} s "
                    f"({seen.state}); "
                    "faults are injected only into a run that is at work"
                )
            clock.sleep(_LOOK_S)

    def _kinds(self, run: RunFolder, config: JobConfig, guard: FaultGuard) -> dict[str, FaultKind]:
        """Return the kinds of faults of the schedule, by name."""
        options = self._options
        folder = config.checkpoint.folder
        checkpoints = Path(run.info().cwd, folder) if folder else run.checkpoints
        made: list[FaultKind] = [
            KilledRank(run.path),
            PausedRank(run.path, guard, options.longest_s),
            LinkFault("slow-link", run.path, guard, options.longest_s),
            LinkFault("partition", run.path, guard, options.longest_s),
            FlippedBit(run, checkpoints, config.redundancy.partner, guard),
        ]
        if options.fill_disk is not None:
            made.append(FilledDisk(run, options.fill_disk, options.leave_mib, options.longest_s))
        used = {choice.kind for choice in options.choices}
        return {kind.name: kind for kind in made if kind.name in used}

    def report(self, interrupted: str) -> ChaosReport | None:
        """Return the report; None: no fault could happen yet. Blocks while records are checked.

        Args:
            interrupted: Name of the signal that ended the command early; "": none.
        """
        if self._run is None or self._loop is None or self._config is None:
            return None
        loop, run = self._loop, self._run
        view = view_or_damage(run)
        newest = view.status.generation if view.status is not None else 0
        ended = range(newest if view.alive else newest + 1)
        history = check_records(run, ended, self._config.monitor.record)
        quiet, net = loop.steps.quiet_rate(), loop.steps.net_rate()
        return ChaosReport(
            run=str(run.path),
            seed=self._options.seed,
            seconds=round(loop.seconds, 3),
            state=view.state,
            interrupted=interrupted,
            faults=loop.results,
            left_out=loop.left_out,
            steps_per_s=round(net, 3),
            quiet_steps_per_s=round(quiet, 3),
            goodput=round(net / quiet, 4) if quiet else None,
            promises=promises_of(loop.results, loop.unplanned, view.state, history),
        )

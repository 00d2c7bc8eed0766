"""The plan of a supervisor: its run, its hosts, and the command of each attempt."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from mpips.config.schema import JobConfig
from mpips.config.triggers import SUPERVISED_EVERY_S
from mpips.errors import ConfigError
from mpips.monitor.progress import Snapshot
from mpips.rundir.directory import GENERATION, RUN_DIR, RunFolder, replace_json
from mpips.rundir.producers import STREAM, queue_name
from mpips.supervisor import launcher as launching
from mpips.supervisor import slurm_agent
from mpips.supervisor.hosts import HostPool, Layout
from mpips.terminal import screen

SCRIPT_MODULE = "mpips.supervisor.script"  # runs a script of the user's own in every rank
_STANDBY_MODULE = "mpips.supervisor.standby_rank"  # waits, and then runs the module behind it


class SupervisionPlan(msgspec.Struct):
    """A run, and everything that a supervisor needs to start its attempts.

    Attributes:
        run: The run directory.
        config: The resolved configuration; it and `pool` are replaced when the job gets another size.
        pool: Hosts of the run.
        launcher: The mpirun to use.
        max_restarts: Restarts after failures, at most.
        launcher_args: The user's own arguments for mpirun.
        program_args: Arguments for `mpips train` in every rank.
        show: Receives the progress of the run about twice a second; None: the ranks show it.
        shows_elapsed: A start that takes long is reported.
    """

    run: RunFolder
    config: JobConfig
    pool: HostPool
    launcher: launching.Launcher
    max_restarts: int
    launcher_args: Sequence[str] = ()
    program_args: Sequence[str] = ()
    show: Callable[[Snapshot], None] | None = None
    shows_elapsed: bool = True

    @property
    def checkpoints(self) -> Path:
        """The folder of the run's checkpoints."""
        folder = self.config.checkpoint.folder
        return Path(self.run.info().cwd, folder) if folder else self.run.checkpoints

    @property
    def queues(self) -> str:
        """Name of the queues of samples of the run."""
        # A rehearsal has no run directory.
        token = self.run.info().token if self.run.info_file.exists() else ""
        return queue_name(token, self.config.producers.stream)

    def program(self) -> list[str]:
        """Return the command that every rank executes."""
        options = self.config.run
        if options.script:
            return [sys.executable, "-m", SCRIPT_MODULE, options.script, *options.script_args]
        train = [sys.executable, "-m", "mpips", "train", str(self.run.config_file)]
        return [*train, *self.program_args]

    def environment(self, generation: int) -> dict[str, str]:
        """Return the environment of the attempt with this generation number."""
        ties = {RUN_DIR: str(self.run.path), GENERATION: str(generation), STREAM: self.queues}
        return launching.environment(
            self.launcher, ties | screen.for_ranks(), self.outer_environment()
        )

    def outer_environment(self) -> dict[str, str]:
        """Return the environment in which mpirun and the questions to hosts reach the hosts of the pool.

        Raises:
            ConfigError: Hosts of other Slurm jobs cannot be reached with this path of Python.
        """
        try:
            return slurm_agent.environment(self.pool.jobs, os.environ)
        except ValueError as error:
            raise ConfigError(str(error)) from None

    def command(
        self, generation: int, layout: Layout, hostfile: Path, waits: bool = False
    ) -> list[str]:
        """Return the command that starts the attempt with this generation number.

        Args:
            generation: Generation number of the attempt.
            layout: Its ranks and hosts.
            hostfile: The file that names the hosts.
            waits: Its ranks load everything and wait; see `mpips.supervisor.standby`.
        """
        python, dash_m, *program = self.program()
        if waits:
            program.insert(0, _STANDBY_MODULE)
        return launching.build(
            self.launcher,
            layout,
            self.environment(generation),
            hostfile,
            self.launcher_args,
            [python, dash_m, *program],
        )


def make_run(config: JobConfig, parent: Path, name: str) -> RunFolder:
    """Make a run directory `parent/<name>-<time>-<random>` that contains the resolved configuration.

    A run whose configuration sets no interval between checkpoints writes one every ten minutes.

    Raises:
        ConfigError: The directory or a file in it cannot be written.
    """
    run = RunFolder.create(parent, name)
    if not config.checkpoint.every_steps and not config.checkpoint.every_s:
        checkpoint = msgspec.structs.replace(config.checkpoint, every_s=SUPERVISED_EVERY_S)
        config = msgspec.structs.replace(config, checkpoint=checkpoint)
    try:
        replace_json(run.config_file, config, durable=True)
    except OSError as error:
        raise ConfigError(
            f"run directory {run.path}: cannot be written: {error.strerror}; use another --folder"
        ) from None
    return run

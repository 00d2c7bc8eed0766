"""Sections of a job file about its launch: [slurm], [run]."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

import msgspec
from msgspec import Meta

from mpips.errors import ConfigError

_WARNING_S = 180  # s before the time limit, in the scripts of jobs/


class SlurmConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """[slurm]: options of the jobs that `mpips submit` requests from Slurm. `mpips train` does not use it."""

    launcher: Annotated[
        Literal["mpirun", "srun", "restart"],
        Meta(description="Launcher of the ranks in the allocation; see jobs/README.md."),
    ] = "mpirun"
    nodes: Annotated[int, Meta(ge=1, description="Number of nodes, without spares.")] = 1
    ranks_per_node: Annotated[int, Meta(ge=1, description="Ranks per node.")] = 4
    time: Annotated[
        str,
        Meta(
            description="Time limit of one allocation in a form of Slurm: 04:00:00, 1-12 (days-hours), 90 "
            "(minutes) or UNLIMITED."
        ),
    ] = "01:00:00"
    spares: Annotated[
        int,
        Meta(
            ge=0,
            le=65535,
            description="Launcher restart: additional nodes that replace failed ones.",
        ),
    ] = 0
    sbatch: Annotated[
        tuple[str, ...],
        Meta(
            description="Further options of sbatch, such as --partition=gpu, --account=NAME or --mem=64G. "
            "--signal=B:USR1@600 sets the seconds before the time limit at which the job writes a checkpoint "
            "and exits (180)."
        ),
    ] = ()

    REMOVED: ClassVar[Mapping[str, str]] = {
        key: f'write slurm.sbatch = ["{flag}"]'
        for key, flag in (
            ("cpus_per_rank", "--cpus-per-task=N"),
            ("warn_s", "--signal=B:USR1@SECONDS"),
            ("partition", "--partition=NAME"),
            ("account", "--account=NAME"),
            ("qos", "--qos=NAME"),
        )
    }

    @property
    def warning_s(self) -> int:
        """Seconds before the time limit at which Slurm warns the job."""
        given = [word for word in self.sbatch if word.startswith("--signal=")]
        match = re.search(r"@(\d+)$", given[-1]) if given else None
        return int(match[1]) if match else _WARNING_S

    def check(self) -> SlurmConfig:
        """Return these options if the time limit can be read and leaves time before the warning.

        Raises:
            ConfigError: Names the option, its value and what is accepted.
        """
        limit_s = _slurm_seconds(self.time)
        if limit_s is None:
            raise ConfigError(
                f"slurm.time = {self.time!r}: must be minutes, hours:minutes:seconds, days-hours "
                "or UNLIMITED"
            )
        if limit_s <= self.warning_s:
            raise ConfigError(
                f"slurm.time = {self.time!r} with a warning {self.warning_s} s before it: the warning would "
                "come before the job has begun; give more time, or a shorter warning by "
                'slurm.sbatch = ["--signal=B:USR1@SECONDS"]'
            )
        return self


def _slurm_seconds(text: str) -> float | None:
    """Return a time limit in the forms of Slurm in seconds; None if the text has another form.

    Slurm takes UNLIMITED, INFINITE, -1 and a time of zero for no limit.
    """
    if text.lower() in ("unlimited", "infinite", "-1"):
        return math.inf
    match = re.fullmatch(r"(?:(\d+)-)?(\d+(?::\d+){0,2})", text)
    if match is None:
        return None
    parts = [int(part) for part in match[2].split(":")]
    if match[1] is not None:
        fields = [int(match[1]) * 24 + parts[0], *parts[1:], 0, 0][:3]
    else:
        # Without days one number is minutes, and two are minutes and seconds.
        fields = {1: [0, *parts, 0], 2: [0, *parts], 3: parts}[len(parts)]
    return fields[0] * 3600 + fields[1] * 60 + fields[2] or math.inf


class RunConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """[run]: options of `mpips run`, which restarts a job after failures. `mpips train` does not use it."""

    name: Annotated[
        str, Meta(description="Name of the run. Empty: that of the file, or of the task.")
    ] = ""
    folder: Annotated[str, Meta(description="Folder in which run directories are made.")] = "runs"
    ranks: Annotated[
        int,
        Meta(
            ge=0,
            description="Processes to start. 0: one per slot of the hosts, or one more than this machine has "
            "cores.",
        ),
    ] = 0
    hosts: Annotated[
        str,
        Meta(
            description="Hosts and their slots: node1:4,node2:4. Empty: the hosts of the allocation, or this "
            "machine."
        ),
    ] = ""
    hostfile: Annotated[
        str,
        Meta(description='File with a line "node1 slots=4" for each host, instead of `hosts`.'),
    ] = ""
    spares: Annotated[
        int, Meta(ge=0, description="Number of hosts, the last ones, that replace failed hosts.")
    ] = 0
    max_restarts: Annotated[
        int, Meta(ge=0, description="Failures after which the job is started again.")
    ] = 3
    min_workers: Annotated[
        int,
        Meta(
            ge=0,
            description="Continue with fewer workers, down to this number, when hosts are lost. 0: never "
            "with fewer, or in an elastic run with any number.",
        ),
    ] = 0
    max_workers: Annotated[
        int,
        Meta(
            ge=0,
            description="An elastic run has at most this number of workers; a number makes the run elastic. "
            "0: as many as its hosts have slots for.",
        ),
    ] = 0
    elastic: Annotated[
        bool,
        Meta(
            description="Take as many ranks as the hosts have slots, while the job is at work: hosts may "
            "leave and come, by a change of `hostfile` or of the Slurm allocation, or by `mpips join`."
        ),
    ] = False
    hosts_timeout_s: Annotated[
        float,
        Meta(
            ge=0,
            description="Seconds that an elastic run waits for hosts when too few are left for "
            "`min_workers`.",
        ),
    ] = 600.0
    standby: Annotated[
        bool,
        Meta(
            description="While the job is at work, a second launch loads its libraries, starts MPI and "
            "waits, so that a restart takes less time. It needs memory for these libraries once more in each "
            "rank, and is left out where this host has not enough."
        ),
    ] = True
    standby_after_s: Annotated[
        float,
        Meta(
            ge=0,
            description="Seconds at work after which an attempt gets its standby launch.",
        ),
    ] = 60.0
    mpirun_args: Annotated[
        tuple[str, ...],
        Meta(description="Further arguments of mpirun: those after `--` on the command line."),
    ] = ()
    script: Annotated[
        str, Meta(description="Python program that calls `mpips.run`, in place of a task.")
    ] = ""
    script_args: Annotated[tuple[str, ...], Meta(description="Arguments of `script`.")] = ()

    @property
    def is_elastic(self) -> bool:
        """True if the run takes as many ranks as its hosts have slots."""
        return self.elastic or self.max_workers > 0

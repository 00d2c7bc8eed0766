"""The directory of a supervised run, through which the supervisor and the ranks of its attempts communicate.

    run.json          name, id and region token of the run; written once
    config.json       the resolved configuration; written once
    lease.json        the generation that may publish; the supervisor replaces it every few seconds
    status.json       state and progress of the run; written by the scheduler during an attempt, else by
                      the supervisor
    places.json       role, host and process of every rank of the attempt; written with the first status.json
                      of an attempt
    placement.json    the decision about tables with placement = "auto"; written by the scheduler
    stages.json       where a model is cut into stages by a measurement; written by the scheduler, once
    buffers.json      sizes of the buffers under `cluster.node_buffers_mib`; written by the scheduler
    choice.json       values that a task has chosen by the training data; written by the scheduler, once
    ranks.json        activity of every rank of the attempt; written by the scheduler, shown by `mpips top`
    events.jsonl      failures and restarts, one line each; written by the supervisor and, at the start of
                      an attempt, by the scheduler
    metrics.jsonl     one line per report interval; written by the scheduler, which merges older lines now
                      and then, see `mpips.rundir.thinning`
    history.jsonl     counts of every rank every few seconds, and checkpoints; written by the scheduler, see
                      `mpips.rundir.history`
    metrics.csv, evaluations.csv, tensorboard/   other forms of these lines, where monitor.log names them;
                      written by the scheduler, see `mpips.scheduler.logs`
    statistics.json   statistics of every rank at the end of the run; written by the scheduler
    finished.json     mark that the run is done and all of it is durable; the last file that the
                      scheduler writes
    result.json       result of the run at its end
    summary.txt|json  the same for a lab book
    producers.json, producers/, queue
                      programs of [producers], see `mpips.rundir.producers`
    checkpoints/      see `mpips.checkpoint`
    requests/         requests of `mpips stop` and `mpips checkpoint`, see `mpips.rundir.requests`
    standby.json, standby-hosts, standby-N
                      what the ranks of a standby launch load, their hosts, and the mark that all wait;
                      written by the supervisor, and the last by rank 0
    logs/attempt-N/   rank-R.log, failure reports of ranks, output of the launcher; started-R.json, what a
                      rank had loaded when the job began; `alive`, an empty file that the supervisor makes
                      when the attempt begins, and whose modification time the scheduler renews every
                      second; `at-work`, an empty file that the scheduler removes at the end of the job

An attempt is one launch of the run. Attempts are numbered from 0 over all supervisors of the directory; the
number is the generation of the launch. Ranks get directory and generation from two environment variables.
Without these variables a job has no run directory.

Every file except the logs and the .jsonl files is replaced by a rename, so a reader reads either all of the
old content or all of the new content. Lines are appended to a .jsonl file in one write each; metrics.jsonl
and history.jsonl with fewer old lines replace the old ones by a rename. Each file has one writer at a time:
the supervisor writes `status.json` only when no process of an attempt is left, or the ranks of the next one
wait for `alive`. A scheduler that finds another generation in `lease.json` has been replaced and does not
write any more.

Files that grow with time: metrics.jsonl and history.jsonl, as `mpips.rundir.thinning` and
`mpips.rundir.history` describe, events.jsonl by two lines for each restart, and logs/ by what the program
and its libraries print.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import secrets
import shlex
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from mpips.errors import CheckpointError, ConfigError
from mpips.model.build import this_build
from mpips.process.path_text import check_path_text
from mpips.rundir.files import Event, Finished, Lease, Places, RankPlace, Ranks, RunInfo, Status
from mpips.rundir.reading import DAMAGED, open_regular, read_regular

RUN_DIR = "MPIPS_RUN_DIR"
GENERATION = "MPIPS_GENERATION"
_LONGEST_NAME = 200  # bytes; a time stamp follows, and file systems accept 255
STALE_S = 20.0  # s; a lease that has not been renewed for this time is free
FULL = (errno.ENOSPC, errno.EDQUOT)  # error numbers of a full disk

Struct = TypeVar("Struct", bound=msgspec.Struct)


def replace_json(path: Path, value: Any, durable: bool = False, private: bool = False) -> None:
    """Replace the content of a file in one step, by a rename.

    Args:
        path: The file.
        value: The new content, written as JSON.
        durable: Return only when the content is on the disk.
        private: Only this user may read the file.

    Raises:
        OSError: The folder cannot be written to, or the disk is full; the file is unchanged.
    """
    new = path.with_name(f".{path.name}-{secrets.token_hex(4)}")
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        with os.fdopen(os.open(new, flags, 0o600 if private else 0o666), "wb") as file:
            file.write(msgspec.json.format(msgspec.json.encode(value), indent=2) + b"\n")
            file.flush()
            if durable:
                os.fsync(file.fileno())
        os.replace(new, path)
    except BaseException:
        new.unlink(missing_ok=True)
        raise
    # Make the rename durable, too.
    if durable:
        fd = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


def version_of(path: Path) -> tuple[int, int, int]:
    """Return inode, size and modification time (ns) of a file, which change when it is replaced or touched.

    All are 0 if the file cannot be read. The function opens the file, so that a network file system
    fetches the current attributes from its server.
    """
    try:
        fd, status = open_regular(path)
    except OSError:
        return 0, 0, 0
    os.close(fd)
    return status.st_ino, status.st_size, status.st_mtime_ns


def read_json(path: Path, kind: type[Struct], within: Path | None = None) -> Struct | None:
    """Return the content of a file of the run directory; None if the file does not exist.

    Args:
        path: The file.
        kind: Its content.
        within: The run directory, if the file is in a folder of it; see `open_regular`.

    Raises:
        ConfigError: The file cannot be read, or its content is not what mpips writes there.
    """
    try:
        return msgspec.json.decode(read_regular(path, within=within), type=kind)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None
    except DAMAGED as error:
        raise ConfigError(f"{path}: is damaged ({error}); restore it, or begin a new run") from None


def check_name(name: str) -> None:
    """Refuse a name of a run that cannot be the beginning of the name of a folder.

    Raises:
        ConfigError: The name is empty or too long, or contains "/" or a character that is not printable.
    """
    if not name or not name.isprintable() or "/" in name or len(os.fsencode(name)) > _LONGEST_NAME:
        raise ConfigError(
            f"name of the run = {name!r}: must be 1 to {_LONGEST_NAME} printable characters without '/'; "
            "run.folder sets where the run directory is made"
        )


class RunFolder:
    """Paths and small files of a run directory."""

    def __init__(self, path: Path) -> None:
        """Take the path of a directory, which need not exist yet; it is made absolute."""
        self.path = path.absolute()
        self.info_file = self.path / "run.json"
        self.config_file = self.path / "config.json"
        self.lease_file = self.path / "lease.json"
        self.status_file = self.path / "status.json"
        self.places_file = self.path / "places.json"
        self.ranks_file = self.path / "ranks.json"
        self.placement_file = self.path / "placement.json"
        self.stages_file = self.path / "stages.json"
        self.buffers_file = self.path / "buffers.json"
        self.events_file = self.path / "events.jsonl"
        self.metrics_file = self.path / "metrics.jsonl"
        self.history_file = self.path / "history.jsonl"
        self.statistics_file = self.path / "statistics.json"
        self.finished_file = self.path / "finished.json"
        self.result_file = self.path / "result.json"
        self.checkpoints = self.path / "checkpoints"
        self.logs = self.path / "logs"
        self._places: Places | None = None  # content of places.json, as last read or written
        self._places_version = (0, 0, 0)  # version of the file with that content

    @property
    def again(self) -> str:
        """The command that continues the run, for a shell."""
        return f"mpips run {shlex.quote(str(self.path))}"

    @classmethod
    def create(cls, parent: Path, name: str) -> RunFolder:
        """Make the directory `parent/<name>-<time>-<random>` with its run.json.

        Raises:
            ConfigError: The directory cannot be made, the name is not accepted, or a path is not UTF-8.
        """
        check_name(name)
        check_path_text(os.getcwd(), "the working directory")
        check_path_text(parent, "run.folder")
        stamp = time.strftime("%Y%m%d-%H%M%S")
        folder = cls(parent / f"{name}-{stamp}-{secrets.token_hex(2)}")
        info = RunInfo(
            run_id=folder.path.name,
            token=secrets.token_hex(16),
            created_s=time.time(),
            cwd=os.getcwd(),
            build=this_build(),
        )
        try:
            folder.path.mkdir(parents=True)
            folder.checkpoints.mkdir()
            folder.logs.mkdir()
            # Let only this user read the token, which is part of the names of shared memory.
            replace_json(folder.info_file, info, durable=True, private=True)
        except OSError as error:
            raise ConfigError(
                f"run directory {folder.path}: cannot be made: {error.strerror}; set run.folder (--folder)"
            ) from None
        return folder

    def info(self) -> RunInfo:
        """Read name and token of the run.

        Raises:
            ConfigError: The directory is not a run directory.
        """
        info = read_json(self.info_file, RunInfo)
        if info is None:
            raise ConfigError(
                f"{self.path}: is no run directory (no run.json): give a folder that `mpips run` made"
            )
        return info

    def attempt(self, generation: int) -> Path:
        """Return the folder of the logs of an attempt."""
        return self.logs / f"attempt-{generation}"

    def alive_file(self, generation: int) -> Path:
        """Return the path of the empty file whose modification time the scheduler renews.

        The supervisor makes it, as the last file before the ranks of the attempt may go to work.
        """
        return self.attempt(generation) / "alive"

    def at_work_file(self, generation: int) -> Path:
        """Return the path of the empty file that is there while no rank of an attempt may end.

        The scheduler makes it when all ranks are at work, and removes it at the end of the job.
        """
        return self.attempt(generation) / "at-work"

    def leave_file(self, generation: int) -> Path:
        """Return the path of the file with the signal for which the job must end.

        The supervisor writes it before it sends SIGUSR1.
        """
        return self.attempt(generation) / "leave.json"

    def lease(self) -> Lease | None:
        """Read the lease; None before the first attempt."""
        return read_json(self.lease_file, Lease)

    def status(self) -> Status | None:
        """Read the state of the run, with the places of the ranks; None before the first attempt."""
        status = read_json(self.status_file, Status)
        if status is None or status.ranks:
            return status
        places = self._read_places()
        if places is None or places.generation != status.generation:
            return status
        return msgspec.structs.replace(status, ranks=places.ranks)

    def last_places(self) -> tuple[RankPlace, ...]:
        """Return the places of the last attempt that was at work; empty if they are not known."""
        with contextlib.suppress(ConfigError):
            status = self.status()
            if status is not None and status.ranks:
                return status.ranks
        places = self._read_places()
        return places.ranks if places is not None else ()

    def _read_places(self) -> Places | None:
        """Return the content of places.json; it is read again only if another attempt has written it.

        A damaged file counts as none: it is for people, and the next attempt replaces it.
        """
        version = version_of(self.places_file)
        if version != self._places_version:
            self._places, self._places_version = None, version
            with contextlib.suppress(ConfigError):
                self._places = read_json(self.places_file, Places)
        return self._places

    def write_status(self, status: Status) -> None:
        """Replace status.json, and before it places.json if that has other places.

        Raises:
            OSError: A file cannot be written; its old content is unchanged.
        """
        if status.ranks and not self._has_places(status):
            places = Places(generation=status.generation, ranks=status.ranks)
            replace_json(self.places_file, places)
            self._places, self._places_version = places, version_of(self.places_file)
        names = (name for name in Status.__struct_fields__ if name != "ranks")
        replace_json(self.status_file, {name: getattr(status, name) for name in names})

    def _has_places(self, status: Status) -> bool:
        """Return True if places.json has the places of the ranks of a status."""
        # A replaced scheduler may have written it last, between its look at the lease and its write.
        places = self._read_places()
        if places is None or places.generation != status.generation:
            return False
        return places.ranks is status.ranks or places.ranks == status.ranks

    def ranks(self) -> Ranks | None:
        """Read the activity of every rank; None before the first attempt."""
        return read_json(self.ranks_file, Ranks)

    def note(self, event: Event) -> None:
        """Append a line to events.jsonl in one write.

        Raises:
            OSError: The file cannot be written.
        """
        with self.events_file.open("ab", buffering=0) as file:
            file.write(msgspec.json.encode(event) + b"\n")

    def events(self) -> list[Event]:
        """Read failures and restarts, the oldest first; lines that are not events are skipped."""
        try:
            lines = read_regular(self.events_file).splitlines()
        except OSError:
            return []
        found = []
        for line in lines:
            with contextlib.suppress(*DAMAGED):
                found.append(msgspec.json.decode(line, type=Event))
        return found

    def finished(self) -> Finished | None:
        """Read the mark of a finished run; None if the run is not finished."""
        return read_json(self.finished_file, Finished)


class Supervised(msgspec.Struct, frozen=True):
    """Identity of the supervised run that a rank belongs to.

    Attributes:
        folder: The run directory.
        run_id: Name of the run in its checkpoints.
        token: Part of the names of the run's regions.
        generation: Generation number of this launch.
    """

    folder: RunFolder
    run_id: str
    token: str
    generation: int

    @property
    def logs(self) -> Path:
        """Folder of the logs of this attempt."""
        return self.folder.attempt(self.generation)

    def asked_to_leave(self) -> str:
        """Return the name of the signal for which the supervisor ends the job; "": it does not."""
        try:
            path = self.folder.leave_file(self.generation)
            return msgspec.json.decode(read_regular(path, within=self.folder.path), type=str)
        except (OSError, *DAMAGED):
            return ""

    def show_heartbeat(self) -> None:
        """Renew the modification time of the file `alive`, which needs no space on the disk."""
        with contextlib.suppress(OSError):
            os.utime(self.folder.alive_file(self.generation))

    def show_at_work(self, at_work: bool) -> None:
        """Make or remove the file `at-work`. Without room for it a restart only begins later."""
        path = self.folder.at_work_file(self.generation)
        with contextlib.suppress(OSError):
            if at_work:
                path.touch()
            else:
                path.unlink(missing_ok=True)

    def is_early(self) -> bool:
        """Return True until the supervisor has begun this attempt; see `mpips.supervisor.early_start`.

        Raises:
            ConfigError: The lease is damaged.
        """
        lease = self.folder.lease()
        if lease is None or lease.generation != self.generation:
            return lease is not None and lease.generation == self.generation - 1
        # Between the lease and this file the supervisor ends what is left, and chooses the hosts.
        return not self.folder.alive_file(self.generation).exists()

    def holds_lease(self) -> bool:
        """Return True while the lease names this generation, so that no later attempt has started."""
        lease = self.folder.lease()
        return lease is not None and lease.generation == self.generation

    def check_lease(self) -> None:
        """Refuse to publish after a later attempt has started.

        Raises:
            CheckpointError: The lease names another generation, or cannot be read.
        """
        try:
            held = self.holds_lease()
        except ConfigError as error:
            raise CheckpointError(str(error)) from None
        if not held:
            raise CheckpointError(
                f"attempt {self.generation} of {self.folder.path} has been replaced by a later one; "
                "it stops and publishes nothing"
            )


def current(env: Mapping[str, str] = os.environ) -> Supervised | None:
    """Return the supervised run that this process belongs to; None without `mpips run`.

    Raises:
        ConfigError: Only one of the two environment variables is set, or the folder is not a run directory.
    """
    folder, generation = env.get(RUN_DIR, ""), env.get(GENERATION, "")
    if not folder and not generation:
        return None
    if not folder or not generation.isdigit():
        raise ConfigError(
            f"{RUN_DIR} = {folder!r} and {GENERATION} = {generation!r}: must both be set, as by `mpips run`; "
            "otherwise unset both"
        )
    return _supervised(folder, int(generation))


def run_id(run: Supervised | None, token: str) -> str:
    """Return the name of the run in its checkpoints: the id of the supervised run, else the job's token."""
    return token if run is None else run.run_id


@functools.cache
def _supervised(folder: str, generation: int) -> Supervised:
    run = RunFolder(Path(folder))
    info = run.info()
    return Supervised(run, info.run_id, info.token, generation)

"""The directory of a supervised run: what the supervisor and the ranks of its attempts tell each other.

    run.json          name, id and region token of the run; written once
    config.json       the resolved configuration; written once
    lease.json        which generation may publish; replaced by the supervisor, every few seconds
    status.json       where the run stands; by the scheduler during an attempt, else by the supervisor
    ranks.json        what every rank of the attempt does, by the scheduler; see `mpips top`
    events.jsonl      failures and restarts, a line each; by the supervisor and, at its start, a scheduler
    metrics.jsonl     one line per report interval, by the scheduler
    finished.json     the run is done and all of it is durable; by the scheduler, last of all
    result.json       what the run told at its end
    summary.txt|json  the same for a lab book
    checkpoints/      see mpips.checkpoint
    logs/attempt-N/   rank-R.log, last words of ranks, what the launcher said; `alive`, which is empty and
                      whose modification time the scheduler renews every second

A *generation* (attempt) is one launch of the run; they count from 0 over the life of the directory. Ranks
learn of it by two environment variables; without them nothing here concerns them. Every file but the
logs is replaced by a rename, so whoever reads sees all of an old one or all of a new one. Each file has
one writer at a time: the supervisor writes `status.json` only when no process of an attempt is left, and a
scheduler that finds another generation in `lease.json` has been replaced and writes no more.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from mpips.errors import CheckpointError, ConfigError
from mpips.rundir.files import Event, Ranks

RUN_DIR = "MPIPS_RUN_DIR"
GENERATION = "MPIPS_GENERATION"
_LONGEST_NAME = 200  # bytes; a stamp follows, and file systems take 255
STALE_S = 20.0  # a lease that nobody has renewed for so long is nobody's
FULL = (errno.ENOSPC, errno.EDQUOT)  # error numbers of a full disk

Struct = TypeVar("Struct", bound=msgspec.Struct)


class RunInfo(msgspec.Struct, frozen=True, kw_only=True):
    """run.json.

    Attributes:
        run_id: Name of the run directory; names the run in its checkpoints.
        token: 128 random bits as hexadecimal text; names the run's regions in all generations.
        created_s: Unix time.
        cwd: Folder that relative paths of the configuration belong to.
    """

    run_id: str
    token: str
    created_s: float
    cwd: str


class Lease(msgspec.Struct, frozen=True, kw_only=True):
    """lease.json: `generation` may publish; its supervisor is `pid` on `host`.

    Attributes:
        time_s: Unix time of the last renewal, for people.
        released: The supervisor has given the run back.
        renewals: Number of times that this supervisor has written the lease. Another host observes
            that it changes, since clocks of two hosts cannot be compared.
    """

    generation: int
    host: str
    pid: int
    time_s: float
    released: bool = False
    renewals: int = 0


class RankPlace(msgspec.Struct, frozen=True, kw_only=True):
    """Where a rank of an attempt runs."""

    rank: int
    role: str
    host: str
    pid: int


class StartPoint(msgspec.Struct, frozen=True, kw_only=True):
    """What an attempt started from: "nothing", "checkpoint" or "memory", and at which step and epoch.

    `note`: which servers' memory came from elsewhere.
    """

    source: str = "nothing"
    path: str = ""
    step: int = 0
    epoch: int = 0
    note: str = ""


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """How far a run is.

    Attributes:
        epoch: Greatest epoch that a worker has reported, from 0.
        step: Steps of the run up to here: those of the start, and the greatest clock of a worker since.
        updates: Clocks of all workers since the start of this attempt, summed.
        samples: Trained on in this attempt.
        loss: Mean over the last report interval, or None.
        share: Of the whole run that is done, 0 to 1; 0 where nobody knows its length.
        n_epochs: Of the whole run, 0 where nobody knows.
        left_s: Seconds to the end at the pace of this attempt, or None.
        staleness: Mean of the updates judged lately, or None.
        push_bytes_per_s, pull_bytes_per_s: Of all workers, lately, or None.
        samples_per_s: Over the last report interval.
        recoverable: Steps that memory would bring back after a failure; 0 if only checkpoints do.
    """

    epoch: int = 0
    step: int = 0
    updates: int = 0
    samples: int = 0
    loss: float | None = None
    share: float = 0.0
    n_epochs: int = 0
    left_s: float | None = None
    staleness: float | None = None
    push_bytes_per_s: float | None = None
    pull_bytes_per_s: float | None = None
    samples_per_s: float = 0.0
    recoverable: int = 0


class Status(msgspec.Struct, frozen=True, kw_only=True):
    """status.json.

    Attributes:
        state: "starting", "running", "restarting", "done", "preempted", "failed", "stalled".
        restarts: Of this supervisor's, up to now.
        checkpoint: Newest one written by this attempt, or "".
        message: What there is to say of the state.
    """

    state: str
    generation: int
    time_s: float
    restarts: int = 0
    start: StartPoint = StartPoint()
    progress: Progress = Progress()
    checkpoint: str = ""
    ranks: tuple[RankPlace, ...] = ()
    message: str = ""


class Finished(msgspec.Struct, frozen=True, kw_only=True):
    """finished.json: everything of the run is durable."""

    generation: int
    time_s: float
    step: int
    checkpoint: str = ""


def replace_json(path: Path, value: Any, durable: bool = False, private: bool = False) -> None:
    """Give a file a new content in one step.

    Args:
        path: The file.
        value: What it shall hold.
        durable: The content survives the loss of the machine.
        private: Only this user may read the file.

    Raises:
        OSError: The folder cannot be written to, or is full; the file is as before.
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
    if durable:
        fd = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


def version_of(path: Path) -> tuple[int, int, int]:
    """Inode, size and modification time (ns) of a file; they change when it is replaced or touched.

    All are 0 if the file cannot be read. The file is opened, so that a network file system asks its
    server.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return 0, 0, 0
    try:
        status = os.fstat(fd)
    finally:
        os.close(fd)
    return status.st_ino, status.st_size, status.st_mtime_ns


def read_json(path: Path, kind: type[Struct]) -> Struct | None:
    """What a file of the run directory holds, or None if there is none.

    Raises:
        ConfigError: It is not what mpips writes there.
    """
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None
    except msgspec.DecodeError as error:
        raise ConfigError(f"{path}: is damaged ({error})") from None


def check_name(name: str) -> None:
    """Refuse a name of a run that cannot be the beginning of a folder's name.

    Raises:
        ConfigError: It is empty or too long, or holds "/" or a character that is not printable.
    """
    if not name or not name.isprintable() or "/" in name or len(os.fsencode(name)) > _LONGEST_NAME:
        raise ConfigError(
            f"the name of a run = {name!r}: 1 to {_LONGEST_NAME} printable characters without '/' are "
            "accepted; run.folder says where the run directory is made"
        )


class RunFolder:
    """Paths and small files of a run directory."""

    def __init__(self, path: Path) -> None:
        """An existing directory, or one that is being made; `path` is made absolute."""
        self.path = path.absolute()
        self.info_file = self.path / "run.json"
        self.config_file = self.path / "config.json"
        self.lease_file = self.path / "lease.json"
        self.status_file = self.path / "status.json"
        self.ranks_file = self.path / "ranks.json"
        self.events_file = self.path / "events.jsonl"
        self.metrics_file = self.path / "metrics.jsonl"
        self.finished_file = self.path / "finished.json"
        self.result_file = self.path / "result.json"
        self.checkpoints = self.path / "checkpoints"
        self.logs = self.path / "logs"

    @classmethod
    def create(cls, parent: Path, name: str) -> RunFolder:
        """Make `parent/<name>-<time>-<random>` with its run.json.

        Raises:
            ConfigError: It cannot be made, or the name leads out of `parent`.
        """
        check_name(name)
        stamp = time.strftime("%Y%m%d-%H%M%S")
        folder = cls(parent / f"{name}-{stamp}-{secrets.token_hex(2)}")
        info = RunInfo(
            run_id=folder.path.name,
            token=secrets.token_hex(16),
            created_s=time.time(),
            cwd=os.getcwd(),
        )
        try:
            folder.path.mkdir(parents=True)
            folder.checkpoints.mkdir()
            folder.logs.mkdir()
            # It holds the token, which names shared memory.
            replace_json(folder.info_file, info, durable=True, private=True)
        except OSError as error:
            raise ConfigError(
                f"run directory {folder.path}: cannot be made: {error.strerror}"
            ) from None
        return folder

    def info(self) -> RunInfo:
        """Name and token of the run.

        Raises:
            ConfigError: This is no run directory.
        """
        info = read_json(self.info_file, RunInfo)
        if info is None:
            raise ConfigError(
                f"{self.path}: is no run directory (no run.json): give a folder that `mpips run` made"
            )
        return info

    def attempt(self, generation: int) -> Path:
        """Folder of an attempt's logs."""
        return self.logs / f"attempt-{generation}"

    def alive_file(self, generation: int) -> Path:
        """The empty file whose modification time the scheduler of an attempt renews."""
        return self.attempt(generation) / "alive"

    def leave_file(self, generation: int) -> Path:
        """Where the supervisor says, before it sends SIGUSR1, for which signal the job is to end."""
        return self.attempt(generation) / "leave.json"

    def lease(self) -> Lease | None:
        """Who may publish now, or None before the first attempt."""
        return read_json(self.lease_file, Lease)

    def status(self) -> Status | None:
        """Where the run stands, or None before the first attempt."""
        return read_json(self.status_file, Status)

    def ranks(self) -> Ranks | None:
        """What every rank does, or None before the first attempt."""
        return read_json(self.ranks_file, Ranks)

    def note(self, event: Event) -> None:
        """Add a line to events.jsonl in one write.

        Raises:
            OSError: It cannot be written.
        """
        with self.events_file.open("ab", buffering=0) as file:
            file.write(msgspec.json.encode(event) + b"\n")

    def events(self) -> list[Event]:
        """Failures and restarts, the oldest first; what is no event is left out."""
        try:
            lines = self.events_file.read_bytes().splitlines()
        except OSError:
            return []
        found = []
        for line in lines:
            with contextlib.suppress(msgspec.DecodeError):
                found.append(msgspec.json.decode(line, type=Event))
        return found

    def finished(self) -> Finished | None:
        """The durable mark of a finished run, or None."""
        return read_json(self.finished_file, Finished)


@dataclass(frozen=True)
class Supervised:
    """What a rank knows of the run that it belongs to.

    Attributes:
        folder: The run directory.
        run_id: Names the run in its checkpoints.
        token: Names the run's regions.
        generation: Of this launch.
    """

    folder: RunFolder
    run_id: str
    token: str
    generation: int

    @property
    def logs(self) -> Path:
        """Folder of this attempt's logs."""
        return self.folder.attempt(self.generation)

    def asked_to_leave(self) -> str:
        """The name of the signal for which the supervisor wants the job to end, or ""."""
        try:
            return msgspec.json.decode(
                self.folder.leave_file(self.generation).read_bytes(), type=str
            )
        except (OSError, msgspec.DecodeError):
            return ""

    def show_heartbeat(self) -> None:
        """Renew the modification time of the attempt's `alive` file; a full disk does not prevent it."""
        with contextlib.suppress(OSError):
            os.utime(self.folder.alive_file(self.generation))

    def holds_lease(self) -> bool:
        """True while the lease names this generation: no later attempt has been started."""
        lease = self.folder.lease()
        return lease is not None and lease.generation == self.generation

    def check_lease(self) -> None:
        """Refuse to publish when a later attempt may do so.

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
                "it publishes nothing any more"
            )


def current(env: Mapping[str, str] = os.environ) -> Supervised | None:
    """The supervised run that this process is a rank of; None under a plain launcher or in a notebook.

    Raises:
        ConfigError: The environment names a run directory that is none.
    """
    folder, generation = env.get(RUN_DIR, ""), env.get(GENERATION, "")
    if not folder and not generation:
        return None
    if not folder or not generation.isdigit():
        raise ConfigError(
            f"{RUN_DIR} = {folder!r} and {GENERATION} = {generation!r}: `mpips run` sets both, or unset them"
        )
    return _supervised(folder, int(generation))


def run_id(run: Supervised | None, token: str) -> str:
    """Return what names the run in its checkpoints: the supervised run's id, else the job's token."""
    return token if run is None else run.run_id


@functools.cache
def _supervised(folder: str, generation: int) -> Supervised:
    run = RunFolder(Path(folder))
    info = run.info()
    return Supervised(run, info.run_id, info.token, generation)

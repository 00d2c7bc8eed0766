"""The modules and variables of the ranks of an attempt when its job began, for standby launches.

The scheduler, the first server and the first worker write `logs/attempt-N/started-RANK.json` at the start of
the job, each its own file. The supervisor joins them when it prepares a standby launch; see
`mpips.supervisor.standby`.
"""

from __future__ import annotations

import os
import sys
import sysconfig
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import ModuleType

import msgspec

from mpips.errors import ConfigError
from mpips.mpi import launch
from mpips.process import rank_mark
from mpips.rundir.directory import RunFolder, Supervised, read_json, replace_json

# Variables that `load_mpi` sets.
_OF_MPI = ("OMPI_MCA_osc", "OMPI_MCA_mpi_yield_when_idle", rank_mark.MARK)
# These run as the main program, or are the program of a user.
_MAIN = ("__main__", "__mp_main__", "mpips.__main__", "mpips.supervisor.script")


class Started(msgspec.Struct, frozen=True, kw_only=True):
    """started-RANK.json.

    Attributes:
        modules: Files of the modules that the rank had loaded, by name and in their order; "" for those
            within the interpreter. Modules of the user's own folders are left out.
        environment: Environment variables that had been changed since the start of the process, with their
            values; None: removed.
        own_mpi: The program had started MPI by itself, on several ranks.
    """

    modules: dict[str, str]
    environment: dict[str, str | None]
    own_mpi: bool = False


def started_file(run: RunFolder, generation: int, rank: int) -> Path:
    """Return the path of the record of a rank."""
    return run.attempt(generation) / f"started-{rank}.json"


def note(run: Supervised, role: str) -> None:
    """Write the record of this process if its role is one of three that stand for all. Not collective.

    Args:
        run: The supervised run.
        role: Roles of this rank, as `Outcome.role`.

    A record that cannot be written is left out: then there is no standby launch.
    """
    roles = {part.strip() for part in role.replace(",", "+").split("+")}
    if not roles & {"scheduler", "server 0", "worker 0"}:
        return
    own_mpi = launch.launched_size() > 1 and launch.mpi_is_up() and not launch.started_mpi()
    record = Started(modules=installed(), environment=changes(), own_mpi=own_mpi)
    try:
        replace_json(started_file(run.folder, run.generation, launch.launched_rank()), record)
    except OSError:
        return


def joined(run: RunFolder, generation: int) -> Started | None:
    """Return the records of an attempt as one; None if none can be read."""
    modules: dict[str, str] = {}
    environment: dict[str, str | None] = {}
    own_mpi = found = False
    for path in sorted(run.attempt(generation).glob("started-*.json")):
        try:
            record = read_json(path, Started, within=run.path)
        except ConfigError:
            continue
        if record is not None:
            found = True
            modules |= record.modules
            environment |= record.environment
            own_mpi = own_mpi or record.own_mpi
    if not found:
        return None
    return Started(modules=modules, environment=environment, own_mpi=own_mpi)


def installed(modules: Mapping[str, ModuleType] | None = None) -> dict[str, str]:
    """Return the files of the loaded modules that are part of Python, of mpips or of an installed package.

    Args:
        modules: Modules by name; None: those of this process.
    """
    folders = [
        *(sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib"))
    ]
    folders.append(str(Path(__file__).parents[1]))
    places = tuple({os.path.join(os.path.realpath(folder), "") for folder in folders if folder})
    found = {}
    for name, module in list((sys.modules if modules is None else modules).items()):
        origin = origin_of(module)
        if name not in _MAIN and origin is not None and _is_within(origin, places):
            found[name] = origin
    return found


def _is_within(origin: str, places: tuple[str, ...]) -> bool:
    return not origin or os.path.realpath(origin).startswith(places)


def origin_of(module: object) -> str | None:
    """Return the file of a module; "" if it is within the interpreter, None if it was made by a program."""
    spec = getattr(module, "__spec__", None)
    if spec is None:
        return None
    origin = spec.origin
    if origin in ("built-in", "frozen"):
        return ""
    return origin if isinstance(origin, str) and spec.has_location else None


def changes(without: Iterable[str] = _OF_MPI) -> dict[str, str | None]:
    """Return the environment variables that this process has changed since its start; None: removed.

    Args:
        without: Variables to leave out.
    """
    try:
        lines = Path("/proc/self/environ").read_bytes().split(b"\0")
    except OSError:
        return {}
    began = dict(os.fsdecode(line).partition("=")[::2] for line in lines if b"=" in line)
    names = (began.keys() | os.environ.keys()) - set(without)
    return {
        name: os.environ.get(name)
        for name in sorted(names)
        if began.get(name) != os.environ.get(name)
    }

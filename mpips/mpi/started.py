"""The modules and variables of the ranks of an attempt when its job began, for standby launches.

The scheduler, the first server and the first worker write `logs/attempt-N/started-RANK.json` at the start of
the job, each its own file. The supervisor joins them when it prepares a standby launch; see
`mpips.supervisor.standby`.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import sys
import sysconfig
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType

import msgspec

from mpips.errors import ConfigError
from mpips.mpi import launch
from mpips.process import rank_mark
from mpips.rundir.directory import RunFolder, Supervised, read_json, replace_json

# Variables that `load_mpi` sets.
_OF_MPI = ("OMPI_MCA_osc", "OMPI_MCA_mpi_yield_when_idle", rank_mark.MARK)
# Variables that programs set at their beginning and that only the libraries concerned read. Libraries read
# those of the first row when they are loaded, so a standby launch sets them meanwhile.
_PRESET = ("KERAS_BACKEND", "TOKENIZERS_PARALLELISM", "HF_", "TF_CPP_")
_UNREAD = ("WANDB_", "MLFLOW_")
_HARMLESS = (*_PRESET, *_UNREAD)
_SECRET = (
    "KEY",
    "TOKEN",
    "PASSWORD",
    "SECRET",
)  # parts of the names of variables that no file may contain
# These run as the main program, or are the program of a user.
_MAIN = ("__main__", "__mp_main__", "mpips.__main__", "mpips.supervisor.script")


class Started(msgspec.Struct, frozen=True, kw_only=True):
    """started-RANK.json.

    Attributes:
        modules: Files of the modules that the rank had loaded, by name and in their order; "" for those
            within the interpreter. Modules of the user's own folders are left out.
        environment: Environment variables that had been changed since the start of the process, with
            checksums of their values, which may be secret; None: removed.
        preset: Changed variables that libraries may read when they are loaded, with their values.
        own_mpi: The program had started MPI by itself, on several ranks.
    """

    modules: dict[str, str]
    environment: dict[str, str | None]
    preset: dict[str, str] = msgspec.field(default_factory=dict)
    own_mpi: bool = False


def started_file(run: RunFolder, generation: int, rank: int) -> Path:
    """Return the path of the record of a rank."""
    return run.attempt(generation) / f"started-{rank}.json"


def note(run: Supervised, role: str) -> None:
    """Write the record of this process if its role is one of three that stand for all. Not collective.

    Args:
        run: The supervised run.
        role: Roles of this rank, as `Outcome.role`.

    A record that cannot be made or written is left out: then there is no standby launch.
    """
    roles = {part.strip() for part in role.replace(",", "+").split("+")}
    if not roles & {"scheduler", "server 0", "worker 0"}:
        return
    began = environment_at_start()
    if not began:
        return
    own_mpi = launch.launched_size() > 1 and launch.mpi_is_up() and not launch.started_mpi()
    record = Started(
        modules=installed(), environment=changes(began), preset=preset(began), own_mpi=own_mpi
    )
    # A name or a value that is not UTF-8 is a ValueError.
    with contextlib.suppress(OSError, ValueError):
        replace_json(started_file(run.folder, run.generation, launch.launched_rank()), record)


def joined(run: RunFolder, generation: int) -> Started | None:
    """Return the records of an attempt as one; None if none can be read."""
    modules: dict[str, str] = {}
    environment: dict[str, str | None] = {}
    preset: dict[str, str] = {}
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
            # A variable that differs between ranks cannot be set for all of them.
            differing = {
                name
                for name in record.preset
                if preset.get(name, record.preset[name]) != record.preset[name]
            }
            environment |= dict.fromkeys(differing, "")
            preset |= record.preset
            own_mpi = own_mpi or record.own_mpi
    if not found:
        return None
    return Started(modules=modules, environment=environment, preset=preset, own_mpi=own_mpi)


def installed(modules: Mapping[str, ModuleType] | None = None) -> dict[str, str]:
    """Return the files of the loaded modules that are part of Python, of mpips or of an installed package.

    Args:
        modules: Modules by name; None: those of this process.
    """
    folders = [
        *(sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib"))
    ]
    folders.append(str(Path(__file__).parents[1]))
    # Packages of the user, of the system, or of a module of the site.
    installs = ("site-packages", "dist-packages")
    folders += [folder for folder in sys.path if os.path.basename(folder) in installs]
    places = tuple({os.path.join(os.path.realpath(folder), "") for folder in folders if folder})
    within = {"": True}  # by folder; a folder of packages may contain links to files elsewhere
    found = {}
    for name, module in list((sys.modules if modules is None else modules).items()):
        origin = origin_of(module)
        if name in _MAIN or origin is None:
            continue
        folder = os.path.dirname(origin)
        if folder not in within:
            within[folder] = os.path.join(os.path.realpath(folder), "").startswith(places)
        if within[folder]:
            found[name] = origin
    return found


def origin_of(module: object) -> str | None:
    """Return the file of a module; "" if it is within the interpreter, None if it was made by a program."""
    # Programs put objects of any kind into sys.modules; some raise errors when an attribute is read.
    try:
        spec = getattr(module, "__spec__", None)
        origin, has_location = getattr(spec, "origin", None), getattr(spec, "has_location", False)
    except Exception:
        return None
    if not isinstance(origin, str) or "\0" in origin:
        return None
    if origin in ("built-in", "frozen"):
        return ""
    return origin if has_location else None


def environment_at_start(file: str = "/proc/self/environ") -> dict[str, str]:
    """Return the environment with which this process has started.

    Empty: unknown, as in a process that has changed its title, which the kernel takes from the same memory.
    """
    try:
        lines = Path(file).read_bytes().split(b"\0")
    except OSError:
        return {}
    return dict(os.fsdecode(line).partition("=")[::2] for line in lines if b"=" in line)


def changes(began: Mapping[str, str]) -> dict[str, str | None]:
    """Return the environment variables that this process has changed, with checksums; None: removed.

    Variables that only the libraries concerned read are left out; see `preset`.

    Args:
        began: The environment with which it has started.
    """
    found = {}
    for name in sorted((began.keys() | os.environ.keys()) - set(_OF_MPI)):
        value = os.environ.get(name)
        if began.get(name) == value or name.startswith(_HARMLESS if value is not None else _UNREAD):
            continue
        found[name] = (
            value if value is None else hashlib.sha256(os.fsencode(value)).hexdigest()[:16]
        )
    return found


def preset(began: Mapping[str, str]) -> dict[str, str]:
    """Return the changed variables that libraries may read when they are loaded, with their values.

    Args:
        began: The environment with which this process has started.
    """
    return {
        name: value
        for name, value in sorted(os.environ.items())
        if name.startswith(_PRESET)
        and began.get(name) != value
        and not any(part in name for part in _SECRET)
    }

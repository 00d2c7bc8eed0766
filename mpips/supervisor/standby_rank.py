"""One rank of a standby launch: load what the last attempt had loaded, start MPI, and wait.

    python -m mpips.supervisor.standby_rank MODULE [ARGUMENT ...]

`mpips.supervisor.standby` starts it in place of `python -m MODULE ARGUMENT ...`. Rank 0 reads a line from
stdin: "go" lets all ranks run the module as the main program, in this process; the end of stdin ends them.
Until then no rank has done anything of the job: the program begins at its first line, with the arguments,
environment variables and random states of any other attempt.

A rank that cannot be sure of that prints why and ends, and with it the standby launch. So it does if the
program changes variables that libraries read when they are loaded, starts MPI by itself, or has a module with
the name of a loaded one, or if a module is now another file.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.machinery
import os
import runpy
import sys
import time
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from mpips.errors import MpipsError
from mpips.mpi import launch
from mpips.mpi.early_end import end_launch
from mpips.mpi.started import Started, changes, environment_at_start, origin_of
from mpips.rundir.directory import current, read_json
from mpips.supervisor.plan import SCRIPT_MODULE
from mpips.supervisor.standby import GO, REASON, marker, record_file

if TYPE_CHECKING:
    from mpi4py import MPI

_PAUSE_S = 0.01  # s between two tests for the message of rank 0
_OOM = "/proc/self/oom_score_adj"
_before: list[str] = []  # content of this file at the start of the process
_SAME = "unchanged"  # in place of a checksum


def unfit(record: Started, folder: str) -> str:
    """Load the modules of a record; return why the program could now behave differently, or "".

    With several ranks it starts MPI where the last attempt did: collective over them, blocking.

    Args:
        record: The record of the last attempt.
        folder: Folder in which the program finds its own modules before all others.
    """
    if record.own_mpi:
        return "the program starts MPI by itself"
    # The program sets these variables itself, if they are to have another value than at its start.
    before = {name: os.environ.get(name) for name in record.preset}
    os.environ.update(record.preset)
    # `python -m` looks into the working folder first, where the modules of the user are.
    first = sys.path.pop(0) if sys.path[:1] == [os.getcwd()] else None
    try:
        reason = _load(record)
    finally:
        if first is not None:
            sys.path.insert(0, first)
        for name, value in before.items():
            if value is not None:
                os.environ[name] = value
            else:
                os.environ.pop(name, None)
    return reason or _hides(record, folder) or _differing(record)


def _load(record: Started) -> str:
    """Load the modules of a record, and MPI where it was loaded; return why one is another file, or ""."""
    several = launch.launched_size() > 1
    for name, origin in record.modules.items():
        # Loading mpi4py.MPI would start MPI with the settings of mpi4py.
        if several and name.partition(".")[0] == "mpi4py":
            launch.load_mpi()
        # A module that cannot be loaded here fails again where the program needs it, or is not needed.
        with contextlib.suppress(Exception):
            importlib.import_module(name)
        found = origin_of(sys.modules.get(name))
        if found is not None and found != origin:
            return f"module {name} is now {found}"
    return ""


def _hides(record: Started, folder: str) -> str:
    """Return which loaded module takes the place of one in `folder`, or ""."""
    for name in list(sys.modules):
        if "." in name or name in record.modules or name == "__main__":
            continue
        spec = importlib.machinery.PathFinder.find_spec(name, [folder])
        if spec is not None and spec.has_location:
            return f"{spec.origin} has the name of an installed module; rename it"
    return ""


def _differing(record: Started) -> str:
    """Return which variables the program changes and the modules do not, or ""."""
    own = changes(environment_at_start())
    differing = sorted(
        name
        for name in own.keys() | record.environment.keys()
        if own.get(name, _SAME) != record.environment.get(name, _SAME)
    )
    if differing:
        return (
            f"the program changes {', '.join(differing)} in its environment; set "
            f"{'them' if len(differing) > 1 else 'it'} before `mpips run`"
        )
    return ""


def wait(comm: MPI.Intracomm | None) -> bool:
    """Wait until the supervisor lets this launch begin; return False if it does not. Collective, blocking.

    Args:
        comm: All ranks; None: this process is the only one.

    Rank 0 sleeps in a read, which the end of the supervisor ends. The others test for its message with pauses
    in between, so the wait hardly uses a core. If a rank has died, the launcher ends the others. For one that
    is stopped the supervisor waits `_READY_S` at most, and after the release the start of the job names it.
    """
    answer = np.zeros(1, dtype=np.int8)
    if comm is None or comm.Get_rank() == 0:
        answer[0] = sys.stdin.buffer.readline() == GO
    if comm is not None:
        request = comm.Ibcast(answer, root=0)
        while not request.Test():
            time.sleep(_PAUSE_S)
    return bool(answer[0])


def _assemble(comm: MPI.Intracomm) -> None:
    """Wait for all ranks. Collective, blocking."""
    request = comm.Ibarrier()
    while not request.Test():
        time.sleep(_PAUSE_S)


def _be_killed_first(first: bool) -> None:
    """Let the kernel kill this process before others if memory runs out, or no longer."""
    if not first and not _before:
        return
    with contextlib.suppress(OSError):
        if first:
            with open(_OOM) as file:
                _before.append(file.read())
        with open(_OOM, "w") as file:
            file.write("1000" if first else _before.pop())


def _leave(reason: str) -> NoReturn:
    """End this process, which prevents the standby launch, and say why."""
    # For `mpips run`, not for people.
    sys.stderr.write(f"{REASON}{reason}\n")
    sys.stderr.flush()
    # The other ranks wait for this one in MPI, and a launcher does not end them if the code is 0.
    if not launch.mpi_is_up():
        end_launch(1)
    os._exit(1)


def main() -> None:
    """Prepare, wait, and become the rank that the command line describes."""
    module, sys.argv = sys.argv[1], sys.argv[1:]
    folder = os.getcwd()
    if module == SCRIPT_MODULE:
        folder = os.path.dirname(os.path.abspath(sys.argv[1]))
    try:
        run = current()
        record = read_json(record_file(run.folder), Started) if run is not None else None
    except MpipsError as error:
        _leave(str(error))
    if run is None or record is None:
        _leave("no record of the last attempt")
    _be_killed_first(True)
    comm: Any = None
    try:
        reason = unfit(record, folder)
        if not reason and launch.launched_size() > 1:
            comm = launch.load_mpi()
    except MpipsError as error:
        reason = str(error)
    if reason:
        _leave(reason)
    if comm is not None:
        _assemble(comm)
    if launch.launched_rank() == 0:
        marker(run.folder, run.generation).touch()
    if not wait(comm):
        return
    _be_killed_first(False)
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()

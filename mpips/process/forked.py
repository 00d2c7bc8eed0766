"""Forked children of a rank: what they give up at the fork, and how they end.

A process pool or a data loader forks a worker's process. The child inherits the handlers and the wakeup
descriptor of signals, locks on shared memory and folders, and a worker that writes into the parent's rings.
Without this module a SIGTERM to the child would end the parent's job, and a push of the child would
overwrite a push of the parent. So each object that must not be used in a child registers here, and its
`disown` runs in every child that Python forks. The native module itself closes the locks on shared memory
(native/src/shm/shared_memory.cpp). A child keeps what is harmless: mapped memory that it only reads, the
handler of SIGUSR1 (so that a signal sent to a whole job does not end the child), and the log. If mpips has
started MPI, no child finalizes it.

Programs started by `exec` inherit none of this; see mpips.process.rank_mark. Processes of the start methods
"spawn" and "forkserver" import the program again; `refuse_children` raises if they call `mpips.run`.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
import traceback
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn, Protocol

from mpips.errors import ForkError
from mpips.process import rank_mark

_BLOCKED = {signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGCONT}


class Inherited(Protocol):
    """An object of the parent that a forked child must give up."""

    def disown(self) -> None:
        """Give up what belongs to the parent. Runs in the child; must not block or raise."""


def used_in_child(what: str) -> ForkError:
    """Return the error of a use of `what`, an object of the parent, in this child."""
    return ForkError(
        f"{what} was used in process {os.getpid()}, a forked child of the worker's process; only the "
        "process that called mpips.run may use it: return data from child processes and push it there"
    )


_inherited: list[weakref.ref[Inherited]] = []
_masks = threading.local()  # the signal mask of before the fork
_hooked: list[bool] = []
_finalizing: list[int] = []  # pid of the process that finalizes MPI when it ends; empty: none
_rank: list[int] = []  # pid of the process that started a job of this rank; inherited


def register(item: Inherited) -> None:
    """Let `item.disown` run in every forked child, the last registered first. Keeps a weak reference."""
    if not _inherited:
        _hook()
    _inherited[:] = [ref for ref in _inherited if ref() is not None]
    _inherited.append(weakref.ref(item))


def forget(item: Inherited) -> None:
    """Undo `register`."""
    _inherited[:] = [ref for ref in _inherited if ref() not in (None, item)]


def _hook() -> None:
    if _hooked:
        return
    _hooked.append(True)
    os.register_at_fork(
        before=_block_signals, after_in_parent=_unblock_signals, after_in_child=_disown_all
    )


# Signals are blocked around the fork: until the child has reset its handlers, a signal to the child would act
# on the parent.
def _block_signals() -> None:
    _masks.old = signal.pthread_sigmask(signal.SIG_BLOCK, _BLOCKED)


def _unblock_signals() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, _masks.old)


def _disown_all() -> None:
    try:
        for ref in reversed(_inherited):
            item = ref()
            if item is not None:
                item.disown()
        _inherited.clear()
    finally:
        _unblock_signals()


@contextmanager
def children_end_here(what: str) -> Iterator[None]:
    """End a child that was forked inside the block when it leaves the block; the parent leaves as usual.

    A child that left the block would do the parent's part of the shutdown: finish its rings, enter MPI,
    remove its memory. `what` names the block in the error.
    """
    owner = os.getpid()
    try:
        yield
    except BaseException as error:
        if os.getpid() != owner:
            _end_child(error, what)
        raise
    if os.getpid() != owner:
        message = (
            f"a forked child returned from {what}; end it by os._exit(0), or use multiprocessing"
        )
        _end_child(ForkError(message), what)


def _end_child(error: BaseException, what: str) -> NoReturn:
    """End this process as Python would, but without running the parent's exit handlers."""
    code = 1
    if isinstance(error, SystemExit):
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
        if code == 1 and error.code is not None and not isinstance(error.code, int):
            print(error.code, file=sys.stderr)
    elif isinstance(error, ForkError):
        print(f"mpips: error: {error}", file=sys.stderr)
    else:
        traceback.print_exception(error)
        code = 130 if isinstance(error, KeyboardInterrupt) else 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code & 0xFF)


def finalize_mpi_at_exit() -> None:
    """Let this process, but none of its forked children, finalize MPI at exit if it is initialised then.

    A child in which mpi4py finalizes MPI never ends, because its MPI uses connections of the parent.
    """
    if not _finalizing:
        _finalizing.append(os.getpid())
        atexit.register(_finalize_mpi)


def _finalize_mpi() -> None:
    mpi = sys.modules.get("mpi4py.MPI")
    if mpi is None or _finalizing != [os.getpid()]:
        return
    if mpi.Is_initialized() and not mpi.Is_finalized():
        mpi.Finalize()


def is_helper() -> bool:
    """Return True in a helper process of a rank: a forked child, or a process of `multiprocessing`."""
    module = sys.modules.get("multiprocessing.process")
    # While a process of multiprocessing imports the program it has no parent yet, but `_inheriting` is set.
    started = module is not None and (
        module.parent_process() is not None
        or getattr(module.current_process(), "_inheriting", False)
    )
    return started or _rank not in ([], [os.getpid()])


def leave_rank() -> None:
    """Make a program that a rank has started a process of its own; no effect in helpers of a rank."""
    if not is_helper():
        rank_mark.leave()


def refuse_children() -> None:
    """Raise ForkError in a helper process of a rank; call this before a job touches anything else.

    Raises:
        ForkError: This process is a forked child of a rank, or `multiprocessing` started it.
    """
    if not is_helper():
        _rank[:] = [os.getpid()]
        rank_mark.mark()
        return
    raise ForkError(
        f"mpips.run was called in process {os.getpid()}, a helper process of a rank. The start methods "
        "'spawn' and 'forkserver' import the program again: put the call under "
        "`if __name__ == '__main__':`"
    )

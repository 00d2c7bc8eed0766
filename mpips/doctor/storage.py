"""Checks of the folder for checkpoints."""

from __future__ import annotations

import fcntl
import os
import tempfile
from pathlib import Path

from mpips.doctor.finding import Judgement, failed, passed, warned
from mpips.doctor.situation import Situation
from mpips.process.file_systems import NETWORK

_LITTLE_SPACE = 1 << 30  # bytes; less free space than this is a warning
_STRIPED = ("lustre",)  # file systems that spread a file over several targets


def folder(here: Situation) -> Judgement:
    """Check that files can be made, synced and renamed in the folder."""
    try:
        with tempfile.TemporaryDirectory(prefix=".mpips-doctor-", dir=here.folder) as name:
            part = Path(name) / "part"
            with part.open("wb") as file:
                file.write(b"mpips")
                file.flush()
                os.fsync(file.fileno())
            part.rename(Path(name) / "whole")
    except OSError as error:
        return failed(
            f"{here.folder}: {error.strerror}",
            f"mkdir -p {here.folder} && chmod u+rwx {here.folder}",
        )
    return passed(f"{here.folder} ({here.file_system})")


def space(here: Situation) -> Judgement:
    """Check that the folder has room for checkpoints."""
    found = here.space(here.folder)
    if found is None:
        return failed(f"{here.folder} does not exist", f"mkdir -p {here.folder}")
    text = f"{found.free / 2**30:.1f} GiB are free in {here.folder}"
    if found.free < _LITTLE_SPACE:
        return warned(text, f"mpips ckpt prune {here.folder} --keep-last 2")
    return passed(text)


def locks(here: Situation) -> Judgement:
    """Check that files can be locked, as HDF5 and mpips do; some network file systems cannot."""
    error = lock_error(here.folder)
    if not error:
        return passed(f"files of {here.file_system} can be locked")
    return warned(
        f"{here.folder} ({here.file_system}): locking a file fails: {error}",
        "export HDF5_USE_FILE_LOCKING=FALSE   # or have the file system mounted with the option flock",
    )


def lock_error(path: Path) -> str:
    """Lock a temporary file in a folder. Return "" on success, else the reason of the system."""
    try:
        with tempfile.TemporaryFile(dir=path) as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            fcntl.flock(file, fcntl.LOCK_UN)
    except OSError as error:
        return error.strerror or str(error)
    return ""


def stripes(here: Situation) -> Judgement:
    """Check that the file system is fast and durable, and spreads large files over its targets."""
    kind = here.file_system
    if kind in _STRIPED:
        done = here.run(
            "lfs", "getstripe", "--stripe-count", "-d", str(here.folder), timeout_s=10.0
        )
        if done.code == 0 and done.output.strip() in ("0", "1"):
            return warned(
                f"{here.folder} on {kind} has one stripe, so all servers write to one target",
                f"lfs setstripe -c -1 {here.folder}",
            )
        return passed(f"{kind}, {done.output.strip() or 'stripes unknown'} stripes")
    if kind in ("nfs", "nfs4"):
        return warned(
            f"{here.folder} is on {kind}, where parallel writing is slow and locks are unreliable",
            "mpips doctor --folder /path/on/a/parallel/file/system",
        )
    if kind == "tmpfs":
        return warned(
            f"{here.folder} is in memory (tmpfs), so checkpoints are lost with the node",
            "mpips doctor --folder /path/on/a/disk",
        )
    return passed(f"{kind}" + (", a network file system" if kind in NETWORK else ""))


CHECKS = {"folder": folder, "space": space, "locks": locks, "stripes": stripes}

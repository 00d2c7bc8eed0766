"""Mounts of this machine: whether a folder shows a whole file system, and whether it shows it alone.

The kernel lists the mounts of the process in /proc/self/mountinfo; see proc_pid_mountinfo(5). A bind mount
has a mount point as well, and shows a folder of a file system that other programs use elsewhere.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

_MOUNTS = Path("/proc/self/mountinfo")


class Mount(NamedTuple):
    """A line of the list.

    Attributes:
        device: Numbers of the device, such as "0:41", which all mounts of a file system share.
        root: Folder of the file system that is shown; "/": all of it.
        point: Path at which it is shown.
    """

    device: str
    root: str
    point: str


def mounts_of(text: str) -> list[Mount]:
    """Return the mounts in the text of /proc/self/mountinfo, in the order in which they were made."""
    lines = [line.split(" ") for line in text.splitlines()]
    return [Mount(words[2], _plain(words[3]), _plain(words[4])) for words in lines]


def _plain(word: str) -> str:
    r"""Return a path of the list, in which the kernel writes a space as \040."""
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), word)


def why_shared(folder: Path, mounts: list[Mount] | None = None) -> str:
    """Return why a folder does not show a whole file system that no other path shows; "" if it does.

    Args:
        folder: The folder.
        mounts: The mounts of the machine; None: those that the kernel lists now.
    """
    if mounts is None:
        try:
            mounts = mounts_of(_MOUNTS.read_text(errors="surrogateescape"))
        except OSError as error:
            return f"{_MOUNTS} cannot be read: {error.strerror}"
    point = str(folder.resolve())
    # A later mount at one point hides those before it.
    at = [i for i, mount in enumerate(mounts) if mount.point == point]
    if not at:
        return "no file system is mounted there"
    own = mounts[at[-1]]
    if own.root != "/":
        return f"it shows the folder {own.root} of a file system"
    others = [m.point for i, m in enumerate(mounts) if m.device == own.device and i != at[-1]]
    return f"{others[0]} shows the same file system" if others else ""

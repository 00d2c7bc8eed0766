"""The kinds of file systems: which one holds a path, and which lie on other machines."""

from __future__ import annotations

import re
from pathlib import Path

NETWORK = ("nfs", "nfs4", "lustre", "gpfs", "beegfs", "cifs", "ceph", "fuse.sshfs", "wekafs")


def file_system(mountinfo: str, path: Path) -> str:
    """Return the type of the file system that holds a path; "unknown" if no mount does.

    Args:
        mountinfo: Text of /proc/self/mountinfo.
        path: Absolute path without symbolic links.
    """
    longest, kind = -1, "unknown"
    for line in mountinfo.splitlines():
        left, _, right = line.partition(" - ")
        fields = left.split()
        if len(fields) < 5 or not right:
            continue
        # The kernel writes spaces and the like of a mount point as octal numbers.
        point = Path(re.sub(r"\\([0-7]{3})", lambda m: chr(int(m[1], 8)), fields[4]))
        # Of several mounts at one place the last one is visible.
        if path.is_relative_to(point) and len(point.parts) >= longest:
            longest, kind = len(point.parts), right.split()[0]
    return kind

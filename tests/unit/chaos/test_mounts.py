"""Which folder shows a whole file system that no other path shows."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from mpips.chaos.mounts import Mount, mounts_of, why_shared

_TEXT = r"""22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
40 22 0:41 / /mnt/small rw - tmpfs tmpfs rw,size=1048576k
41 22 0:42 / /mnt/a\040folder\134 rw shared:7 master:2 - tmpfs tmpfs rw
42 22 8:1 /home/others /mnt/bound rw - ext4 /dev/sda1 rw
43 22 0:43 / /mnt/twice rw - tmpfs tmpfs rw
44 22 0:43 / /mnt/again rw - tmpfs tmpfs rw
45 22 0:44 / /mnt/part rw - tmpfs tmpfs rw
46 22 0:44 /inner /srv rw - tmpfs tmpfs rw
47 22 0:45 / /mnt/covered rw - tmpfs tmpfs rw
48 47 8:1 /home /mnt/covered rw - ext4 /dev/sda1 rw
"""


def test_the_list_of_the_kernel_is_read() -> None:
    mounts = mounts_of(_TEXT)
    assert len(mounts) == 10
    assert mounts[2] == Mount("0:42", "/", "/mnt/a folder\\")
    assert mounts[3] == Mount("8:1", "/home/others", "/mnt/bound")


@pytest.mark.parametrize(
    ("folder", "why"),
    [
        ("/mnt/small", ""),
        ("/mnt/a folder\\", ""),
        ("/mnt", "no file system is mounted there"),
        ("/mnt/small/inner", "no file system is mounted there"),
        ("/mnt/bound", "it shows the folder /home/others of a file system"),
        ("/mnt/twice", "/mnt/again shows the same file system"),
        ("/mnt/again", "/mnt/twice shows the same file system"),
        ("/mnt/part", "/srv shows the same file system"),
        ("/srv", "it shows the folder /inner of a file system"),
        # The newest mount at a point counts.
        ("/mnt/covered", "it shows the folder /home of a file system"),
    ],
)
def test_a_folder_shows_a_whole_file_system_alone(folder: str, why: str) -> None:
    assert why_shared(Path(folder), mounts_of(_TEXT)) == why


@contextmanager
def mounted(point: Path, *arguments: str) -> Iterator[None]:
    """Mount something at a point; skips where the kernel refuses that."""
    point.mkdir()
    if subprocess.run(
        ["mount", *arguments, str(point)], capture_output=True, check=False
    ).returncode:
        pytest.skip("the right to mount is missing")
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(point)], check=True)


def test_mounts_of_this_machine_are_found(tmp_path: Path) -> None:
    disk, bound, link = tmp_path / "a disk", tmp_path / "bound", tmp_path / "link"
    assert why_shared(tmp_path) == "no file system is mounted there"
    with mounted(disk, "-t", "tmpfs", "-o", "size=1m", "tmpfs"):
        assert why_shared(disk) == ""
        link.symlink_to(disk)
        assert why_shared(link) == ""
        (disk / "mine").mkdir()
        with mounted(bound, "--bind", str(disk / "mine")):
            # It has the device of the disk, which others use as well.
            assert os.stat(bound).st_dev == os.stat(disk).st_dev
            assert why_shared(bound) == "it shows the folder /mine of a file system"
            assert why_shared(disk) == f"{bound} shows the same file system"
        assert why_shared(disk) == ""

"""How much memory a process may still use."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from mpips.process.memory import free_bytes, group_limit, memory_kills, own_bytes

MIB = 1 << 20


def node(folder: Path, group: str) -> tuple[str, str]:
    """A /proc with 1000 of 4000 MiB free, and a folder for control groups."""
    (folder / "proc/self").mkdir(parents=True)
    (folder / "proc/meminfo").write_text(
        f"MemTotal: {4000 * 1024} kB\nMemAvailable: {1000 * 1024} kB\nHugePages_Total: 0\n"
    )
    (folder / "proc/self/cgroup").write_text(group)
    return str(folder / "proc"), str(folder / "groups")


def limited(folder: Path, names: tuple[str, str], limit: str, used: int, inactive: int = 0) -> None:
    folder.mkdir(parents=True)
    (folder / f"memory.{names[0]}").write_text(f"{limit}\n")
    (folder / f"memory.{names[1]}").write_text(f"{used}\n")
    (folder / "memory.stat").write_text(
        f"anon 5\ninactive_file {inactive // 2}\nactive_file {inactive - inactive // 2}\n"
    )


def test_without_limits_it_is_that_of_the_node(tmp_path: Path) -> None:
    where = node(tmp_path, "0::/job/step\n")
    assert free_bytes(*where) == (1000 * MIB, 4000 * MIB)
    limited(tmp_path / "groups/job/step", ("max", "current"), "max", 900 * MIB)
    assert free_bytes(*where) == (1000 * MIB, 4000 * MIB)


@pytest.mark.parametrize(
    ("line", "place", "names"),
    [
        ("0::/job/step", "job", ("max", "current")),
        ("0::/job/step", "job/step", ("max", "current")),
        ("4:memory:/job/step", "memory/job", ("limit_in_bytes", "usage_in_bytes")),
    ],
)
def test_the_limit_of_a_control_group_counts(
    tmp_path: Path, line: str, place: str, names: tuple[str, str]
) -> None:
    where = node(tmp_path, f"3:cpu:/x\n{line}\n")
    limited(tmp_path / "groups" / place, names, str(700 * MIB), 600 * MIB, 50 * MIB)
    assert free_bytes(*where) == (150 * MIB, 700 * MIB)


def test_a_group_above_with_less_memory_left_counts(tmp_path: Path) -> None:
    where = node(tmp_path, "0::/job/step\n")
    limited(tmp_path / "groups/job", ("max", "current"), str(800 * MIB), 780 * MIB)
    limited(tmp_path / "groups/job/step", ("max", "current"), str(600 * MIB), 100 * MIB)
    assert free_bytes(*where) == (20 * MIB, 600 * MIB)


def test_the_least_limit_of_the_own_groups_holds_and_that_of_other_jobs_does_not(
    tmp_path: Path,
) -> None:
    where = node(tmp_path, "0::/job_1/step\n")
    limited(tmp_path / "groups/job_2", ("max", "current"), str(50 * MIB), 0)
    limited(tmp_path / "groups/job_1/step", ("max", "current"), "max", 0)
    assert group_limit(*where) == 0
    (tmp_path / "groups/job_1/memory.max").write_text(f"{800 * MIB}\n")
    assert group_limit(*where) == 800 * MIB
    # More than the node has is no limit.
    (tmp_path / "groups/job_1/memory.max").write_text(f"{8000 * MIB}\n")
    assert group_limit(*where) == 0


def test_killed_processes_of_the_own_job_are_counted(tmp_path: Path) -> None:
    """Other jobs of the host have lost seven; the step of the ranks is another one than this process's."""
    where = node(tmp_path, "0::/job_1/step_batch\n")
    (tmp_path / "proc/vmstat").write_text("oom_kill 7\n")
    assert memory_kills(*where) == 7
    limited(tmp_path / "groups/job_1/step_batch", ("max", "current"), str(700 * MIB), 0)
    (tmp_path / "groups/job_1/step_batch/memory.events").write_text("oom 1\noom_kill 0\n")
    (tmp_path / "groups/job_1/memory.max").write_text(f"{800 * MIB}\n")
    (tmp_path / "groups/job_1/memory.current").write_text("0\n")
    (tmp_path / "groups/job_1/memory.events").write_text("max 9\noom 3\noom_kill 2\n")
    assert memory_kills(*where) == 2


def test_own_memory_is_at_least_what_was_written() -> None:
    before = own_bytes(os.getpid())
    data = bytearray(64 * MIB)
    data[::4096] = b"x" * (len(data) // 4096)
    assert own_bytes(os.getpid()) >= before + 60 * MIB
    assert own_bytes(2**22 + 1) == 0

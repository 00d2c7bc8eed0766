"""Removal of shared memory: when no running process uses it, and never before."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import time

import pytest
from harness import python

from mpips import _native
from mpips.errors import RegionError
from mpips.transport import region
from mpips.transport.region import (
    SHM,
    Regions,
    attach,
    find_segment,
    new_token,
    own_segments,
    persistent,
    region_name,
    sweep,
    unlink_job,
    unlink_staging,
)

PAGE = 4096


@pytest.fixture
def token():
    token = new_token()
    yield token
    unlink_job(token)


HOLDER = """
    import sys
    from mpips.transport.region import Regions
    regions = Regions(sys.argv[1], shared=True)
    held = [regions.create("s0", 4096), regions.create_sparse("w0", 4096)]
    print("ready", flush=True)
    sys.stdin.read()
"""


def holder(token: str) -> subprocess.Popen:
    """Start a process that has two shared-memory files mapped until its input ends."""
    command = [sys.executable, "-c", textwrap.dedent(HOLDER), token]
    child = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    assert child.stdout.readline() == "ready\n"
    return child


def names(token: str) -> set[str]:
    return {path.name.rsplit("-", 1)[1] for path in SHM.glob(f"*{token}*")}


def test_sweep_removes_segments_of_the_killed_and_leaves_those_of_the_living():
    dead, alive = new_token(), new_token()
    children = [holder(dead), holder(alive)]
    try:
        sweep()
        assert names(dead) == names(alive) == {"s0", "w0"}
        children[0].kill()
        children[0].wait()
        removed = sweep()
        assert not any(alive in name for name in removed)
        assert not names(dead)
        assert names(alive) == {"s0", "w0"}
    finally:
        for child in children:
            child.communicate("")
            unlink_job(dead)
    assert not names(alive)


def test_sweep_leaves_a_segment_that_only_an_attached_process_still_uses(token):
    child = holder(token)
    attached = attach(token, "s0", 0)
    child.kill()
    child.communicate()
    sweep()
    assert names(token) == {"s0"}
    del attached
    sweep()
    assert not names(token)


def test_unlink_job_removes_one_job_and_memory_stays(token):
    other = new_token()
    mine, theirs = Regions(token, shared=True), Regions(other, shared=True)
    memory = mine.create("s0", PAGE)
    memory.view(0, 1, True)[0] = 5
    kept = theirs.create("s0", PAGE)
    unlink_job(token)
    assert not names(token)
    assert names(other) == {"s0"}
    assert memory.view(0, 1, False)[0] == 5
    del kept


def test_dropping_the_creator_removes_the_name_but_not_a_successor(token):
    memory = Regions(token, shared=True).create("s0", PAGE)
    (SHM / memory.name).unlink()
    successor = Regions(token, shared=True).create("s0", PAGE)
    del memory
    assert names(token) == {"s0"}
    del successor
    assert not names(token)


def test_a_fork_that_ends_does_not_remove_its_parents_segment(token):
    code = """
        import os, sys
        from mpips.transport.region import Regions, attach
        memory = Regions(sys.argv[1], shared=True).create("s0", 4096)
        pid = os.fork()
        if pid == 0:
            del memory
            os._exit(0)
        os.waitpid(pid, 0)
        attach(sys.argv[1], "s0", 0)
    """
    result = python(code, token)
    assert result.returncode == 0, result.stderr


def test_creating_while_others_sweep_always_succeeds(token):
    code = """
        import sys
        from mpips import _native
        print("ready", flush=True)
        while True:
            _native.SharedMemory.remove_if_unused(sys.argv[1])
    """
    name = region_name(token, "s0")
    command = [sys.executable, "-c", textwrap.dedent(code), name]
    sweepers = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    try:
        for child in sweepers:
            assert child.stdout.readline() == "ready\n"
        for _ in range(3000):
            memory = _native.SharedMemory.create_sparse(name, PAGE)
            assert (SHM / name).exists()
            del memory
    finally:
        for child in sweepers:
            child.kill()
            child.communicate()


def test_old_staging_memory_goes_unless_updates_lie_in_it(token):
    token = persistent(token)
    regions = Regions(token, shared=True)
    parts = ["w0-0", "w1-0", "w0-3", "w0-4", "w1-4", "s0", "s0-journal"]
    segments = [regions.create(part, 4096) for part in parts]
    unlink_staging(token, 4, {"w1-0"})
    left = {part for part, _ in own_segments(token)}
    assert left == {"w1-0", "w0-4", "w1-4", "s0", "s0-journal"}
    del segments
    unlink_job(token)


DAYS_AGO = time.time() - 3 * region.KEEP_S


@pytest.fixture
def old_machine(monkeypatch):
    """Imitate a machine that has been up for a week."""
    monkeypatch.setattr(region.time, "clock_gettime", lambda clock: 7 * region.KEEP_S)


def age(token):
    """Make all files of a job three days old."""
    for _, path in own_segments(token):
        os.utime(path, (DAYS_AGO, DAYS_AGO))


@pytest.mark.usefixtures("old_machine")
def test_a_launch_does_not_sweep_the_memory_of_its_own_run(token):
    token, other = persistent(token), persistent(new_token())
    for name in (token, other):
        regions = Regions(name, shared=True)
        segments = [regions.create(part, PAGE) for part in ("s0", "w0-0", "w1-4")]
        del segments
        age(name)
    swept = sweep(spare=token)
    assert {part for part, _ in own_segments(token)} == {"s0", "w0-0", "w1-4"}
    assert sum(other.removeprefix("k") in name for name in swept) == 3
    assert not list(own_segments(other))
    assert len(sweep()) >= 3
    assert not list(own_segments(token))


@pytest.mark.parametrize("supervised", [False, True])
def test_memory_that_no_launch_can_go_on_in_is_swept_by_the_next_one(token, supervised):
    # A supervised run without warm restart has the same token in every launch, too.
    dead = Regions(token, shared=True, supervised=supervised)
    names = [dead._new_name("s0"), dead._new_name("w0")]
    for name in names:
        (SHM / name).write_bytes(b"x" * PAGE)
    assert any("." in name for name in names) == supervised
    sweep(spare=token)
    assert not list(own_segments(token))
    again = Regions(token, shared=True, supervised=supervised).create("s0", PAGE)
    again.view(0, 1, True)[0] = 5
    assert attach(token, "s0", 0).view(0, 1, False)[0] == 5


def test_no_segment_is_older_than_the_machine_has_been_up(token, monkeypatch):
    token = persistent(token)
    segment = Regions(token, shared=True).create("s0", PAGE)
    del segment
    age(token)
    # Imitate a wall clock that was set forward by days.
    monkeypatch.setattr(region.time, "clock_gettime", lambda clock: 60.0)
    sweep()
    assert find_segment(token, "s0") is not None
    unlink_job(token)


def test_every_rank_renews_the_times_of_all_memory_of_its_run(token):
    token = persistent(token)
    earlier = Regions(token, shared=True)
    segments = [earlier.create(part, PAGE) for part in ("s0", "s0-journal", "w0-0")]
    age(token)
    worker = Regions(token, shared=True)
    segments.append(worker.create("w0-3", PAGE))
    worker.touch()
    assert all(path.stat().st_mtime > DAYS_AGO + 60 for _, path in own_segments(token))
    del segments
    unlink_job(token)


def test_names_of_segments_to_come_cannot_be_known(token):
    if os.geteuid() != 0:
        pytest.skip("only root can give a file to another user")
    token = persistent(token)
    regions = Regions(token, shared=True)
    first = regions.create("w0-0", PAGE)
    digits = find_segment(token, "w0-0").name.partition(".")[2].partition("-")[0]
    assert len(digits) == 16
    # Let another user make all files whose names can be derived from the first name.
    foreign = []
    for name in (region_name(token, "w0-1"), region_name(token, "w0-1", digits)):
        path = SHM / name
        path.write_bytes(b"x" * PAGE)
        path.chmod(0o666)
        os.chown(path, 65534, 65534)
        foreign.append(path)
    try:
        second = Regions(token, shared=True).create("w0-1", PAGE)
        second.view(0, 1, True)[0] = 7
        assert attach(token, "w0-1", 0).view(0, 1, False)[0] == 7
        unlink_staging(token, 5, set())
        unlink_job(token)
        assert all(path.exists() for path in foreign)
        assert not list(own_segments(token))
        del first, second
    finally:
        for path in foreign:
            path.unlink()


def test_a_run_has_one_segment_of_a_part(token):
    token = persistent(token)
    first = Regions(token, shared=True).create("s0", PAGE)
    with pytest.raises(RegionError, match="File exists"):
        Regions(token, shared=True).create("s0", PAGE)
    del first
    unlink_job(token)

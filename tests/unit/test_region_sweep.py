"""The end of a segment: removed when no living process uses it, and never before."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest
from harness import python

from mpips import _native
from mpips.transport.region import (
    SHM,
    Regions,
    attach,
    kept,
    new_token,
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
    """A process that holds two segments until its input ends."""
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
    token = kept(token)
    regions = Regions(token, shared=True)
    parts = ["w0-0", "w1-0", "w0-3", "w0-4", "w1-4", "s0", "s0-journal"]
    segments = [regions.create(part, 4096) for part in parts]
    unlink_staging(token, 4, {"w1-0"})
    prefix = region_name(token, "")
    left = {path.name.removeprefix(prefix) for path in SHM.glob(f"{prefix}*")}
    assert left == {"w1-0", "w0-4", "w1-4", "s0", "s0-journal"}
    del segments
    unlink_job(token)

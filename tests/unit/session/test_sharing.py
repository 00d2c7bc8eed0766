"""Memory that workers share within a launch: its names do not outlive the start of the job."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from mpips.errors import RegionError
from mpips.transport.region import (
    WITHIN_LAUNCH,
    Regions,
    new_token,
    own_segments,
    persistent,
    unlink_job,
    unlink_staging,
)
from mpips.worker.sharing import share


@pytest.fixture
def token() -> Iterator[str]:
    token = persistent(new_token())
    yield token
    unlink_job(token)


class Cluster:
    """A job of two workers, of which this is the first; step number `fails` fails on the other rank."""

    def __init__(self, token: str, fails: int) -> None:
        self.token, self.worker, self.assignment = token, 0, SimpleNamespace(workers=(1, 2))
        self._left = fails

    def agree(self, what: str, work: Callable[[], Any]) -> list[Any]:
        mine = work()
        self._left -= 1
        if self._left == 0:
            raise RegionError("worker 1: /dev/shm is full")
        return [mine] * 3


def parts(token: str, fails: int = 0) -> Any:
    regions = Regions(token, shared=True, supervised=True)
    return SimpleNamespace(cluster=Cluster(token, fails), regions=regions, generation=4)


def test_names_are_removed_when_all_have_the_memory(token: str) -> None:
    memory, firsts = share(parts(token), "sum", "testing", ["a", "a"], [4096, 4096])
    assert memory is not None
    assert firsts == [0, 0]
    assert not list(own_segments(token))


@pytest.mark.parametrize("fails", [1, 2])
def test_names_are_removed_when_another_rank_fails(token: str, fails: int) -> None:
    with pytest.raises(RegionError):
        share(parts(token, fails), "sum", "testing", ["a", "a"], [4096, 4096])
    assert not list(own_segments(token))


def test_the_next_launch_removes_what_a_killed_one_has_left(token: str) -> None:
    regions = Regions(token, shared=True, supervised=True)
    for part in WITHIN_LAUNCH:
        regions.create_sparse(f"{part}0-3", 4096)
        regions.create_sparse(f"{part}0-4", 4096)
    unlink_staging(token, 4, set())
    assert sorted(part for part, _ in own_segments(token)) == [
        "ask0-4",
        "held0-4",
        "pull0-4",
        "subsum0-4",
        "sum0-4",
    ]

"""Errors of pulls that wait: they name the server that is late, whatever the order of a table's shards."""

from types import SimpleNamespace
from typing import Any

import pytest
from harness import dense

from mpips.errors import StallError
from mpips.model.consistency import ASP, BSP, SSP, Consistency
from mpips.model.placement import ShardRange
from mpips.worker import waits
from mpips.worker.shard_reader import ShardReader

# The first shard is on server 1.
SHARDS = [ShardRange(1, 0, 4), ShardRange(0, 4, 8)]


class Channel:
    """A server that has applied `applied` of the worker's two pushes and has brought tables to `clock`."""

    def __init__(self, applied: int, clock: int) -> None:
        self._applied, self._clock = applied, clock
        self.writer = SimpleNamespace(pushed_before=lambda _: 2)

    def wait_applied(self, count: int, _: float) -> bool:
        return self._applied >= count

    def wait_head(self, _: int, version: int, clock: int, __: float) -> bool:
        return self._clock >= max(version, clock)


class Connection:
    """At clock 5, without a group of workers."""

    node_pulls = grouped = agreed_bound = agreed_switch = None
    now = 5
    position = SimpleNamespace(steps_before=0)

    def __init__(self, *channels: Channel) -> None:
        self.channels = channels

    def minimum_clock(self, table: Any) -> tuple[int, int]:
        return waits.minimum_clock(self, table)  # type: ignore[arg-type]

    def wait_until(self, done: Any, late: Any) -> None:
        if not done():
            raise StallError(late())

    def blame(self, server: int, table: Any) -> str:
        return f", which waits for nobody (server {server})"


def late_server(consistency: Consistency, *channels: Channel) -> str:
    reader = ShardReader(
        Connection(*channels),  # type: ignore[arg-type]
        0,
        dense(8, consistency=consistency),
        SHARDS,
    )
    with pytest.raises(StallError) as caught:
        reader.settle()
    assert str(caught.value) == reader.late()
    return reader.late()


@pytest.mark.parametrize("late", [0, 1])
@pytest.mark.parametrize("consistency", [ASP(), SSP(2), BSP()])
def test_a_pull_that_waits_names_the_server_that_is_late(
    consistency: Consistency, late: int
) -> None:
    behind = Channel(applied=1, clock=0)
    channels = [behind if s == late else Channel(applied=2, clock=9) for s in (0, 1)]
    text = late_server(consistency, *channels)
    assert text.startswith(f"server {late} has not brought table 'w' to clock 5")
    assert text.endswith(f"(server {late})")


def test_under_asp_the_clock_of_a_server_does_not_matter() -> None:
    text = late_server(ASP(), Channel(applied=1, clock=9), Channel(applied=2, clock=0))
    assert text.startswith("server 0 ")

"""The rules by which a worker ends a clock of replicated tables in durable memory.

They are those of mpips.recovery.node_tables. The parts of a worker are scripted here: each call notes what
was true when it was made, and each wait makes one more of the conditions true.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from harness import dense

from mpips.model.consistency import BSP
from mpips.model.replicated import Replicated
from mpips.worker.replicated.tables import ReplicatedTables


class Scripted:
    """A worker at clock 4 with two servers; server 1 has a partner.

    Attributes:
        becomes: Names of conditions that become true, one at each round of a wait.
        true: Those that are.
        log: Calls that others can see, with the conditions that held.
    """

    def __init__(self, becomes: list[str], repeats: bool = False, check_every: int = 0) -> None:
        self.becomes, self.true, self.log = list(becomes), set[str](), list[tuple[str, list[str]]]()
        self.clock, self.repeats = 4, repeats
        table = dense(8, consistency=BSP(), placement=Replicated(check_every=check_every))
        part: Any = SimpleNamespace(
            tables={0: table}, layout=SimpleNamespace(durable=True), reduction=self,
            contributions=self, receivers={},
        )  # fmt: skip
        connection: Any = SimpleNamespace(
            index=0, control=SimpleNamespace(state=""), wait_until=self.wait_until,
            channels=[self.channel(0), self.channel(1)],
        )  # fmt: skip
        self.tables = ReplicatedTables(connection, part, ["worker 0"], [1])

    def channel(self, server: int) -> Any:
        return SimpleNamespace(
            writer=SimpleNamespace(next_sequence=10 + server),
            begin_fence=lambda: self.note(f"fence {server}"),
            wait_fence=lambda _: f"fenced {server}" in self.true,
            wait_received=lambda n, _: f"received {n}" in self.true,
        )

    def wait_until(self, done: Callable[[], bool], late: Callable[[], str]) -> None:
        while not done():
            assert self.becomes, "the wait has no end"
            self.true.add(self.becomes.pop(0))

    def note(self, call: str) -> None:
        self.log.append((call, sorted(self.true)))

    # The reduction.
    settled = property(lambda self: "settled" in self.true)

    def all_sent(self, clock: int) -> bool:
        return f"sent {clock}" in self.true

    def tick(self, clock: int | None = None) -> None:
        """Of the reduction without an argument, of the messages with one."""
        self.note("tick" if clock is None else f"message {clock}")
        self.clock += clock is None

    def advance(self) -> None: ...

    def values(self, table: int, slot: int) -> Any:
        return b"12345678"

    def wait_complete(self, table: int, max_s: float) -> bool:
        return True

    def note_sent(self, worker: int, clock: int) -> None:
        self.note(f"note {clock}")

    # The messages.
    is_received = property(lambda self: "arrived" in self.true)
    is_idle = True

    def poll(self) -> None: ...

    def compare(self, table: int, clock: int, digest: int) -> None:
        self.note(f"compare {clock}")

    def sent(self, clocks: int) -> None:
        self.note(f"tell {clocks}")


@pytest.mark.parametrize("becomes", [["settled", "sent 4"], ["sent 3", "sent 4", "settled"]])
def test_a_clock_ends_when_its_values_are_complete_and_all_have_sent_the_ones_before(
    becomes: list[str],
) -> None:
    s = Scripted([*becomes, "arrived"])
    s.tables.before_tick()
    calls = dict(s.log)
    assert {"settled", "sent 4"} <= set(calls["tick"])
    assert list(calls) == ["tick", "message 4"]
    # `tick` returns, and servers get the tick, when the other nodes have the pushes.
    assert "arrived" in s.true


def test_a_repeated_clock_is_told_to_no_other_node() -> None:
    s = Scripted(["settled", "sent 4", "arrived"], repeats=True)
    s.tables.before_tick()
    assert [call for call, _ in s.log] == ["tick"]


@pytest.mark.parametrize(("every", "compared"), [(0, False), (5, True), (3, False)])
def test_copies_are_compared_at_the_clocks_that_the_table_says(every: int, compared: bool) -> None:
    s = Scripted(["settled", "sent 4", "arrived"], check_every=every)
    s.tables.before_tick()
    # A comparison waits for other workers, so it comes behind the ticks at the servers.
    assert "compare 5" not in dict(s.log)
    s.tables.after_tick()
    assert ("compare 5" in dict(s.log)) == compared


@pytest.mark.parametrize("first", ["fenced 0", "received 11"])
def test_a_tick_counts_as_sent_when_all_servers_and_partners_have_it(first: str) -> None:
    s = Scripted([])
    s.clock = 5
    second = {"fenced 0": "received 11", "received 11": "fenced 0"}[first]
    s.tables.after_tick()
    assert [call for call, _ in s.log] == ["fence 0"]  # a partner's server confirms by itself
    for more in (first, "received 10", "fenced 1"):
        s.true.add(more)
        s.tables.poll()
        assert len(s.log) == 1
    s.true.add(second)
    s.tables.poll()
    s.tables.poll()
    assert [call for call, _ in s.log[1:]] == ["note 5", "tell 5"]

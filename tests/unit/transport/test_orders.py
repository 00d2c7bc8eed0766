"""Orders: the most urgent one first, a begun one to its end, few messages under way, ticks at the end."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from mpips.transport.orders import MESSAGE_BYTES, MOST_UNDER_WAY, Orders


class FewMessages:
    """RemoteMemory whose messages leave when the test says so. `sent`: offsets."""

    def __init__(self) -> None:
        self.sent: list[int] = []
        self.n_sends = 0

    def put_copied(self, offset: int, data: np.ndarray) -> None:
        assert 0 < data.nbytes <= MESSAGE_BYTES
        self.sent.append(offset)
        self.n_sends += 1


class Writer:
    """A ring writer that counts ticks, with room or without."""

    published = next_sequence = 0

    def __init__(self) -> None:
        self.ticks: list[int] = []
        self.own_us: list[int] = []
        self.has_room = True

    def tick(self, clock: int, own_us: int) -> bool:
        if self.has_room:
            self.ticks.append(clock)
            self.own_us.append(own_us)
        return self.has_room


class Mirror:
    """A mailbox without records."""

    bytes = np.zeros(8, np.uint8)

    def __init__(self) -> None:
        self.writer = Writer()

    def new_records(self, _: int) -> Iterator[tuple[int, int]]:
        return iter(())


@pytest.fixture
def made() -> tuple[FewMessages, Mirror, Orders]:
    memory, mirror = FewMessages(), Mirror()
    orders: Any = Orders(memory, mirror, 0, None, 0)  # type: ignore[arg-type]
    return memory, mirror, orders


def update(orders: Orders, at: int, n_parts: int) -> Iterator[bool]:
    """Write parts of a message each; their offsets are at, at + 1, ..."""
    for i in range(n_parts):
        orders.put_area(at + i, np.zeros(8, np.uint8))
        yield True


def test_a_begun_order_is_completed_and_the_most_urgent_one_follows(made: Any) -> None:
    memory, mirror, orders = made
    orders.add((0, 5), update(orders, 500, MOST_UNDER_WAY + 3))
    assert orders.advance()
    assert memory.sent == list(range(500, 500 + MOST_UNDER_WAY))
    orders.add((0, 3), update(orders, 300, 2))
    orders.add_tick(0, 250)
    orders.add((1, 0), update(orders, 1000, 1))
    orders.add((0, 1), update(orders, 100, 1))
    assert not orders.advance()
    assert not orders.is_empty
    assert mirror.writer.ticks == []
    memory.n_sends = 0
    assert orders.advance()
    assert memory.sent[MOST_UNDER_WAY:] == [516, 517, 518, 100, 300, 301, 1000]
    assert (mirror.writer.ticks, mirror.writer.own_us) == ([0], [250])
    assert orders.is_empty


def test_orders_of_one_urgency_leave_in_their_order(made: Any) -> None:
    memory, _, orders = made
    for at in (30, 10, 20):
        orders.add((0, 0), update(orders, at, 1))
    orders.advance()
    assert memory.sent == [30, 10, 20]


def test_long_data_is_cut_into_messages(made: Any) -> None:
    memory, _, orders = made

    def writing() -> Iterator[bool]:
        orders.put_area(8, np.zeros(2 * MESSAGE_BYTES + 1, np.uint8))
        yield True

    orders.add((0, 0), writing())
    orders.advance()
    assert memory.sent == [8, 8 + MESSAGE_BYTES, 8 + 2 * MESSAGE_BYTES]


def test_an_order_without_room_waits_and_nothing_passes_it(made: Any) -> None:
    _, mirror, orders = made
    mirror.writer.has_room = False
    orders.add_tick(0)
    assert not orders.advance()
    orders.add((0, 0), update(orders, 1, 1))
    assert not orders.advance()
    assert orders.lacks_room
    mirror.writer.has_room = True
    assert orders.advance()
    assert not orders.lacks_room
    assert mirror.writer.ticks == [0]
    assert orders.is_empty


def test_other_uses_of_the_ring_finish_all_orders_first(made: Any) -> None:
    memory, _, orders = made
    finished = []

    def finish() -> None:
        finished.append(True)
        with orders.inside():
            orders.need_none()
            orders.advance()

    orders.finish = finish
    orders.need_none()
    assert finished == []
    orders.add((0, 0), update(orders, 7, 1))
    orders.need_none()
    assert finished == [True]
    assert memory.sent == [7]

"""The server's part of awaited values: what is due, in which order, and what no worker sends."""

from __future__ import annotations

import numpy as np
import pytest

from mpips.transport.awaited import MOST_REQUESTS, MOST_UNDER_WAY, VALUE_BYTES, WHERE, ValueService

N_TABLES = 6
VALUES_AT = 16 * N_TABLES  # bytes; before them the head of each table


class Sent:
    """A message; the test says when it has left."""

    def __init__(self) -> None:
        self.has_left = False

    def Test(self) -> bool:
        return self.has_left


class Served:
    """A service of N_TABLES tables; `sent` has rank, tag and first byte of each message."""

    def __init__(self, value_bytes: int = 8) -> None:
        self.value_bytes = value_bytes
        self.region = np.zeros(VALUES_AT + N_TABLES * value_bytes + 3, np.uint8)
        self.messages: list[Sent] = []
        self.sent: list[tuple[int, int, int]] = []
        self.service = ValueService(self._send, self.region)
        for table in range(N_TABLES):
            self.set_version(table, 0)

    def _send(self, values: np.ndarray, rank: int, tag: int) -> Sent:
        self.sent.append((rank, tag, int(values[0])))
        self.messages.append(Sent())
        return self.messages[-1]

    def set_version(self, table: int, version: int) -> None:
        head = self.region[16 * table : 16 * table + 16].view(np.uint64)
        head[:] = version, 2**64 - 1 - version
        at = VALUES_AT + table * self.value_bytes
        self.region[at : at + self.value_bytes] = 10 * version + table

    def take(self, rank: int, table: int, number: int, version: int) -> bool:
        at = VALUES_AT + table * self.value_bytes
        where = WHERE.pack(16 * table, number)
        return self.service.take(rank, where, at, self.value_bytes, version)


def test_values_leave_when_they_are_there_and_in_the_order_of_the_requests() -> None:
    served = Served()
    for number, table in enumerate((4, 1, 3, 0)):
        assert served.take(7, table, number, 1)
    assert served.service.advance() == 0
    for table in (0, 1, 5):
        served.set_version(table, 1)
    assert served.service.advance() == 2
    assert served.sent == [(7, 65, 11), (7, 67, 10)]
    served.set_version(4, 2)
    assert served.service.advance() == 3
    assert served.sent[2:] == [(7, 64, 24)]
    for message in served.messages:
        message.has_left = True
    assert served.service.advance() == 0
    served.set_version(3, 1)
    served.service.advance()
    assert served.sent[3:] == [(7, 66, 13)]


def test_a_head_that_is_half_written_is_not_due() -> None:
    served = Served()
    served.set_version(2, 1)
    head = served.region[32:48].view(np.uint64)
    head[0] = 5
    assert served.take(1, 2, 0, 1)
    assert served.service.advance() == 0
    served.set_version(2, 5)
    assert served.service.advance() == 1


def test_few_messages_of_one_worker_are_under_way_and_others_do_not_wait_for_them() -> None:
    n_parts = MOST_UNDER_WAY + 3
    served = Served(value_bytes=n_parts * VALUE_BYTES)
    assert served.take(1, 0, 0, 0)
    assert served.take(1, 1, 1, 0)
    assert served.take(2, 1, 0, 0)
    assert served.service.advance() == 2 * MOST_UNDER_WAY
    assert served.sent.count((1, 64, 0)) == served.sent.count((2, 64, 1)) == MOST_UNDER_WAY
    for message in served.messages[:4]:
        message.has_left = True
    served.service.advance()
    served.service.advance()
    assert served.sent[2 * MOST_UNDER_WAY :] == [(1, 64, 0)] * 3 + [(1, 65, 1)]


@pytest.mark.parametrize(
    ("where", "n_bytes"),
    [
        (WHERE.pack(4, 0), 8),
        (WHERE.pack(1 << 40, 0), 8),
        (WHERE.pack(0, MOST_REQUESTS), 8),
        (WHERE.pack(0, 0), 0),
        (WHERE.pack(0, 9), 8),  # its number is in use
    ],
)
def test_requests_that_no_worker_sends_are_refused(where: bytes, n_bytes: int) -> None:
    served = Served()
    assert served.take(3, 0, 9, 1)
    assert not served.service.take(3, where, VALUES_AT, n_bytes, 1)
    assert served.service.take(4, WHERE.pack(0, 9), VALUES_AT, 8, 1)

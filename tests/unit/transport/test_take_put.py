"""A small put in one message: what a server takes at once, and what it leaves to the general path."""

from __future__ import annotations

import struct

import numpy as np
import pytest

from mpips import _native

PUT, OTHER = 1, 2
START, STOP = 64, 128
HEAD = struct.Struct("<QQQQ")


def take(operation, offset, data, n_bytes=None, count=0, stop=STOP, length=None):
    """The result of a message in a longer buffer, and the region behind it."""
    region = np.zeros(160, np.uint8)
    head = HEAD.pack(operation, offset, len(data) if n_bytes is None else n_bytes, count)
    message = np.frombuffer(head + data + b"\xff" * 100, np.uint8)
    length = HEAD.size + len(data) if length is None else length
    return _native.take_put(message, length, region, PUT, START, stop), region


@pytest.mark.parametrize(("offset", "n"), [(START, 1), (START, 64), (STOP - 1, 1), (80, 17)])
@pytest.mark.parametrize("count", [0, 1, 2**40])
def test_a_put_is_copied_and_its_question_returned(offset, n, count):
    data = bytes(range(1, n + 1))
    found, region = take(PUT, offset, data, count=count)
    assert found == count
    assert region[offset : offset + n].tobytes() == data
    assert np.count_nonzero(region) == n


@pytest.mark.parametrize(
    "message",
    [
        {"operation": OTHER},
        {"offset": START - 1},
        {"offset": STOP - 3},
        {"offset": STOP},
        {"offset": 2**64 - 2},
        {"n_bytes": 3},
        {"n_bytes": 5},
        {"n_bytes": 2**64 - START},
        {"data": b""},
        {"length": 0},
        {"length": 31},
        {"length": 35},
        {"stop": START},
        {"offset": 158, "stop": 2**40},
    ],
    ids=str,
)
def test_anything_else_is_left_alone(message):
    found, region = take(**{"operation": PUT, "offset": START, "data": b"abcd", **message})
    assert found == -1
    assert not region.any()


def test_a_length_beyond_the_buffer_is_not_read():
    message = np.frombuffer(HEAD.pack(PUT, START, 64, 0) + b"ab", np.uint8)
    assert _native.take_put(message, 1 << 20, np.zeros(160, np.uint8), PUT, START, STOP) == -1

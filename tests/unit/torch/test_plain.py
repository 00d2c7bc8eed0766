"""Values that a cursor holds: what a restart reads is what the script had."""

from __future__ import annotations

import json
import math

import msgspec
import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from mpips.checkpoint.position import Position  # noqa: E402
from mpips.torch.cursor import NOT_PLAIN, from_plain, to_plain  # noqa: E402

SAME = [None, True, 3, -0.5, math.inf, -math.inf, "cos", [1, 2.5], [], [[math.inf], "a"]]


@pytest.mark.parametrize("value", SAME)
def test_a_value_is_the_same_after_json_and_msgpack(value):
    plain = to_plain(value)
    Position(0, 0, 1).set_cursor({"value": plain})
    assert from_plain(json.loads(json.dumps(plain, allow_nan=False))) == value
    assert from_plain(msgspec.msgpack.decode(msgspec.msgpack.encode(plain))) == value


@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        ((0.9, 0.999), [0.9, 0.999]),
        (torch.tensor(0.25), 0.25),
        ((torch.tensor([0.25]), 1), [0.25, 1]),
        (np.float32(0.25), 0.25),
        (np.float64(0.25), 0.25),
        (np.int64(7), 7),
        (np.bool_(True), True),
        ([np.float64("inf")], [math.inf]),
    ],
)
def test_numbers_of_numpy_and_torch_become_plain(value, wanted):
    plain = to_plain(value)
    Position(0, 0, 1).set_cursor({"value": plain})
    found = from_plain(plain)
    assert found == wanted
    assert type(found) is type(wanted)


def test_nan_stays_nan():
    assert to_plain(float("nan")) == {"float": "nan"}
    assert math.isnan(from_plain({"float": "nan"}))


@pytest.mark.parametrize("value", [{"a": 1}, print, torch.ones(2), [1, {"a": 1}], {1}, b"x"])
def test_other_values_are_none_for_a_cursor(value):
    assert to_plain(value) is NOT_PLAIN

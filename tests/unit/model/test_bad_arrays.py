"""Updates, base values, destinations, keys and descriptions of users: taken exactly, or refused."""

from __future__ import annotations

import re

import numpy as np
import pytest
from harness import Rig, dense, rows

import mpips
from mpips.errors import ConfigError
from mpips.model.arrays import as_float32
from mpips.model.consistency import ASP, BSP, SSP, Compensate, Reject, Scale
from mpips.model.initializer import Initializer
from mpips.model.optimizer import SGD
from mpips.model.table import DenseTable, EmbeddingTable

N = 8
ROWS = 4


def ones(dtype=np.float32):
    return np.ones(N, dtype)


def masked(shape=(N,)):
    return np.ma.masked_array(np.ones(shape, np.float32), mask=np.zeros(shape, bool))


def rig():
    """Tables for every way of a push: port, parts, rows, with base, clipped, in segments of the ring."""
    return Rig(
        dense(N, "port"),
        dense(N, "clipped", clip_norm=1e9),
        dense(N, "base", consistency=ASP(policy=Compensate())),
        dense(N, "unchecked", check_finite=False),
        rows(ROWS, "rows"),
        rows(ROWS, "rows_base", consistency=ASP(policy=Compensate())),
        rows(ROWS, "rows_unchecked", check_finite=False),
        dense(5000, "long"),
    )


BAD = [
    (np.array([1j] * N), TypeError, "has dtype complex128"),
    (ones(np.complex64), TypeError, "has dtype complex64"),
    (np.array(["1.5"] * N), TypeError, "expected real numbers"),
    (np.array([1.5] * (N - 1) + [None], object), TypeError, "has dtype object"),
    (np.array([b"1"] * N), TypeError, "expected real numbers"),
    (np.zeros(N, "M8[s]"), TypeError, "expected real numbers"),
    (np.zeros(N, [("a", "f4")]), TypeError, "expected real numbers"),
    (masked(), TypeError, "masked array"),
    (
        np.array([1] * (N - 1) + [2**24 + 1]),
        ValueError,
        "contains 16777217 at position 7, which float32",
    ),
    (
        np.array([1] * (N - 1) + [2**63 - 1]),
        ValueError,
        "contains 9223372036854775807 at position 7",
    ),
    (np.array([1] * (N - 1) + [2**64 - 1], np.uint64), ValueError, "contains 18446744073709551615"),
    (np.array([1] * (N - 1) + [2**31 - 1], np.int32), ValueError, "contains 2147483647"),
    (
        np.array([1.0] * (N - 1) + [1e39]),
        ValueError,
        "contains 1e.39 at position 7, which is beyond",
    ),
    (
        np.array([1.0] * (N - 1) + [-1e300], np.longdouble),
        ValueError,
        "beyond the range of float32",
    ),
    (np.ones(N + 1, np.float32), ValueError, "shape"),
]


@pytest.mark.parametrize(("bad", "error", "match"), BAD, ids=lambda v: str(v)[:30])
def test_an_update_that_float32_cannot_hold_is_refused_by_every_way(bad, error, match):
    r = rig()
    worker = r.worker()
    keys = np.arange(N // ROWS)
    grid = bad.reshape(N // ROWS, ROWS) if bad.size == N else bad
    good, row = ones(), np.ones((N // ROWS, ROWS), np.float32)
    calls = [
        *(lambda n=name: worker.table(n).push(bad) for name in ("port", "clipped", "unchecked")),
        lambda: worker.table("port").push_pull(bad),
        lambda: worker.table("base").push(bad, good),
        lambda: worker.table("base").push(good, bad),
        lambda: worker.table("rows").push(keys, grid),
        lambda: worker.table("rows").push_pull(keys, grid),
        lambda: worker.table("rows_unchecked").push(keys, grid),
        lambda: worker.table("rows_base").push(keys, row, grid),
        lambda: worker.table("rows_base").push(keys, grid, row),
    ]
    for call in calls:
        with pytest.raises(error, match=match):
            call()
    assert r.writers[0].next_sequence == 0, "nothing was sent"


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_base_that_is_not_finite_is_refused(value):
    r = rig()
    worker = r.worker()
    bad = ones()
    bad[3] = value
    with pytest.raises(
        ValueError, match=r"the base of table 'base' contains .* at position 3 of 8"
    ):
        worker.table("base").push(ones(), bad)
    with pytest.raises(ValueError, match="the base of table 'rows_base' contains"):
        worker.table("rows_base").push(np.arange(2), np.ones((2, 4)), bad.reshape(2, 4))
    assert r.writers[0].next_sequence == 0


def test_what_float32_holds_is_taken_exactly_whatever_its_type():
    r = rig()
    handle = r.worker().table("port")
    total = np.zeros(N)
    types = ["?", "i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "f2", "f8", ">f4", "g"]
    for dtype in types:
        update = (np.arange(N) % 2).astype(dtype)
        handle.push(update).wait()
        total += np.arange(N) % 2
    large = np.array([2**24, -(2**24), 2**62, -(2**63), 2**31, -(2**31), 0, 1])
    r.worker().table("unchecked").push(large).wait()
    assert r.values(3).tolist() == (-large.astype(float)).tolist()
    handle.push([1.0] * N).wait()
    handle.push(np.asfortranarray(np.ones((N, 2), np.float32))[:, 0]).wait()
    handle.push(np.ones(N, np.float32).view(type("Mine", (np.ndarray,), {}))).wait()
    assert r.values(0).tolist() == (-(total + 3)).tolist()


def test_rounding_of_other_floats_is_that_of_numpy():
    values = np.array([0.1, 1e-50, 3.4028235e38, -0.1])
    assert (as_float32("x", values, (4,)) == values.astype(np.float32)).all()
    assert as_float32("x", np.array([np.inf, np.nan]), (2,)).tolist()[0] == np.inf


def destinations(shape):
    """Destinations that cannot receive values of this shape."""
    fine = np.zeros(shape, np.float32)
    return [
        np.zeros((9, *shape[1:]), np.float32),
        np.zeros((*shape, 1), np.float32),
        np.zeros(shape),
        fine.tolist(),
        masked(shape),
        np.broadcast_to(np.float32(0), shape),
        fine.astype(">f4"),
    ]


KINDS = ["long", "shape", "float64", "list", "masked", "read-only", "other order"]


@pytest.mark.parametrize("kind", range(len(KINDS)), ids=KINDS)
def test_a_destination_that_cannot_be_written_is_refused_before_anything_is_sent(kind):
    r = rig()
    worker = r.worker()
    table, out = worker.table("port"), destinations((N,))[kind]
    for call in (table.pull, table.prefetch, lambda o: table.push_pull(ones(), o)):
        with pytest.raises(ValueError, match="out must be a writable C-contiguous float32 array"):
            call(out)
    keys, row = np.arange(2), np.ones((2, ROWS), np.float32)
    embedding, out = worker.table("rows"), destinations((2, ROWS))[kind]
    for call in (lambda o: embedding.pull(keys, o), lambda o: embedding.push_pull(keys, row, o)):
        with pytest.raises(ValueError, match="out must be a writable float32 array"):
            call(out)
    assert r.writers[0].next_sequence == 0


def test_rows_are_pulled_into_an_array_with_gaps():
    r = rig()
    table = r.worker().table("rows")
    out = np.ones((2, 2 * ROWS), np.float32)[:, ::2]
    assert table.pull(np.arange(2), out) is out
    assert not out.any()


@pytest.mark.parametrize(
    ("keys", "error", "match"),
    [
        (np.array([1.0, 2.0]), ValueError, "whole numbers"),
        (np.array([True, False]), ValueError, "whole numbers"),
        (np.array(["1", "2"]), ValueError, "whole numbers"),
        (np.array([1, 2], object), ValueError, "whole numbers"),
        (np.array([1, 2**63], np.uint64), ValueError, "do not fit"),
        (np.ma.masked_array([1, 2], mask=[0, 1]), TypeError, "masked"),
        (np.array([[1, 2]]), ValueError, "one dimension"),
    ],
    ids=["float", "bool", "text", "object", "uint64", "masked", "2d"],
)
def test_keys_that_are_no_int64_are_refused(keys, error, match):
    r = rig()
    table = r.worker().table("rows")
    row = np.ones((2, ROWS), np.float32)
    calls = (
        lambda: table.push(keys, row),
        lambda: table.pull(keys),
        lambda: table.prefetch(keys),
        lambda: table.push_pull(keys, row),
    )
    for call in calls:
        with pytest.raises(error, match=match):
            call()
    assert r.writers[0].next_sequence == 0


def test_uint64_keys_within_int64_are_the_same_keys():
    r = rig()
    table = r.worker().table("rows")
    table.push(np.array([2**63 - 1], np.uint64), np.ones((1, ROWS), np.float32)).wait()
    assert table.pull(np.array([2**63 - 1])).tolist() == [[-1.0] * ROWS]


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"consistency": SSP}, r"consistency = SSP is a class; call it: SSP\(\)"),
        ({"consistency": 3}, "consistency = 3: must be BSP"),
        ({"optimizer": SGD}, r"optimizer = SGD is a class; call it: SGD\(\)"),
        ({"optimizer": "sdg"}, "optimizer"),
        ({"optimizer": None}, "optimizer = None"),
        ({"partition": mpips.HashPartition}, "partition = HashPartition is a class"),
        ({"partition": None}, "partition = None"),
        ({"init": Initializer}, "init = Initializer is a class"),
        ({"init": None}, "init = None"),
        ({"init": 0.0}, "init = 0.0"),
        ({"clip_norm": "1"}, "clip_norm = '1'"),
        ({"check_finite": "no"}, "check_finite = 'no'"),
    ],
    ids=str,
)
@pytest.mark.parametrize("kind", [DenseTable, EmbeddingTable])
def test_a_description_of_the_wrong_kind_is_refused(kind, options, match):
    size = (4,) if kind is DenseTable else 4
    with pytest.raises(ConfigError, match=match):
        kind("t", size, **options)


@pytest.mark.parametrize(
    "make",
    [
        lambda: SSP(policy=Scale),
        lambda: ASP(policy=Reject),
        lambda: ASP(policy="scale"),
        lambda: SSP(bound=1.5),
        lambda: SSP(bound=True),
        lambda: SSP(bound="2"),
        lambda: BSP(backup=0.5),
        lambda: Reject(1.5),
        lambda: Compensate("0.1"),
        lambda: Compensate(True),
        lambda: DenseTable("t", (2.5,)),
        lambda: DenseTable("t", 3),
        lambda: DenseTable(3, (3,)),
        lambda: EmbeddingTable("t", 2.5),
        lambda: EmbeddingTable("t", True),
        lambda: DenseTable("t", (2,), init=np.array([1j, 1])),
        lambda: DenseTable("t", (2,), init=np.array([1e39, 1])),
        lambda: DenseTable("t", (2,), init=np.array([2**24 + 1, 1])),
        lambda: DenseTable("t", (2,), init=masked((2,))),
        lambda: DenseTable("t", (2,), init=np.zeros(3)),
    ],
)
def test_a_value_of_the_wrong_type_is_a_config_error(make):
    with pytest.raises(ConfigError):
        make()


class Tensor:
    """Imitation of a tensor of torch: NumPy converts it, unless it takes part in differentiation."""

    def __init__(self, values, requires_grad=False):
        self.values, self.requires_grad = np.asarray(values), requires_grad

    def __array__(self, dtype=None, copy=None):
        if self.requires_grad:
            raise RuntimeError("Can't call numpy() on Tensor that requires grad.")
        return self.values if dtype is None else self.values.astype(dtype)


NO_ARRAYS = [
    (None, TypeError, "is None"),
    (1.0, ValueError, r"has shape \(\), expected"),
    ({}, TypeError, "is a dict"),
    ((x for x in range(N)), TypeError, "is a generator"),
    ([[1.0], [1.0, 2.0]], TypeError, "cannot be read as an array: setting an array element"),
    (Tensor([1.0], requires_grad=True), TypeError, "read as an array: Can't call numpy()"),
]


@pytest.mark.parametrize(("bad", "error", "match"), NO_ARRAYS, ids=lambda v: str(v)[:20])
def test_what_is_no_array_is_refused_in_one_line_that_names_it(bad, error, match):
    worker = rig().worker()
    dense_table, embedding = worker.table("port"), worker.table("rows")
    keys = np.arange(2)
    for what, call in (
        ("the update ", lambda: dense_table.push(bad)),
        ("base ", lambda: worker.table("base").push(ones(), bad)),
        ("rows ", lambda: embedding.push(keys, bad)),
    ):
        if what == "base " and bad is None:
            continue  # no base
        with pytest.raises(error, match=match) as caught:
            call()
        assert str(caught.value).startswith(what), caught.value
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("bad", "match"), [(None, "None"), ({}, "a dict"), (3, "shape ()")])
def test_keys_that_are_no_array_are_named(bad, match):
    with pytest.raises(ValueError, match=f"^keys must be whole numbers.*{re.escape(match)}"):
        rig().worker().table("rows").pull(bad)


def test_ragged_keys_are_refused_in_one_line():
    with pytest.raises(ValueError, match=r"^keys cannot be read as an array: "):
        rig().worker().table("rows").pull([[1], [1, 2]])


@pytest.mark.parametrize(
    ("bad", "match"),
    [
        (np.zeros(N), "not float64"),
        (np.zeros(N + 1, np.float32), r"not float32 of shape \(9,\)"),
        ([0.0] * N, "not a list"),
        (Tensor(ones()), "not a Tensor"),
        (np.broadcast_to(np.float32(0), (N,)), "read-only"),
        (np.zeros(2 * N, np.float32)[::2], "with gaps"),
    ],
    ids=["dtype", "shape", "list", "tensor", "read-only", "gaps"],
)
def test_a_destination_is_refused_with_what_is_wrong_about_it(bad, match):
    with pytest.raises(ValueError, match=f"^out must be .*{match}"):
        rig().worker().table("port").pull(bad)


def test_a_tensor_and_a_read_only_array_are_pushed_as_they_are():
    r = rig()
    table = r.worker().table("port")
    table.push(Tensor(ones())).wait()
    frozen = ones()
    frozen.flags.writeable = False
    table.push(frozen).wait()
    r.worker().table("rows").push(Tensor([1, 2]), Tensor(np.ones((2, ROWS)))).wait()
    assert r.values(0).tolist() == [-2.0] * N


@pytest.mark.parametrize("shape", [-1, (2, -1), None, "4", 2.5, (2.5,), True])
def test_a_shape_to_allocate_that_is_none_is_a_config_error(shape):
    with pytest.raises(ConfigError, match="allocate: shape"):
        rig().worker().allocate(shape)


@pytest.mark.parametrize(
    ("cursor", "message"),
    [
        (
            {"a": [1, float("inf")]},
            r"^cursor\['a'\]\[1\] is inf, which a checkpoint cannot hold: store",
        ),
        ({"a": {"b": float("nan")}}, r"^cursor\['a'\]\['b'\] is nan, which"),
        (
            {"a": np.float64(1)},
            r"^cursor\['a'\] is a numpy.float64: must be int, float, bool, str, None",
        ),
        ({"a": (np.int64(1),)}, r"^cursor\['a'\]\[0\] is a numpy.int64: must be"),
        ({"a": {1, 2}}, r"^cursor\['a'\] is a builtins.set: must be"),
        ({"a": b"x"}, r"^cursor\['a'\] is a builtins.bytes: must be"),
        ({1: 2}, "^cursor has the key 1: keys must be text$"),
        ({"a": 1 << 64}, r"^cursor\['a'\] is 18446744073709551616, which has more than 64 bits"),
    ],
)
def test_a_cursor_that_would_not_outlive_a_restart_is_refused(cursor, message):
    worker = rig().worker()
    worker.set_cursor({"a": [1, (2.5, None), {"b": True}], "c": "d", "e": -(1 << 63)})
    before = dict(worker.cursor)
    with pytest.raises((TypeError, ValueError), match=message):
        worker.set_cursor(cursor)
    assert worker.cursor == before


@pytest.mark.parametrize("cursor", [3, [1, 2], None])
def test_a_cursor_that_is_no_dict_is_refused(cursor):
    with pytest.raises(TypeError, match="cursor must be a dict"):
        rig().worker().set_cursor(cursor)

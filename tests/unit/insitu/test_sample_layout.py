"""A sample as a row, and where it goes: each value comes back, and the choice follows from counts alone."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from mpips import StreamTable
from mpips.errors import ConfigError
from mpips.insitu.counts import DIM, CountsRow, ProducerCounts, counts_of, declarations_of, row_of
from mpips.insitu.layout import SampleLayout
from mpips.insitu.slots import SampleSlots, uniform

EDGES = {
    "float32": [0.0, 3.4e38, -1.5, 1e-45],
    "float64": [0.1, -1.7e308, 5e-324, -0.0],
    "int8": [-128, 127, 0, -1],
    "int16": [-(2**15), 2**15 - 1, 0, -1],
    "int32": [-(2**31), 2**31 - 1, 0x7F800001, -1],
    "int64": [-(2**63), 2**63 - 1, 2**53 + 1, -1],
    "uint8": [0, 255, 128, 1],
    "uint16": [0, 65535, 256, 1],
    "uint32": [0, 2**32 - 1, 2**16, 0x7F800001],
    "uint64": [0, 2**64 - 1, 2**53 + 1, 1],
    "bool": [True, False, False, True],
}


def encoded(layout: SampleLayout, producer: int, number: int, sample: dict) -> np.ndarray:
    """The row of a sample."""
    row = np.full((1, layout.dim), np.nan, np.float32)
    layout.encode(producer, number, number + 3, layout.checked(sample), row)
    return row


@pytest.mark.parametrize("dtype", EDGES)
@pytest.mark.parametrize("n", [1, 3, 4])
def test_values_of_each_type_come_back_bit_for_bit(dtype: str, n: int) -> None:
    layout = SampleLayout("s", {"before": (2,), "x": ((n,), dtype), "after": ()})
    x = np.array(EDGES[dtype][:n], dtype)
    sample = {"before": np.array([1, 2], np.float32), "x": x, "after": np.float32(7)}
    row = encoded(layout, 5, 2**40, sample)
    assert np.isfinite(row).all()
    producers, numbers, ordinals, arrays = layout.decode(np.concatenate([row, row]))
    assert ordinals.tolist() == [2**40 + 3] * 2
    assert producers.tolist() == [5, 5]
    assert numbers.tolist() == [2**40, 2**40]
    assert arrays["x"].dtype == x.dtype
    assert arrays["x"].tobytes() == 2 * x.tobytes()
    assert arrays["before"].tolist() == [[1, 2]] * 2
    assert arrays["after"].tolist() == [7, 7]


def test_shapes_and_strides_of_the_caller_do_not_matter() -> None:
    layout = SampleLayout("s", {"x": ((2, 3), "float64"), "y": (3, 2)})
    x, y = (
        np.arange(6.0).reshape(3, 2).T,
        np.asfortranarray(np.arange(6, dtype=np.float32).reshape(3, 2)),
    )
    _, _, _, arrays = layout.decode(encoded(layout, 0, 0, {"y": y, "x": x}))
    np.testing.assert_array_equal(arrays["x"][0], x)
    np.testing.assert_array_equal(arrays["y"][0], y)
    arrays["y"][:] = 0  # the caller's own
    x[:] = 0


NAN, INF = np.float32("nan"), np.float32("-inf")


@pytest.mark.parametrize("bad", [NAN, INF])
@pytest.mark.parametrize("at", [0, 5])
@pytest.mark.parametrize("form", ["C", "F"])
def test_fields_with_nan_or_infinity_are_named(bad: np.float32, at: int, form: Any) -> None:
    layout = SampleLayout("s", {"n": ((), "int8"), "x": (2, 3), "y": ((2, 3), "float64")})
    row = np.empty((1, layout.dim), np.float32)
    good = np.arange(6.0).reshape(2, 3)
    wrong = good.copy()
    wrong.flat[at] = bad
    for name in ("", "x", "y"):
        sample = {"n": 1, "x": good, "y": good} | ({name: wrong} if name else {})
        arrays = layout.checked({key: np.array(each, order=form) for key, each in sample.items()})
        arrays["x"] = np.array(arrays["x"], order=form)
        arrays["x"].flags.writeable = False
        assert layout.first_invalid(arrays) == (name or None)
        assert layout.encode(0, 0, 0, arrays, row) == (name or None)


def test_a_row_that_was_never_written_holds_no_sample() -> None:
    layout = SampleLayout("s", {"x": ()})
    assert layout.decode(np.zeros((2, layout.dim), np.float32))[1].tolist() == [-1, -1]


def test_integers_are_taken_by_their_values() -> None:
    layout = SampleLayout("s", {"x": ((2,), "uint8"), "n": ((), "int64"), "m": ((), "uint64")})
    arrays = layout.checked({"x": [1, 255], "n": np.uint64(7), "m": 2**40})
    assert [arrays[name].dtype.name for name in "xnm"] == ["uint8", "int64", "uint64"]
    assert [arrays[name].tolist() for name in "xnm"] == [[1, 255], 7, 2**40]
    good = {"x": [1, 2], "n": 1, "m": 1}
    for name, value, shown in (
        ("x", [1, 256], "256, which is beyond uint8"),
        ("x", [-1, 2], "-1, which is beyond uint8"),
        ("n", np.uint64(2**63), f"{2**63}, which is beyond int64"),
        ("m", -1, "-1, which is beyond uint64"),
    ):
        with pytest.raises(ValueError, match=f"field '{name}' contains {shown}"):
            layout.checked({**good, name: value})
    for value in ([1.0, 2.0], [np.nan, 1.0]):
        with pytest.raises(TypeError, match="field 'x' has values of float64"):
            layout.checked({**good, "x": value})


@pytest.mark.parametrize(
    ("sample", "error", "text"),
    [
        ({"x": [1, 2]}, ValueError, "has the fields x, i; given: x"),
        ({"x": [1, 2], "i": 1, "z": 1}, ValueError, "has the fields x, i; given: x, i, z"),
        ([1, 2], ValueError, "has the fields x, i"),
        ({"x": [1, 2], 1: 1}, ValueError, "has the fields x, i; given: x, 1"),
        ({"x": [1, 2, 3], "i": 1}, ValueError, "field 'x' has shape (3,), declared is (2,)"),
        ({"x": ["a", "b"], "i": 1}, TypeError, "field 'x' has values of <U1, declared is float32"),
        ({"x": [1j, 2], "i": 1}, TypeError, "field 'x' has values of complex128"),
        ({"x": [1, 2], "i": 1.0}, TypeError, "field 'i' has values of float64, declared is int16"),
        ({"x": [1, 2], "i": 40000}, ValueError, "field 'i' contains 40000, which is beyond int16"),
        ({"x": [1, 1e39], "i": 1}, ValueError, "field 'x' contains 1e+39, which is beyond float32"),
    ],
)
def test_samples_that_do_not_fit_are_refused(sample: object, error: type, text: str) -> None:
    layout = SampleLayout("s", {"x": (2,), "i": ((), "int16")})
    with pytest.raises(error, match=re.escape(text)):
        layout.checked(sample)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"fields": {}}, "fields = {}: must name at least one array"),
        ({"fields": {"x": 3}}, "field 'x' = 3: must be a shape such as (64, 64)"),
        ({"fields": {"x": (0,)}}, "field 'x' = (0,): must be a shape"),
        ({"fields": {"x": ((2,), "complex64")}}, "type 'complex64': must be one of float32,"),
        ({"fields": {1: ()}}, "the name of a field must be a text"),
        ({"capacity": 0}, "give one of capacity (samples) and capacity_mib"),
        ({"capacity": 0, "capacity_mib": float("inf")}, "capacity_mib = inf: must be a number of"),
        ({"capacity_mib": 1.0}, "give one of capacity (samples) and capacity_mib"),
        ({"capacity": -1}, "capacity = -1: must be a whole number of at least 0"),
        ({"producers": 0}, "producers = 0: must be a whole number of at least 1"),
        ({"producers": 11}, "room for 0 samples of each of 11 producers, 1 are needed"),
        ({"producers": 10, "held_out": 0.1}, "room for 1 samples of each of 10 producers, 2 are"),
        ({"held_out": 1.0}, "held_out = 1.0: must be a share from 0 to below 1"),
        ({"held_out": float("nan")}, "held_out = nan: must be a share"),
        ({"keep": "oldest"}, "keep = 'oldest': must be 'reservoir' or 'newest'"),
        ({"invalid": "keep"}, "invalid = 'keep': must be 'error' or 'drop'"),
        ({"seed": -1}, "seed = -1: must be a whole number"),
        ({"name": ""}, "the name must be a text"),
    ],
)
def test_declarations_that_cannot_be_are_refused(options: dict, text: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(text)):
        StreamTable(**{"name": "s", "fields": {"x": (2,)}, "capacity": 10, **options})


def test_capacity_is_given_in_samples_or_memory_and_divided() -> None:
    stream = StreamTable("s", {"x": (59,)}, capacity_mib=1, producers=4, held_out=0.25)
    assert stream.layout.dim == 64
    assert stream.slots.n == 1024
    assert (stream.slots.n_train, stream.slots.n_held_out) == (768, 256)
    tiny = StreamTable("s", {"x": ()}, capacity=2, held_out=0.01)
    assert (tiny.slots.n_train, tiny.slots.n_held_out) == (1, 1)


def test_counts_of_any_size_come_back() -> None:
    counts = [ProducerCounts(), ProducerCounts(2**47, 2**24, 2**24 - 1, 5, 1, True)]
    stored = [CountsRow(each, counts[0], True, 2**40 + 3, 7, 2**48 - 1) for each in counts]
    rows = np.concatenate([each.values() for each in stored])
    assert rows.shape == (2, DIM)
    assert rows.dtype == np.float32
    assert counts_of(rows) == counts
    assert declarations_of(rows).tolist() == [2**48 - 1] * 2
    assert [row_of(row) for row in rows] == stored


def pushed(slots: SampleSlots, n: int, producer: int = 3) -> tuple[dict[int, int], ProducerCounts]:
    """What lies in each slot after `n` samples, and the counts."""
    held: dict[int, int] = {}
    counts = ProducerCounts()
    for number in range(n):
        slot, is_held_out = slots.of(producer, counts)
        if slot is not None:
            held[slot] = number
        counts.produced += 1
        counts.held_out += is_held_out
        counts.trained += not is_held_out
    return held, counts


def test_the_newest_are_those_after_which_no_more_came_than_there_are_slots() -> None:
    held, counts = pushed(SampleSlots(7, 3, 0.3, "newest", 0), 500)
    train = [i for i in range(500) if not SampleSlots(7, 3, 0.3, "newest", 0).is_held_out(3, i)]
    out = [i for i in range(500) if i not in train]
    assert sorted(held[slot] for slot in range(7)) == train[-7:]
    assert sorted(held[slot] for slot in range(7, 10)) == out[-3:]
    assert (counts.trained, counts.held_out) == (len(train), len(out))
    assert 110 < len(out) < 190


def test_a_reservoir_holds_each_sample_with_equal_probability() -> None:
    # 3,000 reservoirs of 5 of 20 samples: each sample is in 750 of them, give or take 24.
    found = np.zeros(20)
    for seed in range(3000):
        held, _ = pushed(SampleSlots(5, 0, 0.0, "reservoir", seed), 20)
        assert len(set(held.values())) == 5
        found[list(held.values())] += 1
    assert abs(found - 750).max() < 5 * 24


def test_what_is_held_out_depends_on_seed_producer_and_number() -> None:
    slots = SampleSlots(4, 4, 0.5, "newest", 1)
    choice = [slots.is_held_out(0, i) for i in range(64)]
    assert choice == [slots.is_held_out(0, i) for i in range(64)]
    assert choice != [slots.is_held_out(1, i) for i in range(64)]
    assert choice != [SampleSlots(4, 4, 0.5, "newest", 2).is_held_out(0, i) for i in range(64)]
    # Any keep, any size: the same samples.
    assert choice == [SampleSlots(9, 1, 0.5, "reservoir", 1).is_held_out(0, i) for i in range(64)]


def test_numbers_are_uniform() -> None:
    values = np.array([uniform(7, p, i, 1) for p in range(10) for i in range(1000)])
    assert 0 <= values.min() < values.max() < 1
    counts, _ = np.histogram(values, 20, (0, 1))
    assert abs(counts - 500).max() < 5 * 22

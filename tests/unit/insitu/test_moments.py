"""FieldMoments of a stream: those of the definition in float64, over what was produced, whatever is held."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mpips
from mpips import StreamTable, Worker
from mpips.errors import ConfigError, StallError, StreamError
from mpips.insitu.counts import AGREED_KEY, CountsRow, ProducerCounts, moments_of, row_of
from mpips.insitu.layout import SampleLayout
from mpips.insitu.moments import FieldMoments, MomentsLayout, merged
from mpips.insitu.reader import SampleReader

RANDOM = np.random.default_rng(5)


def layout_of(fields: Any, of: Any = "field") -> MomentsLayout:
    return MomentsLayout("s", SampleLayout("s", fields), of)


def taken(layout: MomentsLayout, samples: list[dict[str, Any]]) -> FieldMoments:
    """FieldMoments of samples, merged one after the other."""
    return layout.public(merged(layout, [layout.of_sample(sample) for sample in samples]))


VALUES = {
    "normal": RANDOM.standard_normal((5, 3000)),
    "far from zero": 1e4 + RANDOM.standard_normal((5, 3000)),
    "far from each other": np.arange(5)[:, None] * 1e3 + RANDOM.standard_normal((5, 3000)),
    "one far value": np.append(RANDOM.standard_normal((5, 2999)), np.full((5, 1), 1e4), 1),
    "large": 1e30 * RANDOM.standard_normal((5, 3000)),
    "small": 1e-30 * RANDOM.standard_normal((5, 3000)),
    "few": RANDOM.standard_normal((5, 7)) + 300,
    "one": RANDOM.standard_normal((5, 1)),
    "equal": np.full((5, 2000), 0.1),
}


@pytest.mark.parametrize("kind", VALUES)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_moments_are_those_of_all_values(kind: str, dtype: str) -> None:
    values = VALUES[kind].astype(dtype)
    exact = values.astype(np.float64)
    layout = layout_of({"x": (values.shape[1:], dtype)})
    found = taken(layout, [{"x": sample} for sample in values])
    assert found.n == 5
    std = exact.std()
    assert abs(found.mean["x"] - exact.mean()) <= 1e-6 * std + 1e-12 * abs(exact.mean())
    assert abs(found.std["x"] - std) <= 1e-6 * std + 1e-12 * abs(exact.mean())
    by_element = taken(
        layout_of({"x": (values.shape[1:], dtype)}, "element"), [{"x": sample} for sample in values]
    )
    np.testing.assert_allclose(by_element.mean["x"], exact.mean(0), 1e-9, 1e-12 * abs(exact).max())
    np.testing.assert_allclose(by_element.std["x"], exact.std(0), 1e-6, 1e-12 * abs(exact).max())


@pytest.mark.parametrize("dtype", ["int8", "uint64", "bool"])
def test_moments_of_whole_numbers(dtype: str) -> None:
    values = RANDOM.integers(0, 2, (4, 2000)).astype(dtype)
    found = taken(layout_of({"x": ((2000,), dtype)}), [{"x": sample} for sample in values])
    assert found.std["x"] == pytest.approx(values.astype(float).std(), rel=1e-12)


def test_values_are_normalised_and_restored() -> None:
    values = 300 + RANDOM.standard_normal((6, 4, 3)).astype(np.float32) * [1, 10, 0]
    values = values.astype(np.float32)
    for of in ("field", "element"):
        found = taken(layout_of({"x": (4, 3)}, of), [{"x": sample} for sample in values])
        assert found.mean["x"].shape == (() if of == "field" else (4, 3))
        normal = found.normalise("x", values)
        assert normal.dtype == np.float32
        axes = None if of == "field" else 0
        np.testing.assert_allclose(normal.mean(axes), 0, atol=1e-5)
        if of == "field":
            assert normal.std() == pytest.approx(1, rel=1e-4)
        else:
            np.testing.assert_allclose(normal[..., :2].std(0), 1, rtol=1e-4)
            assert (normal[..., 2] == 0).all()  # equal values: no division by zero
        np.testing.assert_allclose(found.restore("x", normal), values, rtol=1e-6)
    assert found.normalise("x", values.astype(np.float64)).dtype == np.float64
    with pytest.raises(KeyError):
        found.normalise("y", values)


@pytest.mark.parametrize(
    ("of", "text"),
    [
        ("all", "stream 's': moments = 'all': must be one of field, element, none"),
        ({"x": "mean"}, "stream 's': moments = 'mean': must be one of field, element, none"),
        ({"y": "field"}, "stream 's': moments: unknown field 'y'; fields: x"),
        (["x"], r"stream 's': moments = \['x'\]: must be one of field, element, none"),
    ],
)
def test_other_choices_are_refused(of: Any, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        StreamTable("s", {"x": (2,)}, 10, moments=of)


FIELDS = {"x": (40, 50), "y": ((2,), "float64"), "n": ((), "int32")}


def sample(producer: int, number: int) -> dict[str, Any]:
    random = np.random.default_rng([producer, number])
    y = random.standard_normal(2) + 1000
    if number % 11 == 5:
        y[1] = np.nan
    return {"x": random.standard_normal((40, 50), np.float32), "y": y, "n": number}


def run(stream: StreamTable, main: Callable[[Worker], Any], **options: Any) -> Any:
    return mpips.run(main, [stream], verbose=False, **options).value


def as_bytes(moments: FieldMoments) -> list[bytes]:
    """All values, bit for bit."""
    parts = [*moments.mean.values(), *moments.std.values()]
    return [moments.n.to_bytes(8, "little"), *(part.tobytes() for part in parts)]


@pytest.mark.parametrize("keep", ["reservoir", "newest"])
def test_moments_are_over_what_was_produced_and_independent_of_restarts(
    tmp_path: Path, keep: Any
) -> None:
    stream = StreamTable(
        "s",
        FIELDS,
        8,
        producers=2,
        held_out=0.25,
        keep=keep,
        invalid="drop",
        moments={"y": "element", "n": "none"},
    )

    def until(n: int) -> Callable[[Worker], Any]:
        def main(worker: Worker) -> FieldMoments:
            for p in range(2):
                producer = stream.producer(worker, p)
                for i in range(producer.produced, n - p):
                    producer.push(sample(p, i), wait=i % 3 > 0)
                producer.flush()
            worker.clock()
            return stream.reader(worker).moments()

        return main

    whole = run(stream, until(40))
    run(stream, until(17), save=tmp_path / "saved")
    continued = run(stream, until(40), save=tmp_path / "saved")
    assert as_bytes(continued) == as_bytes(whole)
    trained = [
        sample(p, i)
        for p in range(2)
        for i in range(40 - p)
        if i % 11 != 5 and not stream.slots.is_held_out(p, i)
    ]
    assert whole.n == len(trained) > stream.slots.n_train * 2
    assert set(whole.mean) == {"x", "y"}
    x, y = (np.array([each[name] for each in trained], np.float64) for name in "xy")
    assert whole.mean["x"] == pytest.approx(x.mean(), abs=1e-8)
    assert whole.std["x"] == pytest.approx(x.std(), rel=1e-7)
    np.testing.assert_allclose(whole.mean["y"], y.mean(0), rtol=1e-14)
    np.testing.assert_allclose(whole.std["y"], y.std(0), rtol=1e-10)


def test_moments_of_values_whose_squares_overflow_refuse_no_sample() -> None:
    stream = StreamTable("s", {"x": ((3,), "float64")}, 8)

    def main(worker: Worker) -> float:
        assert stream.producer(worker).push({"x": [1e200, 0.0, 1.0]})
        return float(stream.reader(worker).moments().std["x"])

    assert run(stream, main) == np.inf


def test_agreed_moments_stay_as_they_were_decided(tmp_path: Path) -> None:
    stream = StreamTable("s", {"x": ()}, 8)

    def main(worker: Worker) -> tuple[list[bytes], int]:
        producer, reader = stream.producer(worker), stream.reader(worker)
        if producer.produced == 0:
            for error, call in (
                (StreamError, reader.moments),
                (StallError, lambda: reader.agreed_moments(min_seen=1, patience_s=0.02)),
                (ConfigError, lambda: reader.agreed_moments(by=1)),
                (ConfigError, lambda: reader.agreed_moments(by=True)),
            ):
                with pytest.raises(error):
                    call()
        for n in range(4):
            producer.push({"x": 10.0 * producer.produced + n})
        found = reader.agreed_moments(min_seen=4)
        for n in range(4):
            producer.push({"x": n})
        assert as_bytes(reader.agreed_moments(min_seen=8)) == as_bytes(found)
        worker.clock()
        return as_bytes(found), reader.moments().n

    first, n = run(stream, main, save=tmp_path / "saved")
    again, later = run(stream, main, save=tmp_path / "saved")
    assert again == first
    assert (n, later) == (8, 16)


class OtherReader(SampleReader):
    """The reader of another worker of the job than the one that runs."""

    def __init__(self, stream: StreamTable, worker: Worker, index: int) -> None:
        super().__init__(stream, worker)
        self._worker = type(
            "Other", (), {"index": index, "n_workers": 3, "_connection": worker._connection}
        )()


def test_other_readers_wait_for_the_decision() -> None:
    stream = StreamTable("s", {"x": ()}, 8)

    def main(worker: Worker) -> None:
        producer = stream.producer(worker)
        producer.push({"x": 3.0})
        other, deciding = OtherReader(stream, worker, 1), OtherReader(stream, worker, 2)
        with pytest.raises(
            StallError,
            match=r"worker 2 has stored no moments, and for 0\.05 s .* worker 2 must call",
        ):
            other.agreed_moments(by=2, patience_s=0.05)
        decided = deciding.agreed_moments(by=2)
        producer.push({"x": 5.0})
        assert as_bytes(other.agreed_moments(by=2)) == as_bytes(decided)
        assert decided.mean["x"] == 3.0

    run(stream, main)


def test_a_decision_is_pushed_again_in_the_clock_that_is_repeated_by_the_worker_that_made_it() -> (
    None
):
    stream = StreamTable("s", {"x": ()}, 8)

    def main(worker: Worker) -> list[int]:
        stream.producer(worker).push({"x": 3.0})
        reader = stream.reader(worker)
        reader.agreed_moments()
        pushed: list[int] = []
        push = reader._table.push

        def noted(keys: np.ndarray, rows: np.ndarray) -> Any:
            pushed.extend(keys.tolist())
            return push(keys, rows)

        reader._table = type(
            "Noted", (), {"push": staticmethod(noted), "pull": staticmethod(reader._table.pull)}
        )()
        connection = worker._connection
        reader.agreed_moments()
        assert pushed == []
        for repeats, later, index in ((True, 0, 0), (True, 1, 0), (True, 0, 1), (False, 0, 0)):
            clock = {"repeats": repeats, "now": connection.now + later, "index": index}
            imitated = type("Repeating", (), clock)()
            own = {"index": index, "n_workers": 2, "_connection": imitated}
            reader._worker = type("W", (), own)()
            reader.agreed_moments()
        return pushed

    assert run(stream, main) == [AGREED_KEY]


def test_moments_are_in_the_row_of_counts_bit_for_bit() -> None:
    stored = np.array([0.1, -1e300, np.inf, 5e-324]).tobytes()
    row = CountsRow(ProducerCounts(3), ProducerCounts(2), True, 5, 1, 7, stored, stored[::-1])
    values = row.values()
    assert np.isfinite(values).all()
    assert row_of(values[0]) == row
    assert moments_of(values[0]) == stored

"""Streams of samples in a job of one process: what is pushed is what readers see, once, and for ever."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import mpips
from mpips import StreamTable, Worker
from mpips.errors import ConfigError, StallError, StreamError
from mpips.insitu.counts import DIM, ProducerCounts
from mpips.insitu.producer import Producer
from mpips.insitu.reader import SampleReader

FIELDS = {"x": (2, 3), "i": ((), "int64")}


def sample(producer: int, number: int) -> dict[str, Any]:
    """Values that tell which sample it is."""
    return {"x": np.full((2, 3), 1000 * producer + number, np.float32), "i": number - 2**40}


def check(batch: Any) -> None:
    """Each sample is one that was pushed, as it was pushed."""
    for k, (p, n) in enumerate(zip(batch.producers, batch.numbers, strict=True)):
        np.testing.assert_array_equal(batch["x"][k], sample(p, n)["x"])
        assert batch["i"][k] == n - 2**40


def run(stream: StreamTable, main: Callable[[Worker], Any], **options: Any) -> Any:
    """The value of the worker."""
    return mpips.run(main, [stream], verbose=False, **options).value


def expected(stream: StreamTable, producer: int, n: int) -> dict[int, int]:
    """The number of the sample in each slot after `n` samples."""
    counts, held = ProducerCounts(), {}
    for number in range(n):
        slot, is_held_out = stream.slots.of(producer, counts)
        if slot is not None:
            held[slot] = number
        counts.produced += 1
        counts.held_out += is_held_out
        counts.trained += not is_held_out
    return held


def everything(stream: StreamTable, reader: SampleReader) -> dict[tuple[int, int], int]:
    """The numbers of all held samples by producer and slot, read as readers do."""
    found = {}
    for held_out in (False, True):
        reader._refresh()
        sizes = reader._filled(held_out)
        if not sizes.sum():
            continue
        batch = reader._read(np.arange(sizes.sum()), sizes, held_out)
        check(batch)
        first = stream.slots.n_train if held_out else 0
        slots = np.concatenate([first + np.arange(size) for size in sizes])
        for p, slot, number in zip(batch.producers, slots, batch.numbers, strict=True):
            found[int(p), int(slot)] = int(number)
    return found


@pytest.mark.parametrize("keep", ["reservoir", "newest"])
@pytest.mark.parametrize("held_out", [0.0, 0.25])
def test_readers_see_what_the_rule_holds(keep: Any, held_out: float) -> None:
    stream = StreamTable("s", FIELDS, 60, producers=3, keep=keep, held_out=held_out, seed=5)
    sizes = {0: 150, 2: 11}  # producer 1 never comes

    def main(worker: Worker) -> None:
        reader = stream.reader(worker)
        for p, n in sizes.items():
            producer = stream.producer(worker, p)
            assert sum(producer.push(sample(p, i)) for i in range(n)) + producer.counts.thinned == n
        wanted = {
            (p, slot): number
            for p, n in sizes.items()
            for slot, number in expected(stream, p, n).items()
        }
        assert everything(stream, reader) == wanted
        counts = reader.counts()
        assert counts.produced == 161
        assert counts.held + counts.held_out == len(wanted)
        assert (counts.held_out > 0) == (held_out > 0)
        assert (counts.thinned > 0) == (keep == "reservoir")
        assert (counts.open, counts.ended) == (2, 0)

    run(stream, main)


def test_batches_are_random_without_repeats_and_of_all_that_is_held() -> None:
    stream = StreamTable("s", FIELDS, 20, producers=2, held_out=0.2, keep="newest")

    def main(worker: Worker) -> None:
        for p in range(2):
            for i in range(30):
                stream.producer(worker, p).push(sample(p, i))
        reader = stream.reader(worker)
        seen: dict[bool, set] = {False: set(), True: set()}
        for held_out in seen:
            for _ in range(60):
                batch = reader.sample(3, held_out)
                check(batch)
                names = list(zip(batch.producers, batch.numbers, strict=True))
                assert len(batch) == len(set(names)) == 3
                seen[held_out].update(names)
        slots = stream.slots
        assert len(seen[False]) == 2 * slots.n_train
        assert len(seen[True]) == 2 * slots.n_held_out
        assert not seen[False] & seen[True]
        # More than there are: samples repeat.
        batch = reader.sample(50)
        check(batch)
        assert len(batch) == 50
        all_out = [
            n for b in reader.all_held_out() for n in zip(b.producers, b.numbers, strict=True)
        ]
        assert sorted(all_out) == sorted(seen[True])

    run(stream, main)


def test_batches_end_with_the_producers_or_with_their_number() -> None:
    stream = StreamTable("s", FIELDS, 10)

    def main(worker: Worker) -> None:
        producer, reader = stream.producer(worker), stream.reader(worker)
        producer.push(sample(0, 0))
        n = 0
        for batch in reader.batches(2):
            check(batch)
            n += 1
            if n == 5:
                producer.push(sample(0, 1))
                producer.close()
                reader._known_at = float("-inf")  # as after a while
        assert n == 5
        assert len(list(reader.batches(2, limit=4))) == 4
        assert (reader.counts().open, reader.counts().ended) == (0, 1)
        # It comes back.
        assert producer.push(sample(0, 2))
        assert (reader.counts().open, reader.counts().ended) == (1, 0)
        assert reader.counts().produced == 3

    run(stream, main)


def test_waits_end_with_an_error_that_names_the_late_producers() -> None:
    stream = StreamTable("s", FIELDS, 40, producers=20)

    def main(worker: Worker) -> None:
        reader, producer = stream.reader(worker), stream.producer(worker, 4)
        with pytest.raises(StreamError, match="stream 's': no sample is held yet"):
            reader.sample(1)
        with pytest.raises(StreamError, match="no held-out sample is held yet"):
            reader.sample(1, held_out=True)
        producer.push(sample(4, 0))
        stream.producer(worker, 1).close()
        with pytest.raises(StallError) as error:
            next(reader.batches(1, min_seen=2, patience_s=0.05))
        assert "no new sample for 0.05 s while 1 of 2 samples are there" in str(error.value)
        assert "not ended: 0, 2, 3, 4, 5, 6, 7, 8 and 11 more" in str(error.value)
        for p in range(20):
            stream.producer(worker, p).close()
        # All have ended, so nothing is waited for.
        assert len(list(reader.batches(1, min_seen=1000))) == 1
        with pytest.raises(ValueError, match="0 samples: must be 1 or more"):
            reader.sample(0)

    run(stream, main)


def test_a_stream_whose_producers_end_without_a_sample_ends_readers() -> None:
    stream = StreamTable("s", FIELDS, 40)

    def main(worker: Worker) -> None:
        stream.producer(worker).close()
        with pytest.raises(StreamError, match="all producers have ended, and no sample is held"):
            next(stream.reader(worker).batches(1))

    run(stream, main)


@pytest.mark.parametrize(
    ("value", "moments"), [(np.nan, "field"), (np.inf, "element"), (-np.inf, "none")]
)
def test_invalid_samples_are_refused_or_counted(value: float, moments: Any) -> None:
    fields = {"x": (3,), "y": ((2,), "float64"), "n": ((), "int8")}
    bad = {"x": np.ones(3), "y": np.array([1, value]), "n": 1}
    good = {**bad, "y": np.ones(2)}

    def main(stream: StreamTable, worker: Worker) -> tuple[ProducerCounts, int]:
        producer, reader = stream.producer(worker), stream.reader(worker)
        assert producer.push(good)
        producer.close()
        if stream.invalid == "error":
            with pytest.raises(
                ValueError, match="field 'y' of sample 1 of producer 0 contains NaN"
            ):
                producer.push(bad)
        else:
            assert not producer.push(bad)
            assert (reader.counts().open, reader.counts().ended) == (1, 0)
            # A simulation that starts again goes on behind the sample that was dropped.
            assert stream.producer(worker).produced == 2
            with pytest.raises(StallError, match="while 1 of 2 samples are there"):
                next(reader.batches(1, min_seen=2, patience_s=0.0))
        producer.push(good)
        assert sorted(reader.sample(2).numbers) == [0, 1 + (stream.invalid == "drop")]
        return producer.counts, reader.counts().dropped

    for invalid, dropped in (("error", 0), ("drop", 1)):
        stream = StreamTable("s", fields, 9, invalid=invalid, moments=moments)  # type: ignore[arg-type]
        counts, seen = run(stream, lambda worker, stream=stream: main(stream, worker))
        assert counts == ProducerCounts(produced=2 + dropped, trained=2, dropped=dropped)
        assert seen == dropped


def test_a_sample_that_is_on_its_way_counts_when_it_is_there() -> None:
    stream = StreamTable("s", FIELDS, 9)

    def main(worker: Worker) -> None:
        producer, reader = stream.producer(worker), stream.reader(worker)
        producer.push(sample(0, 0), wait=False)
        assert reader.counts().produced == 0
        producer.push(sample(0, 1), wait=False)
        assert reader.counts().produced == 1
        producer.flush()
        assert reader.counts().produced == 2
        producer.push(sample(0, 2), wait=False)
        producer.close()
        assert reader.counts().produced == producer.produced == 3
        assert everything(stream, reader) == {(0, i): i for i in range(3)}

    run(stream, main)


@pytest.mark.parametrize("pushed", [0, 7, 35])
def test_a_job_that_continues_from_a_checkpoint_ends_as_an_undisturbed_one(
    tmp_path: Path, pushed: int
) -> None:
    stream = StreamTable("s", FIELDS, 12, producers=2, held_out=0.2, seed=3)
    total = 50

    def until(n: int) -> Callable[[Worker], Any]:
        def main(worker: Worker) -> Any:
            begun = []
            for p in range(2):
                producer = stream.producer(worker, p)
                begun.append(producer.produced)
                for i in range(producer.produced, n):
                    producer.push(sample(p, i))
            worker.clock()
            reader = stream.reader(worker)
            return begun, everything(stream, reader), reader.counts()

        return main

    _, whole, counts = run(stream, until(total))
    run(stream, until(pushed), save=tmp_path / "saved")
    begun, held, counted = run(stream, until(total), save=tmp_path / "saved")
    assert begun == [pushed, pushed]
    assert held == whole
    assert counted == counts


BASE: dict[str, Any] = {
    "fields": FIELDS,
    "capacity": 40,
    "producers": 2,
    "held_out": 0.25,
    "keep": "reservoir",
    "seed": 1,
    "moments": {"i": "none"},
}


def declared(options: dict[str, Any]) -> StreamTable:
    return StreamTable("s", **options)


@pytest.mark.parametrize(
    "change",
    [
        {"fields": {"i": ((), "int64"), "x": (2, 3)}},
        {"fields": {"x": (3, 2), "i": ((), "int64")}},
        {"fields": {"x": (2, 3), "i": ((), "uint64")}},
        {"fields": {"y": (2, 3), "i": ((), "int64")}},
        {"capacity": 80},
        {"capacity": 20},
        {"producers": 1},
        {"producers": 4, "capacity": 80},
        {"keep": "newest"},
        {"held_out": 0.0},
        {"held_out": 0.5},
        {"seed": 2},
        {"moments": {"x": "none"}},
    ],
)
def test_samples_of_another_declaration_are_refused(tmp_path: Path, change: dict[str, Any]) -> None:
    first, other = declared(BASE), declared({**BASE, **change})

    # Producer 1 alone, whose counts a launch with one producer would not look at.
    def push(worker: Worker) -> None:
        first.producer(worker, 1).push(sample(1, 0))
        worker.clock()

    def refused(worker: Worker) -> None:
        for begin in (other.producer, lambda worker: other.reader(worker).counts()):
            with pytest.raises(ConfigError, match="stream 's': its samples were pushed under anot"):
                begin(worker)

    run(first, push, save=tmp_path / "saved")
    run(other, refused, save=tmp_path / "saved")


def test_workers_that_declare_a_stream_otherwise_are_refused() -> None:
    stream, other = declared(BASE), declared({**BASE, "seed": 2})

    def main(worker: Worker) -> None:
        reader = other.reader(worker)
        assert reader.counts().produced == 0
        stream.producer(worker, 1).push(sample(1, 0))
        with pytest.raises(ConfigError, match="another declaration"):
            reader.counts()

    run(stream, main)


def test_treatment_of_invalid_samples_may_change(tmp_path: Path) -> None:
    for n, invalid in enumerate(("error", "drop")):
        stream = declared({**BASE, "invalid": invalid})

        def main(worker: Worker, stream: StreamTable = stream) -> int:
            producer = stream.producer(worker, 1)
            producer.push(sample(1, producer.produced))
            worker.clock()
            return producer.produced

        assert run(stream, main, save=tmp_path / "saved") == n + 1


def test_a_sample_that_came_without_its_counts_is_pushed_to_its_slot_again() -> None:
    stream = StreamTable("s", FIELDS, 4, seed=1)

    def main(worker: Worker) -> Any:
        reader = stream.reader(worker)
        for n in range(40):
            is_held = stream.producer(worker).push(
                sample(0, n), wait=False
            )  # then its process ends
            again = stream.producer(worker)
            # One that is left out needs nothing but its count.
            assert reader.counts().produced == again.produced == n + (not is_held)
            if is_held:
                assert again.push(sample(0, n))
        return everything(stream, reader)

    assert run(stream, main) == {(0, s): n for s, n in expected(stream, 0, 40).items()}


def test_producers_are_those_of_the_declaration() -> None:
    stream = StreamTable("s", FIELDS, 9, producers=3)

    def main(worker: Worker) -> None:
        assert stream.producer(worker, np.int64(2)).number == 2  # type: ignore[arg-type]
        for number in (-1, 3, 1.0, True):
            with pytest.raises(ConfigError, match=r"must be a whole number from 0 to 2, since"):
                Producer(stream, worker, number)  # type: ignore[arg-type]
        other = StreamTable("other", FIELDS, 9)
        for take in (other.producer, other.reader):
            with pytest.raises(
                ConfigError, match=r"this job has no stream 'other': give it to mpips\.run"
            ):
                take(worker)

    run(stream, main)


def test_streams_stand_beside_tables_and_each_other() -> None:
    streams = [StreamTable(name, FIELDS, 9) for name in "ab"]
    dense = mpips.DenseTable("w", (3,), consistency="asp")

    def main(worker: Worker) -> None:
        for k, stream in enumerate(streams):
            stream.producer(worker).push(sample(0, k))
        worker.table("w").push(np.ones(3, np.float32))
        worker.clock()
        for k, stream in enumerate(streams):
            assert stream.reader(worker).sample(1).numbers == [0]
            assert stream.reader(worker).sample(1)["i"] == k - 2**40

    mpips.run(main, [streams[0], dense, streams[1]], verbose=False)
    with pytest.raises(ConfigError, match=r"two tables are named 'a\.samples'"):
        mpips.run(main, [streams[0], streams[0]], verbose=False)


class Recorded:
    """A table whose pushes are applied when their request is waited for."""

    def __init__(self, name: str, events: list[str]) -> None:
        self.name, self.events = name, events

    def pull(self, keys: np.ndarray) -> np.ndarray:
        return np.zeros((len(keys), DIM), np.float32)

    def push(self, keys: np.ndarray, rows: np.ndarray) -> Recorded:
        self.events.append(f"{self.name} pushed")
        return self

    def wait(self) -> None:
        self.events.append(f"{self.name} applied")


@pytest.mark.parametrize("wait", [True, False])
def test_counts_are_pushed_when_the_sample_is_applied(wait: bool) -> None:
    events: list[str] = []
    tables = {name: Recorded(name, events) for name in ("s.samples", "s.counts")}

    class Imitated:
        table = staticmethod(tables.__getitem__)
        _connection = SimpleNamespace(index=0, now=0, repeats=False)

    producer = Producer(StreamTable("s", FIELDS, 9), Imitated(), 0)  # type: ignore[arg-type]
    for n in range(2):
        producer.push(sample(0, n), wait=wait)
    if not wait:
        assert events[-1] == "s.samples pushed"
    last = "s.counts applied"
    assert last not in events
    producer.flush()
    # Another worker that is this producer from now on must see its counts, so `flush` waits for them.
    assert events == [*["s.samples pushed", "s.samples applied", "s.counts pushed"] * 2, last]
    producer.flush()
    assert events[-2:] == ["s.counts pushed", last]


def test_batches_end_if_a_producer_has_ended_without_a_word() -> None:
    stream = StreamTable("s", FIELDS, 9, producers=2)

    def main(worker: Worker) -> None:
        stream.producer(worker, 0).push(sample(0, 0))
        stream.producer(worker, 0).close()
        producer = stream.producer(worker, 1)
        batches = stream.reader(worker).batches(1, patience_s=0.3)
        for number in range(2):
            producer.push(sample(1, number))
            next(batches)
        with pytest.raises(
            StallError, match=r"no new sample for 0\.3 s while 3 of 4 .* not ended: 1$"
        ):
            deque(map(check, batches), 0)
        with pytest.raises(ValueError, match="limit = -1: must be 0 or more"):
            next(stream.reader(worker).batches(1, limit=-1))

    run(stream, main)

"""Bounded use: a reader uses no sample more often than it is told, and all held ones as often in the end."""

from __future__ import annotations

import functools
import time
from collections import Counter
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import mpips
from mpips import StreamTable, Worker
from mpips.errors import StallError, StreamError
from mpips.insitu import reader as reader_module
from mpips.insitu.counts import ProducerCounts
from mpips.insitu.slots import SampleSlots
from mpips.insitu.uses import SampleUses

KEEPS = ["reservoir", "newest"]


@functools.cache
def after(slots: SampleSlots, producer: int, n: int) -> tuple[ProducerCounts, dict[int, int]]:
    """Counts of training samples alone after `n` of them, and the ordinal in each slot."""
    counts, held = ProducerCounts(), {}
    for ordinal in range(n):
        slot, is_held_out = slots.of(producer, counts)
        assert not is_held_out
        if slot is not None:
            held[slot] = ordinal
        counts.produced += 1
        counts.trained += 1
    return counts, held


@pytest.mark.parametrize("keep", KEEPS)
def test_slots_of_many_samples_are_those_of_each(keep: Any) -> None:
    slots = SampleSlots(7, 2, 0.0, keep, 2**63 + 5)
    counts, expected = ProducerCounts(), []
    for _ in range(400):
        slot, _ = slots.of(3, counts)
        expected.append(-1 if slot is None else slot)
        counts.produced += 2  # numbers of dropped samples do not matter
        counts.trained += 1
    assert slots.training_slots(3, np.arange(400)).tolist() == expected
    assert slots.training_slots(3, np.arange(100, 130)).tolist() == expected[100:130]
    assert set(expected) >= set(range(7))


@pytest.mark.parametrize("keep", KEEPS)
@pytest.mark.parametrize("at_once", [1 << 16, 3])
def test_uses_follow_the_samples_in_the_slots(
    keep: Any, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mpips.insitu.uses._AT_ONCE", at_once)
    slots = SampleSlots(5, 0, 0.0, keep, 1)
    uses, random = SampleUses(slots, 2), np.random.default_rng(0)
    used: Counter[tuple[int, int]] = Counter()
    read: dict[tuple[int, int], int] = {}  # the newest ordinal that was read from a slot
    known = real = np.zeros(2, int)
    for step in range(120):
        # Counts are known later than samples are there.
        real = real + random.integers(0, 25 if step % 10 == 0 else 4, 2)
        uses.advance([after(slots, p, int(known[p]))[0] for p in range(2)])
        sizes = np.minimum(known, 5)
        held = [after(slots, p, int(known[p]))[1] for p in range(2)]
        free = [
            place
            for place, (p, slot) in enumerate((p, s) for p in range(2) for s in range(sizes[p]))
            if used[p, max(held[p][slot], read.get((p, slot), -1))] < 2
        ]
        assert uses.below(2, sizes).tolist() == free
        p = int(random.integers(2))
        now = after(slots, p, int(real[p]))[1]
        if now:
            slot = int(random.choice(list(now)))
            uses.note(np.array([p]), np.array([slot]), np.array([now[slot]]))
            used[p, now[slot]] += 1
            read[p, slot] = now[slot]
        # Some of the samples that are there may be counted.
        known = known + random.integers(0, real - known + 1)
    assert max(used.values()) > 2


def test_a_sample_that_was_drawn_twice_in_a_batch_was_used_twice() -> None:
    uses = SampleUses(SampleSlots(3, 0, 0.0, "newest", 0), 1)
    uses.advance([ProducerCounts(3, 3)])
    zero, slot = np.zeros(3, np.int64), np.array([1, 1, 2])
    uses.note(zero, slot, slot)
    assert uses.below(2, np.array([3])).tolist() == [0, 2]
    assert uses.below(1, np.array([3])).tolist() == [0]


def run(stream: StreamTable, main: Callable[[Worker], Any]) -> Any:
    return mpips.run(main, [stream], verbose=False).value


def names_of(batch: Any) -> list[tuple[int, int]]:
    return list(zip(batch.producers.tolist(), batch.numbers.tolist(), strict=True))


@pytest.mark.parametrize("keep", KEEPS)
@pytest.mark.parametrize("invalid", [False, True])
def test_no_sample_is_used_more_often_than_told(
    keep: Any, invalid: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = StreamTable(
        "s", {"x": ()}, 20, producers=2, held_out=0.2, keep=keep, invalid="drop", seed=2
    )

    def main(worker: Worker) -> None:
        producers = [stream.producer(worker, p) for p in range(2)]
        reader, used = stream.reader(worker), Counter[tuple[int, int]]()

        def more(seconds: float = 0.0) -> None:
            """What producers do meanwhile, of which the reader learns when it waits."""
            for producer in producers:
                if producer.produced > 150:
                    producer.close()
                else:
                    drops = invalid and producer.produced % 5 == 0
                    producer.push({"x": np.nan if drops else producer.produced})
            if seconds:
                reader._refresh()

        # Counts are old except after waits: samples in slots are often newer than the reader knows.
        monkeypatch.setattr(reader_module, "_FRESH_S", 1e9)
        clock = SimpleNamespace(monotonic=time.monotonic, sleep=more)
        monkeypatch.setattr(reader_module, "time", clock)
        for batch in reader.batches(3, min_seen=20, max_uses=2):
            names = names_of(batch)
            assert len(set(names)) == len(names)
            assert len(names) == 3 or all(producer.produced > 150 for producer in producers)
            used.update(names)
            more()
        assert max(used.values()) == 2
        assert reader.used == sum(used.values())
        # At the end each held sample has been used as often as it may be.
        sizes = reader._filled(False)
        held = names_of(reader._read(np.arange(sizes.sum()), sizes, False))
        assert {used[name] for name in held} == {2}
        # They stay used up, with any limit; with a higher bound they come again.
        assert list(reader.batches(3, max_uses=3, limit=5)) == []
        assert [len(batch) for batch in reader.batches(3, max_uses=5, limit=2)] == [3, 3]
        assert sum(map(len, reader.batches(3, max_uses=5))) == 2 * len(held) - 6
        before = reader.used
        assert len(reader.sample(2, held_out=True)) == 2
        assert reader.used == before

    run(stream, main)


def test_a_reader_waits_for_new_samples_and_names_late_producers() -> None:
    stream = StreamTable("s", {"x": ()}, 20, producers=2)

    def main(worker: Worker) -> None:
        producer, reader = stream.producer(worker, 1), stream.reader(worker)
        for i in range(5):
            producer.push({"x": i})
        batches = reader.batches(4, max_uses=1, patience_s=0.05)
        assert len(next(batches)) == 4
        with pytest.raises(
            StallError,
            match=r"no new sample for 0\.05 s while 1 of 4 samples with fewer than 1 uses are there; "
            r"producers that have not ended: 0, 1",
        ):
            next(batches)
        for p in range(2):
            stream.producer(worker, p).close()
        # Those that are left, once: the uses of the first call count.
        assert [len(batch) for batch in reader.batches(4, max_uses=1)] == [1]
        assert reader.used == 5
        reader.sample(5)
        assert list(reader.batches(4, max_uses=2)) == []

    run(stream, main)


def test_a_stream_without_samples_for_training_ends_bounded_batches() -> None:
    stream = StreamTable("s", {"x": ()}, 20)

    def main(worker: Worker) -> None:
        stream.producer(worker).close()
        with pytest.raises(StreamError, match="all producers have ended, and no sample is held"):
            next(stream.reader(worker).batches(1, max_uses=1))
        for options, text in (
            ({"max_uses": -1}, "max_uses = -1: must be 0 or more"),
            ({"max_uses": 1, "n": 21}, "21 samples: must be 1 to 20, which is how many are held"),
            ({"max_uses": 1, "n": 0}, "0 samples: must be 1 to 20"),
        ):
            with pytest.raises(ValueError, match=text):
                next(stream.reader(worker).batches(**{"n": 1, **options}))  # type: ignore[arg-type]

    run(stream, main)

"""64 producers of four programs at one worker, with queues of one and of a few samples: each sample once."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import program_rig as rig
import pytest

import mpips
from mpips import StreamTable, Worker

PRODUCERS, PROGRAMS, EACH = 64, 4, 12
# Pushes to its producers in an order of its own; a queue without room is tried again after the others.
PROGRAM = """
import random
import sys
import numpy as np
import mpips
name, first, n, each = sys.argv[1], *map(int, sys.argv[2:])
mine = [mpips.attach(name, k, timeout_s=60.0) for k in range(first, first + n)]
rest = [producer for producer in mine for _ in range(each)]
random.Random(first).shuffle(rest)
while rest:
    again = []
    for producer in rest:
        number = producer.produced
        x = np.full(5, 1000 * producer.number + number)
        if not producer.try_push({"x": x, "who": producer.number}):
            again.append(producer)
    if len(again) == len(rest):
        producer = again.pop()  # waits for room
        number = producer.produced
        producer.push({"x": np.full(5, 1000 * producer.number + number), "who": producer.number})
    rest = again
for producer in reversed(mine):
    producer.close()
"""


@pytest.mark.parametrize("slots", [1, 3])
def test_many_producers_push_each_sample_once(slots: int) -> None:
    stream = StreamTable(
        "s", {"x": ((5,), "int64"), "who": ((), "int32")}, PRODUCERS * EACH, producers=PRODUCERS
    )
    share = PRODUCERS // PROGRAMS

    def main(worker: Worker) -> Any:
        with rig.queue_name() as name:
            words = [sys.executable, "-c", PROGRAM, name]
            programs = [
                subprocess.Popen(
                    [*words, str(share * k), str(share), str(EACH)], stderr=subprocess.PIPE
                )
                for k in range(PROGRAMS)
            ]
            try:
                stream.serve(worker, name, range(PRODUCERS), slots=slots, patience_s=60.0)
                for program in programs:
                    assert (program.wait(60.0), program.stderr.read()) == (0, b"")  # type: ignore[union-attr]
            finally:
                for program in programs:
                    program.kill()
                    program.communicate()
        _, rows = worker.table("s.samples").all_rows()
        return stream.reader(worker).counts(), stream.layout.decode(rows)

    counts, found = mpips.run(main, [stream], verbose=False).value
    total = PRODUCERS * EACH
    assert (counts.produced, counts.held, counts.ended) == (total, total, PRODUCERS)
    expected = sorted((k, 1000 * k + n) for k in range(PRODUCERS) for n in range(EACH))
    pushed = zip(found.arrays["who"].tolist(), found.arrays["x"][:, 4].tolist(), strict=True)
    assert sorted(pushed) == expected
    assert (found.arrays["x"] == found.arrays["x"][:, :1]).all()
    assert np.array_equal(found.producers, found.arrays["who"])

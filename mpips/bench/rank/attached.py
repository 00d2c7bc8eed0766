"""A program beside the ranks, of the suite `insitu`.

usage: python -m mpips.bench.rank.attached NAME CALLS REPETITIONS OUT

It attaches to the queue NAME and measures pushes of a sample of 1 MiB, each into an empty queue, in turn with
copies of as many bytes into places that no cache holds. Its solver would wait for this push alone: the worker
takes the sample out meanwhile. OUT becomes a JSON file: seconds of a call, by repetition, of both.
"""

from __future__ import annotations

import statistics
import sys
import time
from pathlib import Path

import msgspec
import numpy as np

import mpips

SIDE = 512  # values of a side of a field of 1 MiB
_PLACES = 64  # to which memcpy copies
_PATIENCE_S = 60.0


def main(name: str, calls: int, repetitions: int, out: Path) -> None:
    """Measure, end the producer, and write the result. Blocks."""
    x = np.random.default_rng(1).standard_normal((SIDE, SIDE), np.float32)
    places = np.ones((_PLACES, SIDE, SIDE), np.float32)
    seconds: dict[str, list[float]] = {"push": [], "memcpy": []}
    at = 0
    with mpips.attach(name, timeout_s=_PATIENCE_S) as producer:
        for repetition in range(repetitions + 1):
            took: dict[str, list[float]] = {"push": [], "memcpy": []}
            for _ in range(calls):
                at = (at + 1) % _PLACES
                # The worker is done with all samples: it takes no part of a core from either copy.
                producer.flush()
                start = time.perf_counter()
                producer.push({"x": x})
                took["push"].append(time.perf_counter() - start)
                producer.flush()
                start = time.perf_counter()
                np.copyto(places[at], x)
                took["memcpy"].append(time.perf_counter() - start)
            if repetition:  # the first one has touched all memory
                for how, values in took.items():
                    seconds[how].append(statistics.median(values))
    out.write_bytes(msgspec.json.encode(seconds))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4]))

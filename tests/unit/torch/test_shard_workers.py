"""The exchanges of a divided layer, as calls of a worker."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from shard_rig import Crowd

from mpips.torch.shard_workers import JobWorkers, text_of_tag


class Letters:
    """A worker whose messages are in a dict of all workers; it sends before others receive."""

    def __init__(self, member: Any, box: dict[Any, Any]) -> None:
        self.index, self.n_workers = member.index, member.n_workers
        self.calls: list[Any] = []
        self._box = box
        self._member = member

    def send(self, array: np.ndarray, *, to: int, tag: int) -> None:
        self.calls.append(("send", to, text_of_tag(tag)))
        self._box[self.index, to] = array
        self._member.gather("sent", b"")

    def recv(self, *, source: int, tag: int) -> np.ndarray:
        self.calls.append(("recv", source, text_of_tag(tag)))
        return self._box[source, self.index]  # type: ignore[no-any-return]

    def gather(self, name: str, payload: bytes) -> list[bytes]:
        self.calls.append((name, payload))
        return [payload]

    def reduce(self, name: str, array: np.ndarray, combine: str) -> np.ndarray:
        self.calls.append((name, combine))
        return array


@pytest.mark.parametrize("n", [1, 2, 3, 5])
def test_a_swap_brings_each_worker_the_parts_for_it(n: int) -> None:
    box: dict[Any, Any] = {}

    def work(member: Any) -> Any:
        worker: Any = Letters(member, box)
        parts = [np.array([10 * member.index + to]) for to in range(n)]
        return JobWorkers(worker, "head", 3).swap(parts), worker.calls

    for index, (found, calls) in enumerate(Crowd(n).results(work)):
        assert [one.tolist() for one in found] == [[10 * source + index] for source in range(n)]
        # A worker has at most one message under way to another one.
        assert [call[0] for call in calls] == ["send", "recv"] * (n - 1)
        assert {call[2] for call in calls} <= {"values of a divided layer"}


def test_gathers_and_reductions_name_layer_and_step() -> None:
    def work(member: Any) -> Any:
        worker: Any = Letters(member, {})
        exchange = JobWorkers(worker, "head", 3)
        assert exchange.gather("the ids", b"x") == [b"x"]
        assert exchange.reduce("the outputs", np.ones(1), "sum").tolist() == [1.0]
        return worker.calls

    (calls,) = Crowd(1).results(work)
    assert calls == [("the ids of 'head', step 3", b"x"), ("the outputs of 'head', step 3", "sum")]
    assert text_of_tag(3) == "tag 3"

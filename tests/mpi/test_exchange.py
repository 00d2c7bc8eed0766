"""Values that ranks send to each other at start-up, and the sentences that they combine."""

from __future__ import annotations

import pytest
from mpi4py import MPI

from mpips.mpi.exchange import deliver
from mpips.session.links import _notes


@pytest.mark.two_ranks
def test_each_value_goes_to_its_receiver_only(comm: MPI.Intracomm) -> None:
    rank, size = comm.Get_rank(), comm.Get_size()
    # Even ranks send to all lower ranks and to themselves, odd ones to nobody.
    values = {to: {"from": rank, "text": "x" * rank, 7: [to]} for to in range(rank + 1)}
    found = deliver(comm, values if rank % 2 == 0 else {})
    senders = [r for r in range(size) if r % 2 == 0 and r >= rank]
    assert found == {r: {"from": r, "text": "x" * r, 7: [rank]} for r in senders}


def test_nothing_at_all_may_be_sent(comm: MPI.Intracomm) -> None:
    assert deliver(comm, {}) == {}


def test_each_reason_is_one_sentence_with_the_number_of_pairs() -> None:
    rows = [{"window": ("no window between a and b", 3)}, {}, {"read": ("a read failed", 1)}]
    assert _notes([*rows, {"window": ("no window between c and d", 1)}]) == [
        "no window between a and b (and 3 more pairs)",
        "a read failed",
    ]
    assert _notes([{"window": ("no window", 2)}]) == ["no window (and 1 more pair)"]

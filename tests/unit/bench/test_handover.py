"""Handovers without mpips, which pushes are compared with, and the cores that ranks are bound to."""

from __future__ import annotations

import os
import threading
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from mpips import _native
from mpips.bench import loops
from mpips.bench.rank.ranks import BenchRanks
from mpips.cli.bench import command


def words() -> np.ndarray:
    return np.zeros(16, np.uint64)


def on_both(first: Any, second: Any) -> float:
    """What `first` returns while another thread runs `second`; both release the GIL."""
    other = threading.Thread(target=second)
    other.start()
    result: float = first()
    other.join(60)
    assert not other.is_alive()
    return result


def test_every_handover_reaches_the_other_side_with_new_values() -> None:
    both, shared = words(), np.zeros(1000, np.float32)
    own = np.arange(1000, dtype=np.float32)
    applied = np.zeros(1000, np.float32)
    for n in (1, 4):  # a second measurement goes on with the same words
        seconds = on_both(
            lambda n=n: loops.handover(both, shared, own, True, n, 60.0),
            lambda n=n: loops.handover(both, shared, applied, False, n, 60.0),
        )
        assert seconds > 0
    # The signs alternate from -1 on, so five handovers subtract -1 times the values in all.
    np.testing.assert_array_equal(applied, np.arange(1000))
    np.testing.assert_array_equal(both[[0, 8]], 5)


def test_a_flag_goes_back_and_forth() -> None:
    both = words()
    seconds = on_both(
        lambda: _native.flag_round_trip(both, True, 3, 60.0),
        lambda: _native.flag_round_trip(both, False, 3, 60.0),
    )
    assert seconds > 0
    np.testing.assert_array_equal(both[[0, 8]], 3)


def test_a_side_that_does_not_answer_ends_the_measurement() -> None:
    with pytest.raises(RuntimeError, match="has not answered within"):
        _native.flag_round_trip(words(), True, 1, 0.01)
    with pytest.raises(RuntimeError, match="has not answered within"):
        loops.handover(words(), *np.zeros((2, 4), np.float32), False, 1, 0.01)


@pytest.mark.long
def test_a_limit_of_more_than_four_thousand_million_looks_at_a_word_ends_too() -> None:
    with pytest.raises(RuntimeError, match="has not answered within"):
        _native.flag_round_trip(words(), True, 1, 20.0)


def test_arrays_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="words has 8 values, expected at least 9"):
        _native.flag_round_trip(words()[:8], True, 1, 1.0)
    with pytest.raises(ValueError, match="shared has 3 values, expected 4"):
        loops.handover(words(), np.zeros(3, np.float32), np.zeros(4, np.float32), True, 1, 1.0)


@pytest.mark.parametrize("text", ["0,0", "0", "x,1", "0,99999", "0,1,2", ""])
def test_cores_are_two_that_this_process_may_use(text: str) -> None:
    result = CliRunner().invoke(command, ["push", "--cores", text])
    assert result.exit_code == 2
    assert f"'{text}': must be two different cores of" in result.output


def test_cores_are_for_suites_of_two_ranks() -> None:
    first, second = sorted(os.sched_getaffinity(0))[:2]
    result = CliRunner().invoke(command, ["kernels", "--cores", f"{first},{second}"])
    assert result.exit_code == 2
    assert "--cores is for push, pull, embedding, transport, not for kernels" in result.output


def test_ranks_are_bound_to_the_chosen_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    bound: list[set[int]] = []
    monkeypatch.setattr(os, "sched_setaffinity", lambda pid, cores: bound.append(set(cores)))

    class Two:
        def Get_rank(self) -> int:
            return 1

        def Get_size(self) -> int:
            return 2

        def allgather(self, value: str) -> list[str]:
            return [value, value]

    ranks = BenchRanks(Two())  # type: ignore[arg-type]
    ranks.pin((7, 3))
    assert bound == [{3}]
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {4, 5})
    ranks.pin()
    ranks.pin((7, 3, 1))  # of a launch of three
    assert bound == [{3}, {5}, {5}]

"""Seeds as functions of numbers: a step's draws depend on (seed, worker, clock) only."""

from __future__ import annotations

import random
import time
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="mpips.torch needs PyTorch")

import torch

from mpips.torch.generators import mix, reseed, seeded


def drawn() -> list[float]:
    """One normal number of each kind: an odd number, because generators of pairs store the second."""
    dropped = torch.nn.functional.dropout(torch.ones(40)).nonzero().flatten().tolist()
    return [torch.randn(1).item(), random.gauss(0, 1), np.random.normal(), *dropped]


def draws_after(seed: int, worker: int, clock: int) -> list[float]:
    reseed(seed, worker, clock)
    return drawn()


def states() -> list[Any]:
    name, keys, *rest = np.random.get_state()
    return [torch.get_rng_state().tolist(), random.getstate(), name, keys.tolist(), rest]


def test_mix_of_zero_is_the_first_output_of_splitmix64() -> None:
    # The first output of the reference implementation with seed 0 (Vigna, splitmix64.c).
    assert mix(0) == 0xE220A8397B1DCDAF


def test_mix_differs_by_each_number_its_place_and_their_count() -> None:
    tuples = [(a, b) for a in range(-3, 30) for b in range(30)]
    assert len({mix(*one) for one in tuples} | {mix(1), mix(1, 2, 3)}) == len(tuples) + 2
    assert all(0 <= mix(*one) < 2**64 for one in tuples)


def test_draws_of_a_step_do_not_depend_on_earlier_draws() -> None:
    first = draws_after(1, 2, 3)
    drawn()
    draws_after(9, 9, 9)
    assert draws_after(1, 2, 3) == first


def test_draws_differ_between_seeds_workers_and_clocks() -> None:
    base = draws_after(1, 2, 3)
    for numbers in [(2, 2, 3), (1, 3, 3), (1, 2, 4), (1, 3, 2), (3, 2, 1), (-1, 2, 3)]:
        assert not set(draws_after(*numbers)[:3]) & set(base[:3])


def test_numpy_and_python_draw_different_numbers() -> None:
    reseed(1, 2, 3)
    assert random.random() != np.random.random()


def test_a_dropout_model_repeats_a_step_bit_for_bit() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(50, 50), torch.nn.Dropout(0.5))
    x = torch.randn(8, 50)
    reseed(5, 0, 10)
    first = model(x)
    reseed(5, 0, 11)
    other = model(x)
    reseed(5, 0, 10)
    assert torch.equal(model(x), first)
    assert not torch.equal(other, first)


def test_seeded_restores_all_states_also_after_an_error() -> None:
    drawn()  # half a pair is stored
    before = states()

    def fail() -> None:
        with seeded(1):
            drawn()
            raise KeyError

    with seeded(1):
        first = drawn()
    with pytest.raises(KeyError):
        fail()
    assert states() == before
    with seeded(1):
        assert drawn() == first
    with seeded(2):
        assert not set(drawn()[:3]) & set(first[:3])


@pytest.mark.parametrize(
    ("generator", "draw"),
    [
        (torch.Generator(), lambda one: torch.randn(1, generator=one).item()),
        (np.random.default_rng(0), lambda one: one.random()),
        (np.random.Generator(np.random.MT19937(0)), lambda one: one.normal()),
        (np.random.RandomState(0), lambda one: one.normal()),
        (random.Random(0), lambda one: one.gauss(0, 1)),
    ],
    ids=["torch", "pcg64", "mt19937", "randomstate", "random"],
)
def test_seeded_sets_and_restores_own_generators(generator: Any, draw: Any) -> None:
    draw(generator)
    with seeded(1, own=[generator]):
        first = [draw(generator) for _ in range(3)]
    outside = draw(generator)
    with seeded(1, own=[generator, generator]):
        assert [draw(generator) for _ in range(3)] == first
    assert draw(generator) not in [*first, outside]

    # The draws outside are those of a generator that no block has seeded.
    with seeded(2, own=[generator]):
        expected = [draw(generator) for _ in range(4)]
    with seeded(2, own=[generator]):
        found = [draw(generator), draw(generator)]
        with seeded(3, own=[generator]):
            draw(generator)
        found += [draw(generator), draw(generator)]
    assert found == expected


def test_reseed_is_cheap() -> None:
    reseed(0, 0, 0)
    times = []
    for clock in range(200):
        begin = time.perf_counter()
        reseed(0, 0, clock)
        times.append(time.perf_counter() - begin)
    # 14 microseconds on a quiet machine; the best of 200 has little noise.
    assert min(times) < 60e-6

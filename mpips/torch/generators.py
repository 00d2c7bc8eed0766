"""Seeds of random number generators, as functions of a few numbers.

A training step of a torch script draws random numbers (dropout, augmentation) from default generators:
torch's, NumPy's and Python's. Their states depend on everything that the process has drawn before, which a
restart does not repeat. So each step sets them to a mix of (seed, worker, clock): a restart in the middle of
a run repeats the draws of a step bit for bit, and the draws of two workers differ. The order of an epoch is
drawn in the same way from (seed, epoch), with `seeded`, which leaves no trace in the generators.

The mix is the output function of SplitMix64 (Steele, Lea and Flood, OOPSLA 2014), applied for each number.
Each purpose has a tag as its first number, so that two purposes do not use one seed. torch's generator of the
CPU uses the 32 lower bits of its seed, all others use 64 bits.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, TypeAlias

import numpy as np
import torch

Generator: TypeAlias = torch.Generator | np.random.Generator | np.random.RandomState | random.Random
GENERATOR_TYPES = (torch.Generator, np.random.Generator, np.random.RandomState, random.Random)

# Tags of purposes: the first number of a mix.
STEP_TAG = 0x746F7263682D7374
ORDER_TAG = 0x746F7263682D6F72
CHILDREN_TAG = 0x746F7263682D6368
STREAM_TAG = 0x746F7263682D7372
AHEAD_TAG = 0x746F7263682D6168

# torch does not annotate all of these functions.
_cuda: Any = torch.cuda

_MASK = 2**64 - 1
_INCREMENT = 0x9E3779B97F4A7C15


def mix(*numbers: int) -> int:
    """Return a 64-bit hash of some integers, 0 to 2^64 - 1. Only their 64 lower bits count."""
    x = 0
    for number in numbers:
        x = ((x ^ (number & _MASK)) + _INCREMENT) & _MASK
        x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
        x ^= x >> 31
    return x


def reseed(seed: int, worker: int, clock: int) -> None:
    """Set the default generators to a state that depends only on (seed, worker, clock).

    These are torch's generator of the CPU, torch's generators of all CUDA devices if the process uses CUDA,
    `numpy.random` and `random`. Not collective; does not block.

    Args:
        seed: Seed of the run.
        worker: Rank among the workers.
        clock: Number of the step.

    Raises:
        TypeError: `numpy.random` has a bit generator other than MT19937, which NumPy cannot seed again.
    """
    seed_defaults(STEP_TAG, seed, worker, clock)


def seed_defaults(*numbers: int) -> None:
    """Set the default generators (see `reseed`) to a state that depends only on some integers, a tag first.

    Raises:
        TypeError: `numpy.random` has a bit generator other than MT19937, which NumPy cannot seed again.
    """
    _seed_defaults(mix(*numbers))


@contextmanager
def seeded(*numbers: int, own: Iterable[Generator] = ()) -> Iterator[None]:
    """Run a block with generators that depend only on some integers; restore their states afterwards.

    Args:
        numbers: Integers that determine the states in the block; a tag first.
        own: Generators to set besides the default ones (see `reseed`). One of them can occur twice.

    Raises:
        TypeError: `numpy.random` has a bit generator other than MT19937, which NumPy cannot seed again.
    """
    word = mix(*numbers)
    with ExitStack() as stack:
        restore_defaults(stack)
        _seed_defaults(word)
        for number, generator in enumerate({id(one): one for one in own}.values(), start=1):
            seed_one(stack, generator, mix(word, number))
        yield


def _seed_defaults(word: int) -> None:
    torch.default_generator.manual_seed(word)
    if _cuda.is_initialized():
        _cuda.manual_seed_all(word)
    random.seed(word)
    # `random` and `numpy.random` have one algorithm: with equal seeds they would draw equal numbers.
    other = mix(word)
    np.random.seed((other & 0xFFFFFFFF, other >> 32))


def restore_defaults(stack: ExitStack) -> None:
    """Let `stack` restore the states of the default generators (see `reseed`) when it is closed."""
    stack.callback(torch.default_generator.set_state, torch.default_generator.get_state())
    if _cuda.is_initialized():
        stack.callback(_cuda.set_rng_state_all, _cuda.get_rng_state_all())
    stack.callback(random.setstate, random.getstate())
    stack.callback(np.random.set_state, np.random.get_state())


def seed_one(stack: ExitStack, generator: Generator, word: int) -> None:
    """Seed one generator; `stack` restores its state when it is closed."""
    if isinstance(generator, torch.Generator):
        stack.callback(generator.set_state, generator.get_state())
        generator.manual_seed(word)
    elif isinstance(generator, random.Random):
        stack.callback(generator.setstate, generator.getstate())
        generator.seed(word)
    elif isinstance(generator, np.random.RandomState):
        stack.callback(generator.set_state, generator.get_state())
        generator.seed((word & 0xFFFFFFFF, word >> 32))
    else:
        bits: Any = generator.bit_generator
        stack.callback(setattr, bits, "state", bits.state)
        bits.state = type(bits)(word).state

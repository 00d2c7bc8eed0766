"""Torch scripts in a test: a job with all roles in this process, and the same training with plain torch."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from script_rig import script_job

import mpips.torch
from mpips.session.script import Script
from mpips.torch.job import TorchJob

State = dict[str, torch.Tensor]


@contextmanager
def torch_job(**options: Any) -> Iterator[Script]:
    """Do what `mpips.init` does, and undo it: the block is the script, its end the end of the script.

    An exception of the block ends the job as it ends that of a script, and is raised again.
    """
    n_threads, generator = torch.get_num_threads(), torch.get_rng_state()
    torch.set_num_threads(1)
    try:
        with script_job(**options) as begun:
            yield begun
    finally:
        torch.set_num_threads(n_threads)
        torch.set_rng_state(generator)


def pulled(script: Script, table: str, *keys: Any) -> torch.Tensor:
    """Return the current values of a table, or of the rows of int64 keys."""
    script.part(TorchJob).settle()
    assert script.worker is not None
    return torch.from_numpy(script.worker.table(table).pull(*keys))


def values_of(model: torch.nn.Module) -> State:
    """Return copies of the current parameters and buffers."""
    return {name: value.detach().clone() for name, value in model.state_dict().items()}


def both(
    model: torch.nn.Module,
    make_optimizer: Callable[[Any], torch.optim.Optimizer],
    train: Callable[[torch.nn.Module, Any], object],
    **options: Any,
) -> tuple[State, State]:
    """Train with plain torch and with a prepared copy; return the values of both at the end.

    Args:
        model: The model at its start; it stays as it is.
        make_optimizer: Makes the optimizer of the model that it receives.
        train: Trains the model that it receives, with an optimizer.
        options: Further arguments of `prepare`.
    """
    n_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    plain = copy.deepcopy(model)
    try:
        train(plain, make_optimizer(plain))
    finally:
        torch.set_num_threads(n_threads)
    with torch_job():
        prepared = copy.deepcopy(model)
        train(*mpips.torch.prepare(prepared, make_optimizer(prepared), **options))
        return values_of(plain), values_of(prepared)


def relative(found: torch.Tensor, expected: torch.Tensor) -> float:
    """Return the greatest difference of two tensors, relative to the largest value of `expected`."""
    largest = expected.abs().max()
    return (
        ((found - expected).abs().max() / largest).item()
        if largest > 0
        else found.abs().max().item()
    )


def assert_equal(found: State, expected: State) -> None:
    """Assert that two states are equal bit for bit."""
    assert list(found) == list(expected)
    for name, value in expected.items():
        assert torch.equal(found[name], value), name


def batches(n: int, *shape: int, seed: int = 5) -> list[torch.Tensor]:
    """Return n float32 tensors of normal numbers."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(*shape, generator=generator) for _ in range(n)]


def table_statistics(script: Script, table: str) -> dict[str, Any]:
    """Return the server's statistics of a table, after the block of `torch_job`."""
    assert script._outcome is not None
    found: dict[str, Any] = script._outcome.statistics["servers"][0]["tables"][table]
    return found

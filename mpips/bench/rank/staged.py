"""One process of the suite `stages`: python -m mpips.bench.rank.staged KIND full|quick FOLDER.

staged   a chain of linear layers in four stages
times    the stages of this chain in one process without mpips: seconds for a micro-batch
one      a multilayer perceptron in one stage
plain    the same, prepared without stages
softmax  a softmax over very many classes, divided between the workers
whole    the same in one process without mpips
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec

import mpips
from mpips.bench.stages import SOFTMAX_WORKERS, STAGES, StagedSide

_MICRO, _MICRO_SIZE, _WIDTH = 32, 256, 512
_MICRO_QUICK, _MICRO_SIZE_QUICK, _WIDTH_QUICK = 4, 8, 16
_BATCH = 128
_CLASSES, _CLASSES_QUICK, _FEATURES, _SAMPLES = 1_000_000, 1000, 64, 64
_WARM_STEPS, _STEPS, _CHAIN_STEPS, _SOFTMAX_STEPS = 8, 40, 4, 5


def main(kind: str, size: str, folder: str) -> None:
    """Train or measure in this process, and write its result to FOLDER/<worker>.json.

    Args:
        kind: See the module.
        size: "full" or "quick".
        folder: An empty folder.
    """
    is_quick = size == "quick"
    if kind == "times":
        found, rank = _times(is_quick), 0
    elif kind == "whole":
        found, rank = _whole_softmax(is_quick), 0
    else:
        mpips.init(servers=1, verbose=False, timeout_s=60.0)
        rank = mpips.rank()
        if kind == "softmax":
            found = _divided_softmax(is_quick)
        elif kind == "staged":
            found = _chain_steps(is_quick)
        else:
            found = _mlp_steps(kind, is_quick)
    Path(folder, f"{rank}.json").write_bytes(msgspec.json.encode(found))


def _chain(is_quick: bool) -> tuple[Any, Any, int]:
    """Return a model of eight equal layers, a batch, and its number of micro-batches."""
    import torch
    from torch import nn

    torch.set_num_threads(1)
    torch.manual_seed(0)
    width = _WIDTH_QUICK if is_quick else _WIDTH
    n_micro = _MICRO_QUICK if is_quick else _MICRO
    layers = [(nn.Linear(width, width), nn.Tanh()) for _ in range(2 * STAGES)]
    x = torch.randn(n_micro * (_MICRO_SIZE_QUICK if is_quick else _MICRO_SIZE), width)
    return nn.Sequential(*(one for pair in layers for one in pair)), x, n_micro


def _loss(out: Any, target: Any) -> Any:
    return (out - target).square().mean()


def _chain_steps(is_quick: bool) -> StagedSide:
    """Train the chain in stages; return the seconds of a step, and the parameters of this worker."""
    import torch

    from mpips.torch import prepare

    model, x, n_micro = _chain(is_quick)
    n_bytes_model = _n_bytes(model)
    model, optimizer = prepare(model, torch.optim.SGD(model.parameters(), lr=0.01), stages=STAGES)
    torch.set_num_threads(1)

    def step() -> None:
        optimizer.zero_grad()
        model.forward_backward(x, x, _loss, micro_batches=n_micro)
        optimizer.step()

    seconds = _seconds(step, 1, 2 if is_quick else _CHAIN_STEPS)
    return StagedSide(seconds, _n_bytes(model), n_bytes_model, n_micro)


def _times(is_quick: bool) -> StagedSide:
    """Return the seconds of each stage for a micro-batch; those of the last one with the loss."""
    import torch

    from mpips.torch.stage_cut import cut
    from mpips.torch.stage_run import StagePasses
    from mpips.torch.stage_values import flatten

    model, x, n_micro = _chain(is_quick)
    target = x[: len(x) // n_micro]
    value, times = target, []
    for number, units in enumerate(cut(model, STAGES)):
        stage, found = StagePasses(list(enumerate(units))), []
        for _ in range(3 if is_quick else 20):
            received = flatten(value.detach().clone().requires_grad_(number > 0), "the value")
            start = time.perf_counter()
            out = stage.forward(0, received, lambda *_: None)
            result = _loss(out, target) if number == STAGES - 1 else out
            stage.note(0, [result])
            stage.backward(0, [torch.ones_like(result)])
            found.append(time.perf_counter() - start)
        times.append(statistics.median(found))
        value = out
    n_bytes = _n_bytes(model)
    return StagedSide(0.0, n_bytes, n_bytes, n_micro, tuple(times))


def _mlp_steps(kind: str, is_quick: bool) -> StagedSide:
    """Train the perceptron in one stage or without; return the seconds of a step."""
    import torch
    from torch import nn

    from mpips.torch import prepare

    torch.set_num_threads(1)
    torch.manual_seed(0)
    hidden = 64 if is_quick else 2048
    made = nn.Sequential(
        *(nn.Linear(784, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU()),
        nn.Linear(hidden, 10),
    )
    optimizer = torch.optim.Adam(made.parameters())
    x, y = torch.randn(_BATCH, 784), torch.randint(0, 10, (_BATCH,))
    model: Any
    model, optimizer = prepare(made, optimizer, stages=1 if kind == "one" else None)
    torch.set_num_threads(1)
    entropy = nn.functional.cross_entropy

    def step() -> None:
        optimizer.zero_grad()
        if kind == "one":
            model.forward_backward(x, y, entropy, micro_batches=1)
        else:
            loss: Any = entropy(model(x), y)
            loss.backward()
        optimizer.step()

    seconds = _seconds(step, _WARM_STEPS, 2 if is_quick else _STEPS)
    n_bytes = _n_bytes(model)
    return StagedSide(seconds, n_bytes, n_bytes)


def _divided_softmax(is_quick: bool) -> StagedSide:
    """Train this worker's part of a softmax; return the seconds of a step and the memory for it."""
    import torch

    from mpips.torch import ShardedLinear, prepare

    torch.set_num_threads(1)
    n_classes, x, y = _softmax_batch(is_quick, _SAMPLES // SOFTMAX_WORKERS)
    before = _memory()
    layer = ShardedLinear(_FEATURES, n_classes, optimizer=mpips.SGD(lr=0.1))
    model, optimizer = prepare(torch.nn.ModuleDict({"head": layer}))
    torch.set_num_threads(1)

    def step() -> None:
        optimizer.zero_grad()
        model["head"].cross_entropy(x, y).backward()
        optimizer.step()

    seconds = _seconds(step, 1, 2 if is_quick else _SOFTMAX_STEPS)
    return StagedSide(seconds, _grown(before), 0)


def _whole_softmax(is_quick: bool) -> StagedSide:
    """Train a softmax in this process; return the seconds of a step and the memory for it."""
    import torch

    torch.set_num_threads(1)
    n_classes, x, y = _softmax_batch(is_quick, _SAMPLES)
    before = _memory()
    layer = torch.nn.Linear(_FEATURES, n_classes)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)

    def step() -> None:
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(layer(x), y).backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    seconds = _seconds(step, 1, 2 if is_quick else _SOFTMAX_STEPS)
    return StagedSide(seconds, _grown(before), 0)


def _softmax_batch(is_quick: bool, n: int) -> tuple[int, Any, Any]:
    """Return the number of classes, and `n` samples with their classes."""
    import torch

    n_classes = _CLASSES_QUICK if is_quick else _CLASSES
    torch.manual_seed(0)
    return n_classes, torch.randn(n, _FEATURES), torch.randint(0, n_classes, (n,))


def _memory() -> dict[str, int]:
    """Return bytes of memory of this process by their names in /proc, such as VmHWM."""
    lines = [line.split() for line in Path("/proc/self/status").read_text().splitlines()]
    return {words[0][:-1]: 1024 * int(words[1]) for words in lines if words[-1] == "kB"}


def _grown(before: dict[str, int]) -> int:
    """Return the bytes by which memory has grown at most, without those shared with servers."""
    now = _memory()
    grown = now["VmHWM"] - before["VmRSS"] - (now["RssShmem"] - before["RssShmem"])
    return max(grown, 1)


def _seconds(step: Callable[[], None], n_warm: int, n_steps: int) -> float:
    """Return the median seconds from one step to the next, behind the first ones."""
    starts = []
    for _ in range(n_warm + n_steps + 1):
        starts.append(time.perf_counter())
        step()
    return statistics.median(b - a for a, b in pairwise(starts[n_warm:]))


def _n_bytes(model: Any) -> int:
    """Return the bytes of the parameters that this process has."""
    return sum(p.numel() * p.element_size() for p in model.parameters())


if __name__ == "__main__":
    main(*sys.argv[1:4])

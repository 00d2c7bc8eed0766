"""Train a character language model, a transformer of two layers, under BSP, DiLoCo and LocalSGD."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from mpips.bench.launching import Options
from mpips.bench.measure import Comparison, Findings
from mpips.bench.rank.ranks import BenchRanks
from mpips.model.consistency import BSP, Consistency
from mpips.model.local_sgd import DiLoCo, LocalSGD
from mpips.model.optimizer import AdamW
from mpips.model.table import DenseTable
from mpips.worker.worker import Worker

_STEPS, _STEPS_QUICK = 1200, 26  # of each worker
_H = 24
VARIANTS: dict[str, LocalSGD | DiLoCo] = {
    "diloco": DiLoCo(_H),
    "diloco_int8": DiLoCo(_H, compression="int8"),
    "diloco_overlap": DiLoCo(_H, fragments=3, delay=2),
    "diloco_async": DiLoCo(_H, asynchronous=True),
    "local_sgd": LocalSGD(_H),
}
_RATE = 0.002
_CONTEXT, _BATCH, _WIDTH, _HEADS, _LAYERS = 64, 16, 64, 4, 2
_VALIDATION = 100_000  # characters
_BATCHES, _BATCHES_QUICK = 60, 3  # of the validation
_NAME = "text8.head.txt"


class LanguageResult(NamedTuple):
    """The result of a job: validation loss in nats a character, bytes of a worker."""

    loss: float
    n_bytes: int


class LanguageModel(torch.nn.Module):
    """A decoder of a few layers, without dropout."""

    def __init__(self, n_symbols: int) -> None:
        """Make it with values from torch's generator."""
        super().__init__()
        self.embedding = torch.nn.Embedding(n_symbols, _WIDTH)
        self.place = torch.nn.Parameter(torch.zeros(_CONTEXT, _WIDTH))
        self.layers = torch.nn.ModuleList(
            torch.nn.TransformerEncoderLayer(
                _WIDTH, _HEADS, 4 * _WIDTH, 0.0, "gelu", batch_first=True, norm_first=True
            )
            for _ in range(_LAYERS)
        )
        self.norm = torch.nn.LayerNorm(_WIDTH)
        self.head = torch.nn.Linear(_WIDTH, n_symbols)
        mask = torch.triu(torch.full((_CONTEXT, _CONTEXT), float("-inf")), 1)
        self.register_buffer("mask", mask, persistent=False)

    def loss(self, batch: torch.Tensor) -> torch.Tensor:
        """Return the mean loss of the next character; `batch`: int64, shape (n, context + 1)."""
        hidden = self.embedding(batch[:, :-1]) + self.place
        for layer in self.layers:
            hidden = layer(hidden, src_mask=self.mask)
        logits = self.head(self.norm(hidden))
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())


class Text(NamedTuple):
    """Characters as numbers from 0, int64: those to train on, and those to validate."""

    train: torch.Tensor
    validation: torch.Tensor
    n_symbols: int
    name: str


def _text(quick: bool) -> Text:
    """Return text8.head.txt of the folder MPIPS_TEST_DATA, or a made-up text."""
    path = Path(os.environ.get("MPIPS_TEST_DATA", "")) / _NAME
    if not quick and path.is_file():
        raw, name = np.frombuffer(path.read_bytes(), np.uint8), _NAME
    else:
        # Words of a small vocabulary, so that there is something to learn.
        random = np.random.default_rng(1)
        words = ["".join(map(chr, random.integers(97, 107, n))) for n in random.integers(2, 7, 60)]
        made = " ".join(words[i] for i in random.integers(0, 60, 60_000))
        raw, name = np.frombuffer(made.encode(), np.uint8), "a made-up text"
    symbols, numbers = np.unique(raw, return_inverse=True)
    all_ = torch.from_numpy(numbers.astype(np.int64))
    return Text(all_[:-_VALIDATION], all_[-_VALIDATION:], len(symbols), name)


def _batch(text: torch.Tensor, random: np.random.Generator) -> torch.Tensor:
    at = torch.from_numpy(random.integers(0, len(text) - _CONTEXT, _BATCH))
    return text[at[:, None] + torch.arange(_CONTEXT + 1)]


def _make(n_symbols: int) -> LanguageModel:
    torch.manual_seed(0)
    return LanguageModel(n_symbols)


def _train(worker: Worker, text: Text, quick: bool) -> LanguageResult:
    model = _make(text.n_symbols)
    parameters = dict(model.named_parameters())

    def fetch() -> None:
        with torch.no_grad():
            for name, parameter in parameters.items():
                parameter.copy_(torch.from_numpy(worker.table(name).pull()))

    for step in range(_STEPS_QUICK if quick else _STEPS):
        fetch()
        model.zero_grad()
        model.loss(_batch(text.train, np.random.default_rng([worker.index, step]))).backward()  # type: ignore[no-untyped-call]
        for name, parameter in parameters.items():
            assert parameter.grad is not None
            worker.table(name).push(parameter.grad.numpy())
        worker.clock()
    worker.synchronize()
    fetch()
    random, n = np.random.default_rng(7), _BATCHES_QUICK if quick else _BATCHES
    with torch.no_grad():
        losses = [float(model.loss(_batch(text.validation, random))) for _ in range(n)]
    sent = worker.counters()
    return LanguageResult(float(np.mean(losses)), sent["pushed_bytes"] + sent["pulled_bytes"])


def _tables(n_symbols: int, consistency: Consistency) -> list[DenseTable]:
    values: dict[str, NDArray[Any]] = {
        name: parameter.detach().numpy() for name, parameter in _make(n_symbols).named_parameters()
    }
    return [
        DenseTable(name, init.shape, AdamW(_RATE), consistency, init=init)
        for name, init in values.items()
    ]


def train(ranks: BenchRanks, options: Options) -> Findings | None:
    """Train under both; return losses and bytes on worker 0's rank, None elsewhere. Collective."""
    torch.set_num_threads(1)
    text, n_steps = _text(options.quick), _STEPS_QUICK if options.quick else _STEPS
    results = []
    for consistency in (*VARIANTS.values(), BSP()):
        results.append(
            ranks.session(
                lambda worker: (worker.index, _train(worker, text, options.quick)),
                _tables(text.n_symbols, consistency),
                servers=1,
                timeout_s=600.0,
            )
        )
    if results[0] is None or results[0][0] != 0:
        return None
    *found, bsp = (result for _, result in results)
    comparisons = []
    for name, ours in zip(VARIANTS, found, strict=True):
        what = f"of a language model on {text.name} after {n_steps} steps, {name}, H = {_H}"
        sides: tuple[tuple[str, str, str, float, float], ...] = (
            ("bytes", "bytes of a worker", "bytes", ours.n_bytes, bsp.n_bytes),
            ("loss", "validation loss", "nats", ours.loss, bsp.loss),
        )
        for side, measured, unit, own, baseline in sides:
            comparisons.append(
                Comparison(
                    name=f"{name}_{side}",
                    what=f"{measured} {what}",
                    unit=unit,
                    ours=[own],
                    baseline=[baseline],
                    baseline_name="BSP",
                )
            )
    return Findings(comparisons=comparisons)

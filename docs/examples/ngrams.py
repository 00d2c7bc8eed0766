"""A small language model of characters, with a memory of n-grams beside it and without."""

import os
from pathlib import Path

import mpips

mpips.init()

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import mpips.torch

LENGTH = 64  # characters of a sample
N_BYTES = int(os.environ.get("BYTES", 400_000))
N_EPOCHS = int(os.environ.get("EPOCHS", 2))


class Model(nn.Module):
    """An embedding, a GRU, and rows of the n-grams that end at each character."""

    def __init__(self, has_memory):
        super().__init__()
        self.memory = None
        if has_memory:
            self.memory = mpips.torch.NgramEmbedding(
                orders=(2, 3, 4),
                rows=2**30,  # a row exists when it is used: n-grams hardly ever share one
                dim=24,
                optimizer=mpips.RowAdagrad(0.1),
                row_dtype="bf16",
            )
        self.tokens = nn.Embedding(27, 24)
        self.context = nn.GRU(24, 24, batch_first=True)
        self.head = nn.Linear(24, 27)

    def forward(self, tokens):
        if self.memory is not None:
            self.memory.announce(tokens)  # rows travel while the GRU computes
        hidden, _ = self.context(self.tokens(tokens))
        if self.memory is not None:
            hidden = hidden + self.memory(tokens)
        return self.head(hidden)


def loss_of(model, batch):
    """Return the mean loss of the next character, in nats."""
    logits = model(batch[:, :-1])
    return nn.functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())


with Path("text8.head.txt").open("rb") as file:
    text = np.frombuffer(file.read(N_BYTES), np.uint8)
symbols = np.where(text < ord("a"), 0, text - ord("a") + 1).astype(np.int64)  # others: a space
samples = symbols[: len(symbols) // LENGTH * LENGTH].reshape(-1, LENGTH)
samples = torch.from_numpy(samples)
n_test = len(samples) // 10
data = TensorDataset(samples[:-n_test])
loader = DataLoader(data, batch_size=24 // mpips.world_size(), shuffle=True)
loader = mpips.torch.prepare_loader(loader)
prepared = {}
for name in ("plain", "memory"):
    torch.manual_seed(1)
    model = Model(has_memory=name == "memory")
    optimizer = torch.optim.Adam(model.parameters(), lr=0.005)
    prepared[name] = mpips.torch.prepare(model, optimizer, name=name)
for _ in mpips.torch.epochs(N_EPOCHS):
    for (batch,) in loader:
        for model, optimizer in prepared.values():
            optimizer.zero_grad()
            loss_of(model, batch).backward()
            optimizer.step()

for name, (model, _) in prepared.items():
    model.eval()
    with torch.no_grad():
        perplexity = loss_of(model, samples[-n_test:]).exp().item()
    if mpips.rank() == 0:
        print(f"{name}: perplexity {perplexity:.3f}")

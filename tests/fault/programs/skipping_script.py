"""A torch script in which worker 1 skips steps; in epoch 3 it leaves the loop one batch early.

    skipping_script.py FOLDER

Each worker writes the value before each batch to WORKER.txt in the folder. Gradients are whole numbers:
worker w has 10 ** w * (batch + 1).
"""

from __future__ import annotations

import sys
from pathlib import Path

import mpips

mpips.init(verbose=False, timeout_s=30)

import torch  # noqa: E402
from torch import nn  # noqa: E402
from torch.utils.data import DataLoader, TensorDataset  # noqa: E402

import mpips.torch  # noqa: E402

worker = mpips.rank()
model = nn.Linear(1, 1, bias=False)
nn.init.zeros_(model.weight)
x = torch.tensor([[10.0**w * (k + 1)] for k in range(4) for w in range(2)])
model, optimizer, loader = mpips.torch.prepare(
    model, torch.optim.SGD(model.parameters(), 2.0), DataLoader(TensorDataset(x)), overlap=False
)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**4)
with Path(sys.argv[1], f"{worker}.txt").open("w") as values:
    for epoch in range(5):
        for k, (x,) in enumerate(loader):
            optimizer.zero_grad()
            loss = model(x).sum()
            print(f"{model.weight.item():.0f}", end=" ", file=values, flush=True)
            if worker == 1 and (epoch, k) == (0, 1):
                continue
            scaler.scale(
                loss * float("inf") if worker == 1 and (epoch, k) == (1, 2) else loss
            ).backward()
            if worker == 1 and (epoch, k) == (2, 3):
                continue
            scaler.step(optimizer)
            scaler.update()
            if worker == 1 and (epoch, k) == (3, 2):
                break

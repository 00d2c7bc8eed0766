"""A torch script in which worker 1 alone lowers its learning rate behind the first epoch.

    plateau_script.py LOADER

LOADER: "prepared", or "none": the script makes its batches itself.
"""

from __future__ import annotations

import sys

import mpips

mpips.init(verbose=False, timeout_s=30)

import torch  # noqa: E402
from torch import nn  # noqa: E402
from torch.utils.data import DataLoader, TensorDataset  # noqa: E402

import mpips.torch  # noqa: E402

model = nn.Linear(1, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.25)
plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=0)
loader = DataLoader(TensorDataset(torch.ones(8, 1)), batch_size=2)
model, optimizer = mpips.torch.prepare(model, optimizer)
if sys.argv[1] == "prepared":
    loader = mpips.torch.prepare_loader(loader)
for epoch in range(4):
    for (x,) in loader:
        optimizer.zero_grad()
        model(x).sum().backward()
        optimizer.step()
    # The loss of worker 1 rises in the second epoch.
    plateau.step(float(epoch) if mpips.rank() == 1 and epoch < 2 else -float(epoch))

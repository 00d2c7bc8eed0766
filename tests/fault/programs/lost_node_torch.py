"""A PyTorch script that counts steps. In its first launch it waits in the middle until a node is lost."""

import json
import os
import time

import mpips

mpips.init(servers=2, every_steps=20, verbose=False)

import torch  # noqa: E402
from torch.utils.data import DataLoader, TensorDataset  # noqa: E402

import mpips.torch  # noqa: E402

STEPS = 60

model = torch.nn.Linear(4, 1, bias=False)
torch.nn.init.zeros_(model.weight)
data = TensorDataset(torch.ones(mpips.world_size(), 4))
loader = mpips.torch.prepare_loader(DataLoader(data, batch_size=1))
model, optimizer = mpips.torch.prepare(model, torch.optim.SGD(model.parameters(), lr=1.0))
first = None
for epoch in mpips.torch.epochs(STEPS):
    first = epoch if first is None else first
    for (x,) in loader:
        while epoch == STEPS // 2 and os.environ["MPIPS_GENERATION"] == "0":
            time.sleep(0.1)
        optimizer.zero_grad()
        (-model(x)).sum().backward()
        optimizer.step()
model(torch.ones(1, 4))  # pulls the values
if mpips.rank() == 0:
    print(json.dumps({"first": first, "values": model.weight.tolist()[0]}), flush=True)

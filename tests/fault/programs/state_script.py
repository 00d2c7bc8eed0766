"""A torch script whose workers load different rows, and of which worker 0 alone saves the model.

    state_script.py [--consistency NAME]

Two servers. Worker w loads the rows 1000 w + key of 100 keys. Each step gives the row w a gradient of 2, so
the mean of two workers subtracts 1 of it, and a row that both workers use 2. Rows with momentum, and a
parameter, get the same gradients; worker w has loaded a momentum of 100 w more than worker 0. Worker 0 saves
after each step.
"""

from __future__ import annotations

import argparse
import json
import os

import mpips

mpips.init(servers=2, verbose=False, timeout_s=60)

import torch  # noqa: E402
from torch import nn  # noqa: E402

import mpips.torch  # noqa: E402

N_KEYS, SHARED, N = 100, 2**40, 40000
arguments = argparse.ArgumentParser()
arguments.add_argument("--consistency", default="bsp")
worker = mpips.rank()


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        layer = mpips.torch.EmbeddingBag
        self.rows = layer(3, mode="sum", optimizer=mpips.SGD(1.0), init="zeros")
        self.heavy = layer(1, mode="sum", optimizer=mpips.Momentum(1.0, momentum=0.5), init="zeros")
        self.weight = nn.Parameter(torch.zeros(N))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return 2 * (self.rows(ids).sum() + self.heavy(ids).sum() + self.weight.sum())


model = Net()
optimizer = torch.optim.SGD([model.weight], 1.0, momentum=0.5)
keys = torch.arange(N_KEYS)
column = (100.0 * worker + keys)[:, None]
model.load_state_dict(
    {
        "rows.rows.keys": keys,
        "rows.rows.values": 10 * column.expand(-1, 3) - 9 * keys[:, None],
        "heavy.rows.keys": keys,
        "heavy.rows.values": column,
        "weight": model.weight.detach(),
    }
)
optimizer.load_state_dict(
    {
        **optimizer.state_dict(),
        "state": {
            0: {"momentum_buffer": torch.full((N,), 7 + 100.0 * worker)},
            "mpips rows of net.heavy": {"keys": keys, "momentum": column},
        },
    }
)
model, optimizer = mpips.torch.prepare(
    model, optimizer, consistency=arguments.parse_args().consistency, name="net"
)
saved, states = [], []
for _ in range(3):
    optimizer.zero_grad()
    model(torch.tensor([[worker, SHARED]])).backward()
    optimizer.step()
    if worker == 0:
        states.append(optimizer.state_dict()["state"])
        saved.append(model.state_dict())
found = {
    "worker": worker,
    "keys": [one["rows.rows.keys"].tolist() for one in saved],
    "values": [one["rows.rows.values"].tolist() for one in saved],
    "momenta": [one["mpips rows of net.heavy"]["momentum"].squeeze(1).tolist() for one in states],
    "buffers": [
        [len(one[0]["momentum_buffer"]), *set(one[0]["momentum_buffer"].tolist())] for one in states
    ],
}
# One write, so that lines of ranks do not mix.
os.write(1, (json.dumps(found) + "\n").encode())

"""A torch script whose workers load different rows, and of which worker 0 alone saves the model.

    state_script.py [--consistency NAME]

Two servers. Worker w loads the rows 1000 w + key of 100 keys. Each step gives the row w a gradient of 2, so
the mean of two workers subtracts 1 of it, and a row that both workers use 2. Worker 0 saves after each step.
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

N_KEYS, SHARED = 100, 2**40
arguments = argparse.ArgumentParser()
arguments.add_argument("--consistency", default="bsp")
worker = mpips.rank()

model = nn.Sequential(
    mpips.torch.EmbeddingBag(3, mode="sum", optimizer=mpips.SGD(1.0), init="zeros")
)
keys = torch.arange(N_KEYS)
rows = (1000.0 * worker + keys)[:, None].expand(-1, 3)
model.load_state_dict({"0.rows.keys": keys, "0.rows.values": rows})
model, optimizer = mpips.torch.prepare(
    model, consistency=arguments.parse_args().consistency, name="bag"
)
saved = []
for _ in range(3):
    optimizer.zero_grad()
    (2 * model(torch.tensor([[worker, SHARED]]))).sum().backward()
    optimizer.step()
    if worker == 0:
        saved.append(model.state_dict())
found = {
    "worker": worker,
    "keys": [one["0.rows.keys"].tolist() for one in saved],
    "values": [one["0.rows.values"].tolist() for one in saved],
}
# One write, so that lines of ranks do not mix.
os.write(1, (json.dumps(found) + "\n").encode())

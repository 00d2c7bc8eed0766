"""Layers with fewer rows than workers, divided between them; worker 0 writes result.pt.

usage: narrow_shards.py FOLDER

Of 4 workers one or two have no row, two have no sample, and in a step no worker needs the second row. All
values are integers, or quarters of them, so their sums are exact.
"""

import sys
from pathlib import Path

import mpips

mpips.init(servers=1, timeout_s=40.0, verbose=False)

import torch  # noqa: E402
from torch import nn  # noqa: E402

import mpips.torch  # noqa: E402

torch.set_num_threads(1)
rank, n_workers = mpips.rank(), mpips.world_size()


class Narrow(nn.Module):
    """The sum of a row and of a product."""

    def __init__(self) -> None:
        super().__init__()
        rule = mpips.SGD(lr=0.25)
        self.rows = mpips.torch.ShardedEmbedding(2, 3, init="constant(2)", optimizer=rule)
        self.product = mpips.torch.ShardedLinear(
            2, 3, divide="in_features", init="constant(1)", optimizer=rule
        )

    def forward(self, ids: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """Return values of shape (n, 3)."""
        return self.rows(ids) + self.product(x)


model, optimizer = mpips.torch.prepare(Narrow())
ids = torch.tensor([0, 1, 1, 1, 0, 0, 1, 1])
x = torch.arange(16.0).reshape(8, 2) - 7
factors = torch.arange(24.0).reshape(8, 3) - 11
own = slice(0, 8)
if n_workers > 1:
    own = slice(4 * (rank // 2), 4 * (rank // 2) + 4 * (rank % 2))
for step in range(3):
    optimizer.zero_grad()
    found = model(torch.zeros_like(ids)[own] if step == 1 else ids[own], x[own])
    # A step divides the sum over the workers by their number.
    (n_workers * factors[own] * found).sum().backward()
    optimizer.step()
state = model.state_dict()
if rank == 0:
    torch.save(state, Path(sys.argv[1]) / "result.pt")

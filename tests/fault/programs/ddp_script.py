"""DistributedDataParallel over gloo, twice with the same data: as it is, and with the hook of mpips.

Each worker prints a line of JSON. usage: ddp_script.py STORE TRANSPORT
"""

import copy
import json
import sys
from datetime import timedelta

import mpips

mpips.init(servers=1, transport=sys.argv[2], timeout_s=40, verbose=False)

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402

import mpips.torch.ddp  # noqa: E402

mpips.torch.ddp.SEGMENT = 1000
rank, world = mpips.rank(), mpips.world_size()
dist.init_process_group(
    "gloo",
    init_method=f"file://{sys.argv[1]}",
    rank=rank,
    world_size=world,
    timeout=timedelta(seconds=40),
)
torch.manual_seed(rank)  # DDP takes the values of rank 0
layers = [nn.Linear(40, 40), nn.Tanh(), nn.Linear(40, 40), nn.Tanh(), nn.Linear(40, 1)]
model = nn.Sequential(*layers)


def train(hooked):
    """Train a copy of the model; return its parameters, one behind the other."""
    ddp = DistributedDataParallel(copy.deepcopy(model), bucket_cap_mb=0.004)
    if hooked:
        ddp.register_comm_hook(mpips.torch.CommState(ddp), mpips.torch.comm_hook)
    optimizer = torch.optim.Adam(ddp.parameters(), 0.01)
    torch.manual_seed(100 + rank)
    for _ in range(6):
        optimizer.zero_grad()
        ddp(torch.randn(8, 40)).square().mean().backward()
        optimizer.step()
    return torch.cat([p.detach().view(-1) for p in ddp.parameters()])


plain, hooked = train(False), train(True)
others = [torch.empty_like(hooked) for _ in range(world)]
dist.all_gather(others, hooked)
same = all(torch.equal(other, hooked) for other in others)
error = float((plain - hooked).abs().max() / plain.abs().max())
print(json.dumps({"worker": rank, "world": world, "same": same, "error": error}), flush=True)
dist.destroy_process_group()

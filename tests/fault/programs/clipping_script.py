"""A torch script that clips gradients from step 5 on, with the overlap that the file OVERLAP names.

    clipping_script.py OVERLAP

Each worker prints a digest of the final values.
"""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path

import mpips

mpips.init(verbose=False, timeout_s=30)

import torch  # noqa: E402
from torch.utils.data import DataLoader, TensorDataset  # noqa: E402

import mpips.torch  # noqa: E402

overlap = {"None": None, "False": False}[Path(sys.argv[1]).read_text()]
torch.manual_seed(1)
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = DataLoader(TensorDataset(torch.randn(32, 4)), batch_size=4)
model, optimizer, loader = mpips.torch.prepare(model, optimizer, data, overlap=overlap)
for (x,) in loader:
    number = mpips.torch.steps()
    optimizer.zero_grad()
    model(x).square().mean().backward()
    if number >= 5:
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
    optimizer.step()
digest = hashlib.sha256()
for value in model.state_dict().values():
    digest.update(value.numpy().tobytes())
print(f"digest {digest.hexdigest()}")

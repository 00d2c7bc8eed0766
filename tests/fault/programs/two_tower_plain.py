"""A recommender of two towers in plain PyTorch, with a log and the best model of its own."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

N_USERS, N_ITEMS, N_CLICKS, N_EPOCHS = 60, 40, 1200, 4


class Tower(nn.Module):
    """An embedding and a layer; returns vectors of length 1."""

    def __init__(self, n: int) -> None:
        super().__init__()
        self.rows = nn.Embedding(n, 8)
        self.layer = nn.Linear(8, 8)

    def forward(self, ids):
        return nn.functional.normalize(self.layer(self.rows(ids)), dim=-1)


class TwoTower(nn.Module):
    """Scores of users for items; the other items of a batch are the negative ones."""

    def __init__(self) -> None:
        super().__init__()
        self.user, self.item = Tower(N_USERS), Tower(N_ITEMS)

    def forward(self, users, items):
        return 8 * self.user(users) @ self.item(items).T


torch.manual_seed(3)
users = torch.randint(0, N_USERS, (N_CLICKS,))
items = (users % 8) * 5 + torch.randint(0, 5, (N_CLICKS,))
test = torch.arange(N_CLICKS) % 5 == 0
model = TwoTower()
optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
data = TensorDataset(users[~test], items[~test])
loader = DataLoader(data, batch_size=48, shuffle=True)


def recall():
    """Return the share of clicks whose item is among the five best ones of its user."""
    model.eval()
    with torch.no_grad():
        best = model(users[test], torch.arange(N_ITEMS)).topk(5).indices
    model.train()
    return (best == items[test].unsqueeze(1)).any(1).float().mean().item()


log = {"best": 0.0, "lines": []}
for epoch in range(N_EPOCHS):
    for user, item in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(user, item), torch.arange(len(user))).backward()
        optimizer.step()
    scheduler.step()
    found, rate = recall(), optimizer.param_groups[0]["lr"]
    log["lines"].append(f"{epoch},{found!r},{rate!r}\n")
    is_best, log["best"] = found > log["best"], max(found, log["best"])
    if is_best:
        torch.save(model.state_dict(), "best.pt")
    with open("log.csv", "w") as file:
        file.writelines(log["lines"])

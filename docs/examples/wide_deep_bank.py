"""Wide & Deep on bank marketing data: words, and pairs of words, are ids of rows."""

import csv
import itertools
import zlib

import mpips

mpips.init()

import numpy as np
import torch
from sklearn.metrics import roc_auc_score
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import mpips.torch

NUMBERS = ["age", "balance", "day", "duration", "campaign", "pdays", "previous"]
WORDS = [
    "job",
    "marital",
    "education",
    "default",
    "housing",
    "loan",
    "contact",
    "month",
    "poutcome",
]


def read(path):
    """Return numbers (n, 7), ids of words (n, 9), ids of pairs of words (n, 36) and labels (n,)."""
    with open(path, newline="") as file:
        rows = list(csv.DictReader(file, delimiter=";"))
    numbers = np.array([[float(row[name]) for name in NUMBERS] for row in rows], np.float32)
    numbers = np.sign(numbers) * np.log1p(np.abs(numbers))  # amounts and durations have long tails
    words = [[f"{name}={row[name]}" for name in WORDS] for row in rows]
    pairs = [[f"{a}&{b}" for a, b in itertools.combinations(row, 2)] for row in words]
    ids, crossed = (
        np.array([[zlib.crc32(text.encode()) for text in row] for row in texts], np.int64)
        for texts in (words, pairs)
    )
    labels = np.array([row["y"] == "yes" for row in rows], np.float32)
    return numbers, ids, crossed, labels


class WideDeep(nn.Module):
    """A linear model of crossed features beside a network of numbers and embedded words."""

    def __init__(self):
        super().__init__()
        rule = mpips.Adagrad(0.02)
        self.wide = mpips.torch.EmbeddingBag(1, mode="sum", optimizer=rule, init="zeros")
        self.words = mpips.torch.Embedding(8, optimizer=rule, init="normal(0.05)")
        self.deep = nn.Sequential(
            nn.Linear(len(NUMBERS) + 8 * len(WORDS), 64),
            nn.ReLU(),
            nn.Linear(64, 32),
            nn.ReLU(),
            nn.Linear(32, 1),
        )

    def forward(self, numbers, ids, crossed):
        deep = self.deep(torch.cat([numbers, self.words(ids).flatten(1)], dim=1))
        return (deep + self.wide(crossed)).squeeze(1)


train, valid = read("bank.train.csv"), read("bank.valid.csv")
mean, scale = train[0].mean(0), train[0].std(0)
train, valid = (
    [torch.from_numpy(part) for part in ((numbers - mean) / scale, *rest)]
    for numbers, *rest in (train, valid)
)
torch.manual_seed(1)
model = WideDeep()
optimizer = torch.optim.Adam(model.parameters(), lr=0.004)
loader = DataLoader(TensorDataset(*train), batch_size=120 // mpips.world_size(), shuffle=True)
model, optimizer, loader = mpips.torch.prepare(model, optimizer, loader)
for _ in range(7):
    for *inputs, labels in loader:
        optimizer.zero_grad()
        nn.functional.binary_cross_entropy_with_logits(model(*inputs), labels).backward()
        optimizer.step()

model.eval()
with torch.no_grad():
    auc = roc_auc_score(valid[3], model(*valid[:3]))
if mpips.rank() == 0:
    print(f"validation AUC {auc:.3f}")

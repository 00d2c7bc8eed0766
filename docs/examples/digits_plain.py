"""A convolutional network on images of digits, in plain PyTorch."""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

images, labels = load_digits(return_X_y=True)
x, y = torch.tensor(images / 16, dtype=torch.float32).view(-1, 1, 8, 8), torch.tensor(labels)
test = torch.arange(len(x)) % 5 == 0
torch.manual_seed(1)
model = nn.Sequential(
    nn.Conv2d(1, 24, 3, padding=1),
    nn.BatchNorm2d(24),
    nn.ReLU(),
    nn.Conv2d(24, 48, 3, padding=1),
    nn.ReLU(),
    nn.MaxPool2d(2),
    nn.Flatten(),
    nn.Dropout(0.3),
    nn.Linear(48 * 16, 10),
)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.006)
data = TensorDataset(x[~test], y[~test])
loader = DataLoader(data, batch_size=48, shuffle=True)
scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.006, total_steps=12 * len(loader))

for _ in range(12):
    for images, labels in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
        scheduler.step()

model.eval()
with torch.no_grad():
    accuracy = (model(x[test]).argmax(1) == y[test]).float().mean().item()
print(f"test accuracy {accuracy:.3f}")

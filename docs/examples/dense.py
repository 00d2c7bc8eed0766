"""Softmax regression on images of digits: a dense table, an own loop, BSP."""

import numpy as np
from sklearn.datasets import load_digits

import mpips

x, y = load_digits(return_X_y=True)
x = (x / 16).astype(np.float32)
train, test = np.arange(1400), np.arange(1400, len(x))
tables = [
    mpips.DenseTable("weight", (64, 10), mpips.Adam(lr=0.01)),
    mpips.DenseTable("bias", (10,), mpips.Adam(lr=0.01)),
]


def main(worker):
    weight, bias = worker.table("weight"), worker.table("bias")
    mine = train[worker.index :: worker.n_workers]
    for epoch in range(30):
        order = np.random.default_rng([epoch, worker.index]).permutation(mine)
        for rows in np.array_split(order, 20):
            p = np.exp(x[rows] @ weight.pull() + bias.pull())
            p /= p.sum(axis=1, keepdims=True)
            p[np.arange(len(rows)), y[rows]] -= 1
            weight.push(x[rows].T @ p / len(rows))
            bias.push(p.mean(axis=0))
            worker.clock()
    return np.mean((x[test] @ weight.pull() + bias.pull()).argmax(axis=1) == y[test])


outcome = mpips.run(main, tables)
if outcome.is_first_worker:
    print(f"test accuracy {outcome.value:.3f}")

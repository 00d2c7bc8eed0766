"""Asynchronous workers on the digits: worker 0 writes the loss of each of its steps into a file."""

import sys

import numpy as np
from sklearn.datasets import load_digits

import mpips

x, y = load_digits(return_X_y=True)
x = (x / 16).astype(np.float32)
rule = mpips.Momentum(lr=1.5, momentum=0.95)
tables = [mpips.DenseTable("weight", (64, 10), rule, consistency=mpips.ASP())]


def main(worker):
    weight, losses = worker.table("weight"), []
    for _ in range(300):
        rows = worker.random.choice(len(x), 32, replace=False)
        scores = x[rows] @ weight.pull()
        p = np.exp(scores - scores.max(axis=1, keepdims=True))
        p /= p.sum(axis=1, keepdims=True)
        losses.append(-np.log(p[np.arange(32), y[rows]] + 1e-9).mean())
        p[np.arange(32), y[rows]] -= 1
        weight.push(x[rows].T @ p / 32)
        worker.clock()
    if worker.index == 0:
        np.save(sys.argv[1], losses)


mpips.run(main, tables)

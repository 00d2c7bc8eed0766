"""Generated ratings of users and items, and the job that learns them."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np

from mpips.config.schema import load_config

N_USERS, N_ITEMS = 60, 40


def draws() -> tuple[Any, Any]:
    """Ratings of all pairs of user and item, from biases and two factors; and a random order of pairs."""
    draw = np.random.default_rng(6)
    users, items = draw.normal(size=(N_USERS, 3)), draw.normal(size=(N_ITEMS, 3))
    ratings = 3.5 + 0.5 * (users[:, :1] + items[:, 0]) + users[:, 1:] @ items[:, 1:].T * 0.5
    pairs = np.array(list(itertools.product(range(N_USERS), range(N_ITEMS))))
    return ratings, draw.permutation(pairs)


def write(folder: Path, sigma: float = 0.0) -> None:
    ratings, pairs = draws()
    noise = np.random.default_rng(7).normal(size=len(pairs)) * sigma
    texts = [
        f"u{u},i{i},{ratings[u, i] + e:.9g}"
        for (u, i), e in zip(pairs.tolist(), noise, strict=True)
    ]
    for name, own in (("train", texts[600:]), ("test", texts[:600])):
        (folder / f"{name}.csv").write_text("user,item,rating\n" + "\n".join(own) + "\n")


def job(folder: Path, *more: tuple[str, Any]) -> Any:
    pairs = [
        ("task", "mf"),
        ("data.train", str(folder / "train.csv")),
        ("data.test", str(folder / "test.csv")),
        ("checkpoint.folder", str(folder / "c")),
        ("options.dim", 4),
        ("train.batch_size", 32),
    ]
    return load_config(None, [*pairs, *more])

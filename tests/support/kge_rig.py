"""Embeddings of knowledge graphs: all models, their scores written out, and small graphs to train on."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np

from mpips.config.schema import load_config
from mpips.tasks.kge_models import ComplEx, DistMult, EmbeddingModel, RotatE, TransE

MODELS: list[tuple[str, EmbeddingModel]] = [
    ("complex", ComplEx()),
    ("distmult", DistMult()),
    ("rotate", RotatE()),
    ("transe", TransE(1)),
    ("transe", TransE(2)),
]


DIM = 6


def score(name: str, norm: int, h: Any, r: Any, t: Any) -> float:
    """The score of a triple, written out number by number."""
    half = DIM // 2
    z = [[complex(x[k], x[half + k]) for k in range(half)] for x in (h, t)]
    if name == "complex":
        w = [complex(r[k], r[half + k]) for k in range(half)]
        return sum((a * b * c.conjugate()).real for a, b, c in zip(z[0], w, z[1], strict=True))
    if name == "rotate":
        turns = [complex(math.cos(angle), math.sin(angle)) for angle in r]
        return -sum(abs(a * b - c) for a, b, c in zip(z[0], turns, z[1], strict=True))
    if name == "distmult":
        return float(sum(a * b * c for a, b, c in zip(h, r, t, strict=True)))
    differences = [abs(a + b - c) for a, b, c in zip(h, r, t, strict=True)]
    return -sum(differences) if norm == 1 else -math.sqrt(sum(d * d for d in differences))


def rows(model: EmbeddingModel, m: int, k: int) -> tuple[Any, Any, Any]:
    draw = np.random.default_rng(m + k)
    return (
        draw.normal(size=(m, DIM)),
        draw.normal(size=(m, model.relation_dim(DIM))),
        draw.normal(size=(k, DIM)),
    )


def slope(f: Any, x: Any) -> Any:
    """The gradient of f at x by central differences."""
    found = np.zeros_like(x)
    for place in np.ndindex(x.shape):
        ends = []
        for step in (1e-6, -1e-6):
            moved = x.copy()
            moved[place] += step
            ends.append(f(moved))
        found[place] = (ends[0] - ends[1]) / 2e-6
    return found


# The graph: each of 12 people has the next one as a friend, and lives in one of two towns by turns.
def lines(first: int, last: int) -> list[str]:
    found = []
    for i in range(first, last):
        found.append(f"p{i % 12}\tfriend\tp{(i + 1) % 12}")
        found.append(f"p{i % 12}\tlives in\ttown {'AB'[i % 2]}")
    return found


def job(folder: Path, *more: tuple[str, Any]) -> Any:
    (folder / "train.tsv").write_text("\n".join(lines(0, 11)) + "\n")
    (folder / "test.tsv").write_bytes(
        b"\xef\xbb\xbfp11\tlives in\ttown B\r\n\r\n p0\tfriend\tp1 \r\np0\tfriend\tnobody"
    )
    pairs = [
        ("task", "kge"),
        ("data.train", str(folder / "train.tsv")),
        ("data.test", str(folder / "test.tsv")),
        ("options.dim", 16),
        ("train.epochs", 30),
        ("train.batch_size", 8),
        ("checkpoint.folder", str(folder / "c")),
    ]
    return load_config(None, [*pairs, *more])

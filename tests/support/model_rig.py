"""Small models of each built-in task, trained in this process, for tests of what stands alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from mpips.config.schema import load_config
from mpips.training.train import train


def dense_csv(path: Path, n: int, seed: int, labels: tuple[float, ...] = (-1, 1, 4)) -> Path:
    """Write a CSV of three classes with columns of very different scales, one of them constant."""
    rng = np.random.default_rng(seed)
    classes = rng.integers(0, len(labels), n)
    rows = ["big,small,flat,label,wide"]
    for c in classes:
        big, small = 1e6 + 300.0 * c + rng.normal(0, 40), 1e-3 * (c - rng.normal(0, 0.2))
        rows.append(
            f"{big:.3f},{small:.9f},7,{labels[c]:g},{1.7e9 + 60 * c + rng.normal(0, 9):.3f}"
        )
    path.write_text("\n".join(rows) + "\n")
    return path


def hashed_csv(path: Path, n: int, seed: int) -> Path:
    """Write a CSV of two classes with a text column and a number."""
    rng = np.random.default_rng(seed)
    rows = ["colour,size,y"]
    for _ in range(n):
        colour, size = rng.choice(["red", "green", "blue"]), rng.integers(0, 9)
        rows.append(f"{colour},{size},{int(rng.random() < (0.9 if colour == 'red' else 0.2))}")
    path.write_text("\n".join(rows) + "\n")
    return path


def mixed_csv(path: Path, n: int, seed: int) -> Path:
    """Write a CSV of two classes with two text columns and two of numbers, with empty cells in three."""
    rng = np.random.default_rng(seed)
    rows = ["colour,size,kind,age,y"]
    for _ in range(n):
        colour, kind = rng.choice(["red", "green", "blue", ""]), rng.choice(["a", "b"])
        size, age = rng.normal(3, 2), rng.integers(1, 90)
        chance = 0.9 if (colour == "red") == (kind == "a") and size > 2 else 0.2
        cell = "" if rng.random() < 0.2 else f"{age}"
        rows.append(f"{colour},{size:.3f},{kind},{cell},{int(rng.random() < chance)}")
    path.write_text("\n".join(rows) + "\n")
    return path


def labelled_csv(path: Path, n: int, seed: int, labels: str = "targets", text: bool = True) -> Path:
    """Write a CSV with a text column and two of numbers, and labels of a known model with little noise.

    Args:
        path: The file.
        n: Samples.
        seed: Of the samples.
        labels: "targets": a column `y` of numbers about 5000. "classes": a column `y` of three texts.
        text: With the text column.
    """
    rng = np.random.default_rng(seed)
    colours = rng.choice(["red", "green", "blue"], n)
    size, age = rng.normal(3, 2, n), rng.uniform(1, 90, n)
    base = np.select([colours == "red", colours == "green"], [2.0, -1.0], 0.0) if text else 0.0
    score = base + 0.8 * size - 0.03 * age
    header = ["colour", "size", "age", "y"]
    y: Any = 5000 + 300 * (score + rng.normal(0, 0.1, n))
    if labels == "classes":
        y = np.select([score < 0, score < 2], ["low", "middle"], "high")
    rows = [*zip(colours, size.round(4), age.round(3), y, strict=True)]
    lines = [",".join(map(str, row if text else row[1:])) for row in rows]
    path.write_text("\n".join([",".join(header if text else header[1:]), *lines]) + "\n")
    return path


def several_csv(path: Path, n: int, seed: int, text: bool = True) -> Path:
    """Write a CSV with a text column, two of numbers and three labels of a known model: a, b and rare.

    Args:
        path: The file.
        n: Samples.
        seed: Of the samples.
        text: With the text column.
    """
    rng = np.random.default_rng(seed)
    colours = rng.choice(["red", "green", "blue"], n)
    size, age = rng.normal(3, 2, n), rng.uniform(1, 90, n)
    red = (colours == "red") * 1.0 if text else 0.5
    logits = np.stack([2 * size - 6, 6 * red - 3 + 0.02 * age, 0.1 * age - 8], axis=1)
    labels = (rng.random((n, 3)) < 1 / (1 + np.exp(-logits))).astype(int)
    header = ["colour", "size", "a", "age", "b", "rare"]
    columns = (colours, size.round(4), labels[:, 0], age.round(3), labels[:, 1], labels[:, 2])
    first = 0 if text else 1
    rows = [",".join(map(str, row[first:])) for row in zip(*columns, strict=True)]
    path.write_text("\n".join([",".join(header[first:]), *rows]) + "\n")
    return path


def several_svm(path: Path, n: int, seed: int) -> Path:
    """Write the numbers of `several_csv` as LIBSVM text with lists of labels: a is 5, b is 2, rare is 30."""
    table = several_csv(path.with_suffix(".csv"), n, seed, text=False)
    lines = []
    for size, a, age, b, rare in np.loadtxt(table, delimiter=",", skiprows=1).tolist():
        labels = [name for name, is_one in (("5", a), ("2", b), ("30", rare)) if is_one]
        lines.append(f"{','.join(labels)} 1:{size} 3:{age}")
    path.write_text("\n".join(lines) + "\n")
    return path


def svm(path: Path, n: int, seed: int) -> Path:
    """Write LIBSVM text of two classes; feature 1 occurs in all samples, feature 9 only in few."""
    rng = np.random.default_rng(seed)
    lines = []
    for _ in range(n):
        first = rng.normal(5, 2)
        keys = np.sort(rng.choice(np.arange(2, 9), 3, replace=False))
        more = " 9:1" if rng.random() < 0.05 else ""
        label = 1 if first + keys[0] > 8 else -1
        lines.append(f"{label} 1:{first:.4f} " + " ".join(f"{k}:{0.5 * k:g}" for k in keys) + more)
    path.write_text("\n".join(lines) + "\n")
    return path


JOBS: dict[str, tuple[str, Any, tuple[tuple[str, Any], ...]]] = {
    "softmax": ("softmax", dense_csv, ()),
    "mlp": ("mlp", dense_csv, (("options.hidden", [5]),)),
    "logistic": ("logistic", svm, ()),
    "fm": ("fm", svm, (("options.dim", 3),)),
    "hashed": ("logistic", hashed_csv, (("data.categorical", ["colour"]),)),
    "hashed fm": (
        "fm",
        hashed_csv,
        (
            ("data.categorical", ["colour"]),
            ("options.dim", 3),
            ("tables.factor.init", "normal(0.5)"),
        ),
    ),
    "wide_deep": ("wide_deep", mixed_csv, (("options.hidden", [5]),)),
    "deepfm": ("deepfm", mixed_csv, (("options.hidden", [5]), ("options.init_std", 0.5))),
    "dcnv2": ("dcnv2", mixed_csv, (("options.hidden", [5]), ("options.cross", 1))),
}
ENDING = {dense_csv: "csv", hashed_csv: "csv", mixed_csv: "csv", svm: "svm"}


def make(name: str, folder: Path) -> tuple[Path, dict[str, float]]:
    """Train the job of this name; return its folder, with train, test and checkpoints, and its metrics."""
    task, write, more = JOBS[name]
    files = [
        write(folder / f"{n}.{ENDING[write]}", size, seed)
        for n, size, seed in (("train", 300, 1), ("test", 90, 2))
    ]
    pairs = [
        ("task", task),
        ("data.train", str(files[0])),
        ("data.test", str(files[1])),
        ("train.epochs", 3),
        ("checkpoint.folder", str(folder / "checkpoints")),
        ("checkpoint.every_steps", 5),
        *more,
    ]
    outcome = train(load_config(None, pairs), "none", verbose=False)
    return folder, outcome.value.metrics


def trained_on_text(folder: Path, task: str, text: str, options: dict[str, Any]) -> Path:
    """Train a task that reads its files itself on this text for an epoch; returns the checkpoints' folder."""
    (folder / "train.txt").write_text(text)
    pairs = {
        "task": task,
        "data.train": str(folder / "train.txt"),
        "train.epochs": 1,
        "checkpoint.folder": str(folder / "checkpoints"),
        **options,
    }
    train(load_config(None, list(pairs.items())), "none", verbose=False)
    return folder / "checkpoints"

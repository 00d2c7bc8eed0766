"""The description of the data as text, for the output at start."""

from __future__ import annotations

from collections.abc import Mapping

from mpips.data.info import DataInfo, label_text
from mpips.data.vocabulary import VOCABULARY

_MOST = 10  # classes; more are not listed one by one


def summarise(source: str, info: DataInfo) -> str:
    """Return one line: samples, features, label column and classes of the training data."""
    if info.kind == "own":
        return (
            f"data: {source}: {', '.join([_count(info.n_samples_total, 'sample'), *_sizes(info)])}"
        )
    features = (
        _count(len(info.columns), "column")
        if info.columns
        else _count(info.n_features, f"{info.kind} feature")
    )
    if info.columns and info.kind == "sparse":
        features += " (hashed)"
    return f"data: {source}: {_count(info.n_samples_total, 'sample')}, {features}, {_labels(info)}"


def summarise_test(name: str, source: str, info: DataInfo) -> str:
    """Return one line: samples, label column and classes of data called "test" or "validation"."""
    parts = [
        _count(info.n_samples_total, "sample"),
        *([_labels(info)] if info.kind != "own" else []),
    ]
    return f"{name}: {source}: {', '.join(parts)}"


def summarise_validation(source: str, info: DataInfo) -> str:
    """Return one line: the samples that are held out of the training data."""
    return f"validation: {_count(info.n_samples_total, 'sample')} held out of {source}"


def matching_text(source: str, meant: Mapping[float, float]) -> str:
    """Return one line: which label of the training data each label of the test data means."""
    pairs = ", ".join(
        f"{label_text(label)} as {label_text(there)}" for label, there in meant.items()
    )
    return f"{source}: labels are read as those of the training data: {pairs}"


def _sizes(info: DataInfo) -> list[str]:
    """Return the numbers of names in the vocabularies of a task, such as "2,034 entities"."""
    pairs = zip(info.arrays, info.sizes, strict=True)
    return [
        f"{size:,} {path[len(VOCABULARY) :]}" for path, size in pairs if path.startswith(VOCABULARY)
    ]


def _count(n: int, what: str) -> str:
    return f"{n:,} {what}{'' if n == 1 else 's'}"


def _labels(info: DataInfo) -> str:
    column = f"label column '{info.label_column}'" if info.label_column else "labels"
    if info.wants == "several":
        names = ", ".join(f"'{name}'" for name in info.label_names[:_MOST])
        more = ", ..." if len(info.label_names) > _MOST else ""
        return f"{_count(len(info.label_names), 'label')} of a sample: {names}{more}"
    if info.wants == "targets":
        low, high = info.target_range
        return f"{column}: numbers from {low:g} to {high:g}"
    if info.n_classes > _MOST:
        ends = f", {min(info.counts):,} to {max(info.counts):,} samples each" if info.counts else ""
        return f"{column}: {info.n_classes:,} classes{ends}"
    counts = [f" ({count:,})" for count in info.counts] or [""] * info.n_classes
    each = ", ".join(f"{name}{n}" for name, n in zip(info.class_names, counts, strict=True))
    return f"{column}: {info.n_classes} {'class' if info.n_classes == 1 else 'classes'}: {each}"

"""The description that workers agree on, and its comparison with evaluation data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from reading import dense, sparse, write

from mpips.data import (
    DataInfo,
    SparseData,
    align,
    combine,
    read,
)
from mpips.errors import DataError


def info(**changes: Any) -> DataInfo:
    values = {"n_samples_total": 5, "n_local": 2, "n_features": 4, "labels": (0.0,)}
    return DataInfo(**{**values, "kind": "sparse", **changes})


def test_combine_unites_the_labels() -> None:
    parts = [info(labels=(1.0, 7.0)), info(labels=()), info(labels=(-3.0,), n_local=1)]
    assert combine(parts) == info(n_local=5, labels=(-3.0, 1.0, 7.0))


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"n_samples_total": 6}, "n_samples_total is"),
        ({"n_features": 5}, "n_features is"),
        ({"kind": "dense"}, "kind is"),
        ({"index_base": 1}, "index_base is"),
        ({"n_local": 2}, "workers have 4 of 5 samples"),
    ],
)
def test_combine_refuses_workers_with_different_data(
    changes: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(DataError, match=complaint):
        combine([info(), info(**{"n_local": 3, **changes})])


def test_info_survives_json() -> None:
    import json

    one = info(labels=(-1.0, 2.5))
    assert DataInfo.from_config(json.loads(json.dumps(one.to_config()))) == one


def test_labels_become_classes_in_the_training_datas_order(tmp_path: Path) -> None:
    data = read(write(tmp_path / "a.svm", "7 1:1\n-2 1:1\n1.5 1:1\n")).data
    aligned = align(data, info(n_features=1, labels=(-2.0, 1.5, 3.0, 7.0)))
    assert aligned.labels.tolist() == [3, 0, 1]
    assert aligned.labels.dtype == np.int64


@pytest.mark.parametrize("label", ["9", "-5", "1.25"])
def test_label_that_training_lacks_is_refused(tmp_path: Path, label: str) -> None:
    data = read(write(tmp_path / "a.svm", f"1 1:1\n{label} 1:1\n")).data
    with pytest.raises(DataError, match=f"label {label} does not occur.*labels are 1, 2"):
        align(data, info(labels=(1.0, 2.0)))


def test_features_that_training_lacks_are_dropped(tmp_path: Path) -> None:
    path = write(tmp_path / "a.svm", "0 1:1 9:2\n0 8:3\n0 2:4 9:5 11:6\n")
    data = align(sparse(path), info(n_features=8, labels=(0.0,)))
    assert isinstance(data, SparseData)
    assert data.indptr.tolist() == [0, 1, 2, 3]
    assert data.indices.tolist() == [0, 7, 1]
    assert data.values.tolist() == [1, 3, 4]
    assert data.n_features == 8


def test_other_width_or_kind_than_training_is_refused(tmp_path: Path) -> None:
    data = dense(write(tmp_path / "a.csv", "y,a\n0,1\n"))
    with pytest.raises(DataError, match="1 features, the training data 4"):
        align(data, info(kind="dense"))
    with pytest.raises(DataError, match="training data is sparse"):
        align(data, info())


@pytest.mark.parametrize("training", ["0 0:1\n", "0 1:1\n"])
def test_evaluation_data_counts_features_as_training_does(tmp_path: Path, training: str) -> None:
    train = read(write(tmp_path / "train.svm", training)).info
    test = read(write(tmp_path / "test.svm", "0 3:1\n"), like=train).data
    assert isinstance(test, SparseData)
    assert test.indices.tolist() == [3 - train.index_base]


def test_regression_targets_are_not_taken_for_classes(tmp_path: Path) -> None:
    np.savez(tmp_path / "many.npz", x=np.zeros((70000, 1)), y=np.arange(70000))
    with pytest.raises(DataError, match="70000 distinct labels"):
        read(tmp_path / "many.npz")

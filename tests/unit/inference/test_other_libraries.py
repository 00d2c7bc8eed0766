"""Loaded models and other libraries: SciPy, scikit-learn, PyTorch, Parquet; sanitizers run none of this."""

from __future__ import annotations

import json
import pickle
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from model_rig import make

from mpips import load
from mpips.cli.ckpt import export_it as ckpt_export
from mpips.cli.export import command as export_command
from mpips.cli.predict import command as predict_command
from mpips.data import Moments
from mpips.errors import ConfigError


@pytest.fixture(scope="module")
def softmax(tmp_path_factory: Any) -> Path:
    return make("softmax", tmp_path_factory.mktemp("softmax"))[0]


@pytest.fixture(scope="module")
def logistic(tmp_path_factory: Any) -> Path:
    return make("logistic", tmp_path_factory.mktemp("logistic"))[0]


def test_arrays_and_sparse_matrices_predict_as_libsvm(logistic: Path) -> None:
    sparse = pytest.importorskip("scipy.sparse")
    datasets = pytest.importorskip("sklearn.datasets")
    model = load(logistic / "checkpoints")
    test = logistic / "test.svm"
    expected = model.predict_proba(test)
    x, _ = datasets.load_svmlight_file(str(test))
    for form in (x, x.tocoo(), sparse.csc_matrix(x), x.toarray()):
        assert model.predict_proba(form).tobytes() == expected.tobytes()
    # A feature that the model has not seen has no influence.
    wider = sparse.hstack([x, np.ones((x.shape[0], 5))])
    assert model.predict_proba(wider).tobytes() == expected.tobytes()


def test_parquet_is_read_by_pyarrow(softmax: Path, tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    model, test, out = load(softmax / "checkpoints"), softmax / "test.csv", tmp_path / "a.parquet"
    arguments = [str(softmax / "checkpoints"), "--data", str(test), "--out", str(out)]
    assert CliRunner().invoke(predict_command, arguments).exit_code == 0
    found = parquet.read_table(out).to_pydict()
    assert found.pop("prediction") == model.predict(test).tolist()
    assert list(found) == ["probability_-1", "probability_1", "probability_4"]
    assert list(zip(*found.values(), strict=True)) == [
        *map(tuple, model.predict_proba(test).tolist())
    ]


@pytest.mark.parametrize("name", ["softmax", "mlp"])
def test_a_dense_model_becomes_a_module_of_torch(name: str, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    from mpips.inference import network

    folder, _ = make(name, tmp_path)
    model = load(folder / "checkpoints")
    x = np.loadtxt(folder / "test.csv", delimiter=",", skiprows=1)[:, [0, 1, 2, 4]]
    module = model.to_torch()
    assert not module.training
    with torch.no_grad():
        found = torch.softmax(module(torch.from_numpy(x)), dim=1).numpy()
    assert np.allclose(found, model.predict_proba(x), atol=1e-6, rtol=0)

    result = CliRunner().invoke(
        export_command,
        [str(folder / "checkpoints"), "--format", "torch", "-o", str(tmp_path / "m.pt")],
    )
    assert result.exit_code == 0, result.output
    # Only weights and plain values, which no code has to be run for.
    content = torch.load(tmp_path / "m.pt", weights_only=True)
    assert content["classes"] == [-1, 1, 4]
    assert content["columns"] == ["big", "small", "flat", "wide"]
    other = network.Network(content["widths"], content["state_dict"]["mean"].dtype == torch.float64)
    other.load_state_dict(content["state_dict"])
    with torch.no_grad():
        assert torch.equal(other(torch.from_numpy(x)), module(torch.from_numpy(x)))


def test_npz_holds_what_prediction_needs(logistic: Path, tmp_path: Path) -> None:
    out = tmp_path / "m.npz"
    arguments = [str(logistic / "checkpoints"), "--format", "npz", "-o", str(out)]
    assert CliRunner().invoke(export_command, arguments).exit_code == 0
    assert "already exists; use --force" in str(
        CliRunner().invoke(export_command, arguments).exception
    )
    assert CliRunner().invoke(export_command, [*arguments, "--force"]).exit_code == 0
    model = load(logistic / "checkpoints")
    with np.load(out) as archive:
        # The logits of a sample by hand: scale, weights, bias (key -1).
        moments = Moments.from_arrays({k: archive[k] for k in archive if k.startswith("features/")})
        shift, scale = moments.standardise_present()
        keys, values = archive["tables/weight/keys"], archive["tables/weight/values"][:, 0]
        weights = dict(zip(keys.tolist(), values.tolist(), strict=True))
        datasets = pytest.importorskip("sklearn.datasets")
        x, _ = datasets.load_svmlight_file(str(logistic / "test.svm"))
        row = x.toarray()[0]
        logit = weights[-1] + sum(
            weights.get(j, 0.0) * (row[j] - shift[j]) * scale[j] for j in np.flatnonzero(row)
        )
        assert archive["classes"].tolist() == [-1, 1]
    expected = model.predict_proba(logistic / "test.svm")[0, 1]
    assert 1 / (1 + np.exp(-logit)) == pytest.approx(expected, abs=1e-5)


def exported(folder: Path, kind: str, out: Path) -> Path:
    """Export the newest model of a folder."""
    arguments = [str(folder / "checkpoints"), "--format", kind, "-o", str(out)]
    result = CliRunner().invoke(export_command, arguments)
    assert result.exit_code == 0, result.output
    assert [path.name for path in out.parent.iterdir() if path.name.startswith(".")] == []
    return out


@pytest.mark.parametrize("name", ["softmax", "mlp"])
def test_safetensors_of_a_dense_model_are_its_state_dict(name: str, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    files = pytest.importorskip("safetensors.torch")
    safetensors = pytest.importorskip("safetensors")
    from mpips.inference.network import Network

    folder, _ = make(name, tmp_path)
    model = load(folder / "checkpoints")
    out = exported(folder, "safetensors", tmp_path / "m.safetensors")
    with safetensors.safe_open(out, "pt") as file:
        facts = {key: json.loads(text) for key, text in file.metadata().items()}
    assert (facts["classes"], facts["task"]) == ([-1, 1, 4], name)
    assert facts["columns"] == ["big", "small", "flat", "wide"]
    state = files.load_file(out)
    network = Network(facts["widths"], state["mean"].dtype == torch.float64)
    network.load_state_dict(state)
    x = np.loadtxt(folder / "test.csv", delimiter=",", skiprows=1)[:, [0, 1, 2, 4]]
    with torch.no_grad():
        found = torch.softmax(network(torch.from_numpy(x)), dim=1).numpy()
    assert np.allclose(found, model.predict_proba(x), atol=1e-6, rtol=0)


@pytest.mark.parametrize("name", ["fm", "wide_deep"])
def test_safetensors_of_other_models_are_tables_and_moments(name: str, tmp_path: Path) -> None:
    files = pytest.importorskip("safetensors.numpy")
    folder, _ = make(name, tmp_path)
    model = load(folder / "checkpoints")
    arrays = files.load_file(exported(folder, "safetensors", tmp_path / "m.safetensors"))
    for path, array in model.moments.to_arrays().items():
        assert arrays.pop(path).tobytes() == array.tobytes()
    for table, content in model.tables.items():
        parts = {"": content} if isinstance(content, np.ndarray) else {}
        parts = parts or {"/keys": content[0], "/values": content[1]}
        for ending, array in parts.items():
            found = arrays.pop(f"tables/{table}{ending}")
            assert (found.dtype, found.shape) == (array.dtype, array.shape)
            assert found.tobytes() == array.tobytes()
    assert not arrays


@pytest.mark.parametrize("name", ["mlp", "fm"])
def test_parquet_has_a_file_for_each_table(name: str, tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    folder, _ = make(name, tmp_path)
    model = load(folder / "checkpoints")
    for kind in ("model", "checkpoint"):
        out = tmp_path / kind
        if kind == "model":
            exported(folder, "parquet", out)
        else:
            arguments = [str(folder / "checkpoints"), "--format", "parquet", "--out", str(out)]
            assert CliRunner().invoke(ckpt_export, arguments).exit_code == 0
        assert {path.stem for path in out.glob("*.parquet")} == set(model.tables)
        for table, content in model.tables.items():
            found = parquet.read_table(out / f"{table}.parquet")
            keys, values = content if isinstance(content, tuple) else (None, content)
            rows = values.reshape(len(values), -1)
            first = "row" if keys is None else "key"
            expected = np.arange(len(rows)) if keys is None else keys
            assert found.column(first).to_pylist() == expected.tolist()
            names = [f"value_{j}" for j in range(rows.shape[1])]
            assert found.column_names[: 1 + len(names)] == [first, *names]
            columns = [found.column(name).to_numpy() for name in names]
            assert np.stack(columns, axis=1).tobytes() == rows.tobytes()
            has_state = len(found.column_names) > 1 + len(names)
            assert has_state == (kind == "checkpoint")


def test_a_model_is_a_fitted_estimator(softmax: Path, tmp_path: Path) -> None:
    pytest.importorskip("sklearn")
    from sklearn.base import clone, is_classifier
    from sklearn.inspection import permutation_importance
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import FunctionTransformer
    from sklearn.utils.validation import check_is_fitted

    model = load(softmax / "checkpoints")
    rows = np.loadtxt(softmax / "test.csv", delimiter=",", skiprows=1)
    x, y = rows[:, [0, 1, 2, 4]], rows[:, 3].astype(int)
    estimator = model.to_sklearn()
    check_is_fitted(estimator)
    assert is_classifier(estimator)
    assert estimator.n_features_in_ == 4
    assert estimator.feature_names_in_.tolist() == ["big", "small", "flat", "wide"]
    pipeline = make_pipeline(FunctionTransformer(lambda a: a + 0.0), estimator)
    check_is_fitted(pipeline)
    assert pipeline.predict(x).tolist() == model.predict(x).tolist()
    assert pipeline.predict_proba(x).tobytes() == model.predict_proba(x).tobytes()
    assert pipeline.classes_.tolist() == [-1, 1, 4]
    assert pipeline.fit(x, y).score(x, y) == np.mean(model.predict(x) == y)
    assert clone(estimator) is estimator
    found = permutation_importance(estimator, x, y, n_repeats=2, random_state=0)
    assert found.importances_mean[2] == 0  # the constant column
    copy = pickle.loads(pickle.dumps(estimator))
    assert copy.predict_proba(x).tobytes() == model.predict_proba(x).tobytes()


def test_a_sparse_model_is_an_estimator_too(logistic: Path) -> None:
    datasets = pytest.importorskip("sklearn.datasets")
    x, y = datasets.load_svmlight_file(str(logistic / "test.svm"))
    model = load(logistic / "checkpoints")
    estimator = model.to_sklearn()
    assert estimator.score(x, y) == np.mean(model.predict(x) == y)
    with pytest.raises(AttributeError, match="no named columns"):
        _ = estimator.feature_names_in_


@pytest.mark.parametrize("kind", ["npz", "safetensors", "parquet", "onnx", "torch"])
def test_an_export_that_has_no_room_is_one_sentence_and_leaves_nothing(
    kind: str, tmp_path: Path
) -> None:
    pytest.importorskip({"parquet": "pyarrow", "onnx": "onnx", "torch": "torch"}.get(kind, "numpy"))
    make("softmax", tmp_path)
    (tmp_path / "out").mkdir()
    out = tmp_path / "out" / "model"
    program = (
        "import resource as r, sys; r.setrlimit(r.RLIMIT_FSIZE, (100, 100)); "
        "from mpips.cli import main; sys.argv[1:1] = ['export']; main()"
    )
    arguments = [str(tmp_path / "checkpoints"), "--format", kind, "-o", str(out)]
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == ConfigError.exit_code
    assert re.fullmatch(
        rf"mpips: error: {out}: cannot be written: .*File too large.*\n", done.stderr
    )
    assert not list(out.parent.iterdir())

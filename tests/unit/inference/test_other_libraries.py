"""Loaded models and other libraries: SciPy, scikit-learn, PyTorch, Parquet; sanitizers run none of this."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from model_rig import make

from mpips import load
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


def test_a_sparse_model_becomes_no_module(logistic: Path, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    with pytest.raises(ConfigError, match="'logistic' is no network of dense layers"):
        load(logistic / "checkpoints").to_torch()


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

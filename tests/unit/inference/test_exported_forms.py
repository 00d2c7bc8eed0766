"""Models in other libraries' forms predict alike, whatever form data and labels have, or refuse by name."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import mpips
from mpips.cli.export import command as export_command
from mpips.data import Moments
from mpips.errors import DataError

pandas = pytest.importorskip("pandas")
N = 60
K = np.arange(N) % 6
BEYOND = 2**53


def exported(folder: Path, kind: str) -> Path:
    out = folder.with_name(f"{folder.name}.{kind}")
    arguments = [str(folder), "--format", kind, "-o", str(out)]
    done = CliRunner().invoke(export_command, arguments, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return out


# A way returns the labels that the exported model predicts for numbers, shape (n, d).
Way = Callable[[Path, Any], list[Any]]


def by_network(widths: list[int], state: dict[str, Any], classes: list[Any], x: Any) -> list[Any]:
    import torch

    from mpips.inference.network import Network

    network = Network(widths, state["mean"].dtype == torch.float64)
    network.load_state_dict(state)
    with torch.no_grad():
        places = network(torch.from_numpy(x)).argmax(dim=1).tolist()
    return [classes[place] for place in places]


def by_torch(folder: Path, x: Any) -> list[Any]:
    torch = pytest.importorskip("torch")
    content = torch.load(exported(folder, "torch"), weights_only=True)
    return by_network(content["widths"], content["state_dict"], content["classes"], x)


def by_safetensors(folder: Path, x: Any) -> list[Any]:
    pytest.importorskip("torch")
    files = pytest.importorskip("safetensors.torch")
    path = exported(folder, "safetensors")
    with pytest.importorskip("safetensors").safe_open(path, "pt") as file:
        facts = {key: json.loads(text) for key, text in file.metadata().items()}
    return by_network(facts["widths"], files.load_file(path), facts["classes"], x)


def by_npz(folder: Path, x: Any) -> list[Any]:
    """A softmax by hand."""
    with np.load(exported(folder, "npz")) as arrays:
        moments = Moments.from_arrays({k: arrays[k] for k in arrays if k.startswith("features/")})
        shift, scale = moments.standardise()
        scaled = (x - shift) * scale
        logits = scaled @ arrays["tables/weight"].astype(np.float64) + arrays["tables/bias"]
        found: list[Any] = arrays["classes"][logits.argmax(axis=1)].tolist()
    return found


def by_sklearn(folder: Path, x: Any) -> list[Any]:
    pytest.importorskip("sklearn")
    estimator = pickle.loads(pickle.dumps(mpips.load(folder).to_sklearn()))
    found = estimator.predict(x)
    assert set(found) <= set(estimator.classes_)
    assert estimator.score(x, found) == 1
    return list(found.tolist())


WAYS = {"torch": by_torch, "safetensors": by_safetensors, "npz": by_npz, "sklearn": by_sklearn}


def numbers() -> Any:
    rng = np.random.default_rng(0)
    return np.column_stack([K % 2 + 0.1 * rng.normal(size=N), rng.normal(size=N)])


def case(name: str, folder: Path) -> tuple[Any, Any, dict[str, Any]]:
    """Return numbers, training data and settings."""
    x = numbers()
    if name == "dates as labels":
        return x, (x, 20240101 + K % 2), {}
    if name == "labels beyond 2^53":
        frame = pandas.DataFrame({"a": x[:, 0], "b": x[:, 1], "label": BEYOND + K % 2})
        return x, frame, {"data.label_kind": "text"}
    if name == "numbers of more digits than float32 has":
        x[:, 0] += 1.7e9
        return x, (x, K % 2), {}
    if name == "labels of text":
        return x, (x, np.array(["no", "yes"])[K % 2]), {}
    # The index of a frame is a column of its CSV file, and tells the labels of a sorted file.
    frame = pandas.DataFrame({"a": x[:, 0], "b": x[:, 1], "label": K % 2}).sort_values("label")
    frame.reset_index(drop=True).to_csv(folder / "index.csv")
    return x, str(folder / "index.csv"), {}


CASES = (
    "dates as labels",
    "labels beyond 2^53",
    "numbers of more digits than float32 has",
    "labels of text",
    "the index of pandas",
)


@pytest.fixture(scope="module", params=CASES)
def trained(request: pytest.FixtureRequest, tmp_path_factory: Any) -> tuple[str, Path, Any]:
    folder = tmp_path_factory.mktemp("exported")
    x, data, settings = case(request.param, folder)
    mpips.fit("softmax", data, epochs=8, settings=settings, folder=folder / "m")
    return request.param, folder / "m", x


@pytest.mark.parametrize("way", WAYS)
def test_an_exported_model_predicts_the_labels_of_the_model(
    trained: tuple[str, Path, Any], way: str
) -> None:
    name, folder, x = trained
    expected = mpips.load(folder).predict(x).tolist()
    assert len(set(expected)) == 2
    if name == "labels beyond 2^53":
        assert set(expected) == {str(BEYOND), str(BEYOND + 1)}
    assert WAYS[way](folder, x) == expected


@pytest.mark.parametrize("n_classes", [2, 3])
@pytest.mark.parametrize("way", ["torch", "safetensors"])
def test_logistic_on_numbers_becomes_a_module_with_a_logit_for_each_class(
    tmp_path: Path, n_classes: int, way: str
) -> None:
    torch = pytest.importorskip("torch")
    x = np.column_stack([numbers(), np.eye(n_classes)[K % n_classes]])
    model = mpips.fit("logistic", (x, K % n_classes), epochs=20, folder=tmp_path / "m").model
    assert WAYS[way](tmp_path / "m", x) == model.predict(x).tolist() == (K % n_classes).tolist()
    with torch.no_grad():
        logits = model.to_torch()(torch.from_numpy(x.astype(np.float32)))
    expected = model.predict_proba(x)
    assert np.allclose(torch.softmax(logits, 1).numpy(), expected, rtol=1e-4, atol=1e-6)


def test_rows_of_a_softmax_are_no_dense_layers(tmp_path: Path) -> None:
    (tmp_path / "a.svm").write_text("".join(f"{k % 3} {k % 3 + (1 << 17)}:1\n" for k in K))
    mpips.fit("softmax", str(tmp_path / "a.svm"), epochs=1, folder=tmp_path / "m")
    with np.load(exported(tmp_path / "m", "npz")) as arrays:
        assert arrays["tables/weight/values"].shape == (3, 3)
        assert arrays["tables/bias"].shape == (3,)


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("number", [1e39, -1e39, np.inf, np.nan])
def test_numbers_that_the_model_refuses_are_refused(
    tmp_path: Path, wide: bool, number: float
) -> None:
    x = numbers() + (1.7e9 if wide else 0)
    model = mpips.fit("softmax", (x, K % 2), epochs=1, folder=tmp_path / "m").model
    x[3, 1] = number
    for way in (by_sklearn, by_torch, by_safetensors):
        with pytest.raises((DataError, ValueError), match=r"beyond float32|NaN or infinity"):
            way(tmp_path / "m", x)
    with pytest.raises(DataError):
        model.predict(x)


@pytest.mark.parametrize("base", [0, 1])
@pytest.mark.parametrize("kind", ["npz", "safetensors"])
def test_tables_of_a_sparse_model_say_from_where_features_count(
    tmp_path: Path, base: int, kind: str
) -> None:
    lines = [f"{k % 2} {k + base}:1\n" for k in K]
    (tmp_path / "a.svm").write_text("".join(lines))
    model = mpips.fit("logistic", str(tmp_path / "a.svm"), epochs=8, folder=tmp_path / "m").model
    path = exported(tmp_path / "m", kind)
    if kind == "npz":
        with np.load(path) as arrays:
            found = int(arrays["index_base"])
            keys, values = arrays["tables/weight/keys"], arrays["tables/weight/values"][:, 0]
    else:
        safetensors = pytest.importorskip("safetensors")
        with safetensors.safe_open(path, "np") as file:
            found = json.loads(file.metadata()["index_base"])
            keys = file.get_tensor("tables/weight/keys")
            values = file.get_tensor("tables/weight/values")[:, 0]
    assert found == base
    weights = dict(zip((keys + found).tolist(), values, strict=True))
    # Odd features less the base are of class 1.
    for k in range(6):
        assert (weights[k + base] > 0) == bool(k % 2)
    assert model.predict(str(tmp_path / "a.svm")).tolist() == (K % 2).tolist()


WORDS = ["4", "4.0", "007", "x", "07918", "3,5"]
ALIKE = [4, 4.0, "7", " x ", 7918, "3,5"]


def test_words_in_other_forms_are_the_same_words_for_scikit_learn(tmp_path: Path) -> None:
    pytest.importorskip("sklearn")
    data = pandas.DataFrame({"k": [WORDS[k] for k in K], "n": K * 0.5, "label": K % 2})
    settings = {"data.categorical": ["k"], "options.hidden": [4]}
    model = mpips.fit("wide_deep", data, epochs=1, settings=settings, folder=tmp_path / "m").model
    estimator = model.to_sklearn()
    rows = data.drop(columns="label")
    expected = model.predict_proba(rows).tolist()
    assert estimator.predict_proba(rows).tolist() == expected
    alike = rows.assign(k=[ALIKE[k] for k in K])
    assert estimator.predict_proba(alike).tolist() == expected
    assert list(estimator.feature_names_in_) == ["k", "n"]
    # The columns of a model are what they were in its training, so no option changes them.
    for bad, text in (("1,5", "column 'n' contains '1,5'"), (1e39, "float32, up to 3.4e38")):
        with pytest.raises(DataError, match=text) as refused:
            estimator.predict(rows.assign(n=bad))
        assert "categorical" not in str(refused.value)
    with np.load(exported(tmp_path / "m", "npz")) as arrays:
        assert arrays["columns"].tolist() == ["k", "n"]
        assert "index_base" not in arrays

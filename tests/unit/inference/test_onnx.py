"""Models as graphs of ONNX: onnxruntime predicts what mpips predicts, or the export is refused."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from long_runs import taking_turns
from model_rig import trained_on_text
from onnx_rig import CASES, Case, inputs_by_json, samples_in

import mpips
from mpips.cli.export import command as export_command
from mpips.data.columns import hash_key
from mpips.data.words import TEXTS
from mpips.errors import CapabilityError, ConfigError, DataError, MpipsError
from mpips.inference import graph_model, onnx_writing
from mpips.inference.graph_description import description_of
from mpips.inference.model import Model
from mpips.inference.onnx_inputs import onnx_inputs

pytest.importorskip("h5py")
onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")


def trained(case: Case, folder: Path, **settings: Any) -> Model:
    """Train a model for two epochs."""
    data, own = str(case.file(folder, 120, 1)), {**case.settings, **settings}
    return mpips.fit(case.task, data, epochs=2, settings=own, folder=folder / "m").model


def exported(model: Model, out: Path, *more: str) -> tuple[Any, dict[str, Any], str]:
    """Export with the command; return a session, the description and what the command printed."""
    arguments = [str(model.path), "--format", "onnx", "-o", str(out), *more]
    done = CliRunner().invoke(export_command, arguments, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    facts = json.loads((out.parent / f"{out.name}.json").read_text())
    return session_of(out), facts, done.output


def session_of(source: Any) -> Any:
    """Return a session in which a warning about the graph is an error."""
    return onnxruntime.InferenceSession(source, providers=["CPUExecutionProvider"])


def assert_same(model: Model, path: Path, found: dict[str, Any]) -> None:
    """Compare outputs of a graph by name with what the model predicts for a file."""
    expected = model.predict(path)
    if "value" in found:
        assert np.allclose(found["value"], expected, rtol=1e-5, atol=0)
        assert len(set(expected.tolist())) > 5
        return
    probabilities = model.predict_proba(path)
    # The first of two probabilities is 1 less the second, so that it has the digits of 1.
    assert np.allclose(found["probabilities"], probabilities, rtol=1e-5, atol=2e-7)
    assert len(set(probabilities[:, 0].tolist())) > 5
    assert found["label"].tolist() == expected.tolist()
    assert found["probabilities"].dtype == np.float32


def outputs(session: Any, inputs: dict[str, Any]) -> dict[str, Any]:
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, inputs), strict=True))


@pytest.mark.sampled
@pytest.mark.parametrize("name", taking_turns(list(CASES), 8))
def test_onnxruntime_predicts_what_the_model_predicts(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    model = trained(case, tmp_path)
    session, facts, printed = exported(model, tmp_path / "m.onnx")
    assert "predicts 5 samples of the training data alike" in printed
    # Of an even seed: with words and features that the training data does not have.
    path = case.file(tmp_path, 60, 2)
    samples = samples_in(path)
    inputs = inputs_by_json(facts, samples)
    assert_same(model, path, outputs(session, inputs))
    # The inputs that mpips makes are these, too.
    own = model.onnx_inputs(samples)
    assert list(own) == list(inputs) == [given.name for given in session.get_inputs()]
    for key, array in own.items():
        assert array.dtype == inputs[key].dtype
        assert np.array_equal(array, inputs[key], equal_nan=array.dtype.kind == "f")
    # The description is what the session says, and in the file itself.
    assert json.loads(session.get_modelmeta().custom_metadata_map["mpips"]) == facts
    kinds = {"tensor(float)": "float32", "tensor(double)": "float64"}
    for told, real in (
        (facts["inputs"], session.get_inputs()),
        (facts["outputs"], session.get_outputs()),
    ):
        shapes = {own.name: (kinds.get(own.type, own.type[7:-1]), own.shape) for own in real}
        assert {own["name"]: (own["dtype"], own["shape"]) for own in told} == shapes
    onnx.checker.check_model(onnx.load(tmp_path / "m.onnx"), full_check=True)
    assert outputs(session, {key: array[:0] for key, array in inputs.items()})


def test_refused_numbers_make_the_outputs_of_their_samples_nan(tmp_path: Path) -> None:
    for name, key in (("rows, softmax", "features"), ("words, wide_deep", "numbers")):
        folder = tmp_path / key
        folder.mkdir()
        case = CASES[name]
        model = trained(case, folder)
        inputs = model.onnx_inputs(samples_in(case.file(folder, 6, 2)))
        session = session_of(model.to_onnx().SerializeToString())
        before = outputs(session, inputs)["probabilities"]
        inputs[key][1, 0], inputs[key][2, 0], inputs[key][3, 0] = np.inf, -1e39, 3.4e38
        inputs[key][4, 0] = np.nan
        after = outputs(session, inputs)["probabilities"]
        nan = [False, True, True, False, key == "features", False]
        assert np.isnan(after).all(axis=1).tolist() == nan
        assert np.array_equal(after[[0, 5]], before[[0, 5]])


def test_samples_without_features_have_the_bias_alone(tmp_path: Path) -> None:
    model = trained(CASES["lists, fm"], tmp_path)
    session = session_of(model.to_onnx().SerializeToString())
    padded = outputs(session, model.onnx_inputs([{}, {}]))["probabilities"]
    empty = np.zeros((2, 0))
    none = outputs(session, {"keys": empty.astype(np.int64), "values": empty.astype(np.float32)})
    assert np.array_equal(none["probabilities"], padded)
    nan = {"keys": np.array([[1], [2]]), "values": np.array([[np.nan], [1]], np.float32)}
    assert np.isnan(outputs(session, nan)["probabilities"][:, 0]).tolist() == [True, False]


def test_a_large_model_has_its_arrays_in_a_file_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = Case("fm", CASES["words, fm"].write, CASES["words, fm"].settings)
    model = trained(case, tmp_path)
    out, path = tmp_path / "m.onnx", case.file(tmp_path, 30, 2)
    monkeypatch.setattr(onnx_writing, "MOST_INSIDE", 1000)
    monkeypatch.setattr(onnx_writing, "_LEAST_OUTSIDE", 100)
    session, _, printed = exported(model, out)
    assert f"{out}, {out}.data, {out}.json (onnxruntime" in printed
    assert_same(model, path, outputs(session, model.onnx_inputs(samples_in(path))))
    proto = onnx.load(out, load_external_data=False)
    outside = [own.name for own in proto.graph.initializer if own.data_location]
    assert {"weight", "factor"} <= set(outside)
    assert (tmp_path / "m.onnx.data").stat().st_size > 100
    # A smaller model in its place has no such file.
    monkeypatch.undo()
    exported(model, out, "--force")
    assert sorted(file.name for file in tmp_path.glob("*m.onnx*")) == ["m.onnx", "m.onnx.json"]

    monkeypatch.setattr(onnx_writing, "MOST_BYTES", 1000)
    with pytest.raises(ConfigError, match="a message of ONNX at most 1,000: use mpips export"):
        model.to_onnx()
    monkeypatch.setattr(onnx_writing, "MOST_BYTES", 100)
    with pytest.raises(ConfigError, match=r"the keys of the model have [0-9,]+ bytes \(16 for"):
        exported(model, tmp_path / "other.onnx")
    assert not [*tmp_path.glob("*other*")]


@pytest.mark.parametrize("there", ["m.onnx", "m.onnx.json", "m.onnx.data"])
def test_files_that_exist_stay_unless_forced(logistic: Model, tmp_path: Path, there: str) -> None:
    (tmp_path / there).write_text("mine")
    with pytest.raises(ConfigError, match=rf"{there}: already exists; use --force"):
        exported(logistic, tmp_path / "m.onnx")
    assert [path.name for path in tmp_path.iterdir()] == [there]
    assert (tmp_path / there).read_text() == "mine"
    exported(logistic, tmp_path / "m.onnx", "--force")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m.onnx", "m.onnx.json"]


@pytest.fixture(scope="module")
def logistic(tmp_path_factory: Any) -> Model:
    return trained(CASES["words, logistic"], tmp_path_factory.mktemp("logistic"))


def test_a_graph_that_predicts_differently_is_not_written(
    logistic: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(graph_model, "hash_key", lambda name: 5)
    with pytest.raises(
        MpipsError, match=r"not written: for sample \d, output 0 of the example of .* and mpips 0"
    ):
        exported(logistic, tmp_path / "m.onnx")
    assert not [*tmp_path.iterdir()]


def test_libraries_that_are_missing_are_named(
    logistic: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    arguments = [str(logistic.path), "--format", "onnx", "-o", str(tmp_path / "m.onnx")]
    done = CliRunner().invoke(export_command, arguments, catch_exceptions=False)
    assert "(not checked: pip install onnxruntime)" in done.output
    monkeypatch.setitem(sys.modules, "onnx", None)
    monkeypatch.delitem(sys.modules, "mpips.inference.onnx_graph")
    with pytest.raises(CapabilityError, match=r"needs onnx \(pip install onnx onnxruntime\)"):
        logistic.to_onnx()
    # What makes the inputs needs neither.
    assert logistic.onnx_inputs([])["keys"].shape == (0, 5)


def test_tasks_without_a_graph_say_which_forms_they_have(tmp_path: Path) -> None:
    text = "a b c d\n" * 30
    folder = trained_on_text(tmp_path, "word2vec", text, {"options.min_count": 1})
    for way in (Model.to_onnx, lambda model: model.onnx_inputs([])):
        with pytest.raises(
            ConfigError, match=r"task 'word2vec' has no graph for .* parquet, torch, word2vec"
        ):
            way(mpips.load(folder))


def test_initial_values_of_unknown_words_are_refused(tmp_path: Path) -> None:
    case = CASES["words, logistic"]
    model = trained(case, tmp_path, **{"tables.weight.init": "normal(0.1)"})
    with pytest.raises(ConfigError, match=r"table 'weight' has the initial values normal\(0.1\)"):
        model.to_onnx()


def test_a_task_of_a_user_has_no_graph(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = "from mpips.tasks.softmax import Softmax\nclass Mine(Softmax):\n    name = 'mine'\n"
    (tmp_path / "onnx_mine.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    case = CASES["rows, softmax"]._replace(task="onnx_mine:Mine")
    with pytest.raises(ConfigError, match="task 'onnx_mine:Mine' has no graph for ONNX"):
        trained(case, tmp_path).to_onnx()


def test_samples_that_do_not_fit_are_refused(logistic: Model, tmp_path: Path) -> None:
    good = samples_in(CASES["words, logistic"].file(tmp_path, 2, 1))
    for changes, text in (
        ({"size": "x"}, "row 1: column 'size' contains 'x': must be a number of float32"),
        ({"size": 1e39}, "row 1: column 'size' contains 1e\\+39: must be a number of float32"),
        ({"price": "1,2,3"}, "contains '1,2,3': must be in the notation decimal_comma"),
        ({"when": "yesterday"}, "contains 'yesterday': must be in the notation time_dmy"),
    ):
        with pytest.raises(DataError, match=text):
            logistic.onnx_inputs([good[0], {**good[1], **changes}])
    with pytest.raises(DataError, match="row 1: lacks column 'size'"):
        logistic.onnx_inputs([good[0], {k: v for k, v in good[1].items() if k != "size"}])
    with pytest.raises(DataError, match="must be mappings from the names of the columns to cells"):
        logistic.onnx_inputs(np.zeros((2, 3)))


def test_numbers_of_programs_are_cells_like_texts(logistic: Model, tmp_path: Path) -> None:
    texts = samples_in(CASES["words, logistic"].file(tmp_path, 1, 1))[0]
    texts |= {"id": "7", "size": "2.5", "price": "1.234,5", "age": "", "when": ""}
    values = {**texts, "id": 7.0, "size": 2.5, "price": 1234.5, "age": float("nan"), "when": None}
    found, expected = logistic.onnx_inputs([values]), logistic.onnx_inputs([texts])
    for key, array in expected.items():
        assert np.array_equal(found[key], array, equal_nan=key == "numbers")
    assert found["numbers"][0, 1] == 1234.5
    # A number that means an empty cell does so as a number.
    missing = logistic.onnx_inputs([{**values, "age": -999}, {**values, "age": "-999.0"}])[
        "numbers"
    ]
    assert np.isnan(missing[:, 2]).all()
    assert np.array_equal(missing[0], found["numbers"][0], equal_nan=True)


def test_frames_are_samples_with_their_missing_values(logistic: Model, tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    texts = samples_in(CASES["words, logistic"].file(tmp_path, 3, 1))
    for row in texts:
        row |= {"id": "7", "age": "", "size": "1.5"}
    frame = pandas.DataFrame(texts).astype({"age": object})
    frame["id"], frame["size"] = 7, pandas.array([1.5, 1.5, None])
    frame["age"], texts[2]["size"] = pandas.NA, ""
    found, expected = logistic.onnx_inputs(frame), logistic.onnx_inputs(texts)
    for key, array in expected.items():
        assert np.array_equal(found[key], array, equal_nan=key == "numbers")


def test_words_of_earlier_versions_are_texts(logistic: Model) -> None:
    facts = description_of(logistic, "onnx")
    facts["words"]["rule"] = TEXTS
    row = {column["column"]: "" for column in facts["columns"]}
    found = onnx_inputs(facts, [{**row, "colour": "007", "id": " NA "}, row])["keys"]
    assert found[:, :2].tolist() == [[hash_key("colour", "007"), hash_key("id", "NA")], [-1, -1]]
    facts["format_version"] = 2
    with pytest.raises(
        DataError, match="version 2: must be 'mpips onnx' or 'mpips torch', version 1"
    ):
        onnx_inputs(facts, [row])


def test_a_runtime_that_cannot_run_the_graph_is_named(
    logistic: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mpips.inference import onnx_graph

    monkeypatch.setattr(onnx_graph, "ML_OPSET", 900)
    with pytest.raises(MpipsError, match=r"m.onnx is not written: onnxruntime .* cannot run it"):
        exported(logistic, tmp_path / "m.onnx")
    assert not [*tmp_path.iterdir()]


def test_arrays_and_sparse_matrices_are_samples(tmp_path: Path) -> None:
    sparse = pytest.importorskip("scipy.sparse")
    for name, key in (("lists, logistic", "keys"), ("rows of LIBSVM, softmax", "features")):
        folder = tmp_path / key
        folder.mkdir()
        case = CASES[name]
        model = trained(case, folder)
        samples = samples_in(case.file(folder, 20, 1))
        x = np.zeros((20, 12))
        for i, sample in enumerate(samples):
            for number, value in sample.items():
                x[i, number - 1] = value
        session = session_of(model.to_onnx().SerializeToString())
        expected = model.predict_proba(x)
        forms = [sparse.csr_matrix(x), samples, *([x] if key == "features" else [])]
        for form in forms:
            found = outputs(session, model.onnx_inputs(form))["probabilities"]
            assert np.allclose(found, expected, rtol=1e-5, atol=2e-7)
    with pytest.raises(DataError, match=r"samples of shape \(2, 3\): must be \(n, 12\)"):
        model.onnx_inputs(np.zeros((2, 3)))
    with pytest.raises(DataError, match="row 0: contains nan: must be a finite number of float32"):
        model.onnx_inputs(np.full((1, 12), np.nan))

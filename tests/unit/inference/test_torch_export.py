"""Models as modules of PyTorch: torch alone predicts what mpips predicts, or the export is refused."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from click.testing import CliRunner
from long_runs import taking_turns
from model_rig import make, trained_on_text
from onnx_rig import CASES, Case, inputs_by_json, samples_in

import mpips
from mpips.cli.export import command as export_command
from mpips.errors import CapabilityError, ConfigError, MpipsError
from mpips.inference import graph_model
from mpips.inference.graph import Graph
from mpips.inference.model import Model
from mpips.inference.onnx_inputs import onnx_inputs
from mpips.inference.torch_source import TorchModule
from mpips.inference.torch_writing import _run as run

pytest.importorskip("h5py")
torch = pytest.importorskip("torch")


def trained(case: Case, folder: Path, **settings: Any) -> Model:
    """Train a model for two epochs."""
    data, own = str(case.file(folder, 120, 1)), {**case.settings, **settings}
    return mpips.fit(case.task, data, epochs=2, settings=own, folder=folder / "m").model


def exported(model: Model, out: Path, *more: str) -> tuple[Any, dict[str, Any], str]:
    """Export with the command; return what the source defines, the file and what the command printed."""
    arguments = [str(model.path), "--format", "torch", "-o", str(out), *more]
    done = CliRunner().invoke(export_command, arguments, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    content = torch.load(out, weights_only=True)
    source = out.with_suffix(".py")
    defined = run(source.read_text(), str(source)) if source.exists() else None
    return defined, content, done.output


def tensors(inputs: dict[str, Any]) -> dict[str, Any]:
    return {name: torch.from_numpy(array) for name, array in inputs.items()}


def assert_same(model: Model, path: Path, module: Any, inputs: dict[str, Any]) -> None:
    """Compare a module with what the model predicts for a file."""
    with torch.no_grad():
        found = module(**tensors(inputs))
        if model.info.wants == "targets":
            expected = model.predict(path)
            assert np.allclose(found[:, 0].numpy(), expected, rtol=1e-5, atol=0)
            assert len(set(expected.tolist())) > 5
            return
        probabilities = module.probabilities(**tensors(inputs)).numpy()
    expected = model.predict_proba(path)
    # The first of two probabilities is 1 less the second, so that it has the digits of 1.
    assert np.allclose(probabilities, expected, rtol=1e-5, atol=2e-7)
    assert len(set(expected[:, 0].tolist())) > 5
    wide = found.double()
    own = wide.sigmoid() if model.info.wants == "several" else wide.softmax(1)
    assert np.array_equal(own.float().numpy(), probabilities)


@pytest.mark.sampled
@pytest.mark.parametrize("name", taking_turns(list(CASES), 8))
def test_a_module_predicts_what_the_model_predicts(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    model = trained(case, tmp_path)
    out = tmp_path / "m.pt"
    defined, content, printed = exported(model, out)
    assert f"{out}, {out}.json, {tmp_path / 'm.py'} (torch {torch.__version__}" in printed
    assert "predicts 5 samples of the training data alike" in printed
    facts = json.loads((tmp_path / "m.pt.json").read_text())
    assert content["description"] == facts
    assert content["classes"] == model.classes.tolist()
    # Of an even seed: with words and features that the training data does not have.
    path = case.file(tmp_path, 60, 2)
    inputs = inputs_by_json(facts, samples_in(path))
    module = defined.load()
    assert not module.training
    assert_same(model, path, module, inputs)
    # What the description says of the outputs is true.
    for own in facts["outputs"]:
        with torch.no_grad():
            result = getattr(module, own["name"])(**tensors(inputs))
        assert str(result.dtype) == f"torch.{own['dtype']}"
        assert [len(inputs[facts["inputs"][0]["name"]]), *own["shape"][1:]] == [*result.shape]
    # mpips makes these inputs from the description, and a module from the model.
    assert onnx_inputs(facts, samples_in(path)).keys() == inputs.keys()
    own = model.to_torch()
    if type(own).__name__ == "Model":
        assert_same(model, path, own, inputs)
    # Trained arrays are parameters: all of them get gradients, and the row of unknown words none.
    module(**tensors(inputs)).sum().backward()
    gradients = {name: own.grad for name, own in module.named_parameters()}
    assert gradients
    assert all(own is not None for own in gradients.values())
    for name, own in gradients.items():
        if isinstance(module.get_submodule(name.rpartition(".")[0]), torch.nn.Embedding):
            assert not own[-1].any()
    # No samples, no outputs.
    assert len(module(**tensors({key: array[:0] for key, array in inputs.items()}))) == 0


@pytest.fixture(scope="module")
def logistic(tmp_path_factory: Any) -> Model:
    return trained(CASES["words, logistic"], tmp_path_factory.mktemp("logistic"))


def test_refused_numbers_and_types(logistic: Model, tmp_path: Path) -> None:
    inputs = logistic.onnx_inputs(samples_in(CASES["words, logistic"].file(tmp_path, 5, 2)))
    module = logistic.to_torch()
    before = module(**tensors(inputs))
    inputs["numbers"][1, 0], inputs["numbers"][2, 0], inputs["numbers"][3, 0] = (
        np.inf,
        -1e39,
        3.4e38,
    )
    after = module(**tensors(inputs))
    assert after[:, 1].isnan().tolist() == [False, True, True, False, False]
    assert torch.equal(after[[0, 4]], before[[0, 4]])
    given = tensors(inputs)
    with pytest.raises(TypeError, match=r"numbers are torch\.float32: must be torch\.float64"):
        module(given["keys"], given["numbers"].float())
    with pytest.raises(TypeError, match=r"keys are torch\.float32: must be torch\.int64"):
        module(given["keys"].float(), given["numbers"])


def test_weights_that_are_trained_on_stay_consistent(tmp_path: Path) -> None:
    # Sums of squares and those of absent features follow the weights.
    for name in ("lists, fm", "words, fm"):
        folder = tmp_path / name[:5]
        folder.mkdir()
        model = trained(CASES[name], folder)
        module = model.to_torch()
        inputs = tensors(model.onnx_inputs(samples_in(CASES[name].file(folder, 6, 1))))
        with torch.no_grad():
            bias = module.bias.item()
            for own in module.parameters():
                own.mul_(2)
            linear = module(**inputs)[:, 1]
            module.factor.weight.zero_()
            if hasattr(module, "factor_of_numbers"):
                module.factor_of_numbers.zero_()
            pairs = linear - module(**inputs)[:, 1]
            first = model.to_torch()(**inputs)[:, 1]
            module.weight.weight.zero_()
            if hasattr(module, "weight_of_numbers"):
                module.weight_of_numbers.zero_()
            assert torch.allclose(module(**inputs)[:, 1], torch.full((6,), 2 * bias))
        # Pairs have two factors, the linear part one.
        expected = (linear - pairs) / 2 + pairs / 4
        assert torch.allclose(expected, first, rtol=1e-4, atol=1e-5)
        assert pairs.abs().max() > 1e-4


def test_files_that_exist_stay_unless_forced(logistic: Model, tmp_path: Path) -> None:
    for there in ("m.pt", "m.pt.json", "m.py"):
        (tmp_path / there).write_text("mine")
        with pytest.raises(ConfigError, match=rf"{there}: already exists; use --force"):
            exported(logistic, tmp_path / "m.pt")
        assert [path.name for path in tmp_path.iterdir()] == [there]
        (tmp_path / there).unlink()
    (tmp_path / "m.py").write_text("mine")
    exported(logistic, tmp_path / "m.pt", "--force")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m.pt", "m.pt.json", "m.py"]
    with pytest.raises(ConfigError, match=r"m\.py: ends with \.py, as the module beside it"):
        exported(logistic, tmp_path / "m.py", "--force")


def test_a_module_that_predicts_differently_is_not_written(
    logistic: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(graph_model, "hash_key", lambda name: 5)
    with pytest.raises(MpipsError, match=r"not written: for sample \d, output \d of the example"):
        exported(logistic, tmp_path / "m.pt")
    assert not [*tmp_path.iterdir()]


def test_torch_that_is_missing_is_named(
    logistic: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(CapabilityError, match=r"needs PyTorch \(pip install torch\)"):
        exported(logistic, tmp_path / "m.pt")


@pytest.mark.parametrize("name", ["mf", "kge", "word2vec"])
def test_other_tasks_are_tables_as_tensors(name: str, tmp_path: Path) -> None:
    texts: dict[str, tuple[str, dict[str, Any]]] = {
        "mf": ("u1,a,3\nu2,b,1\nu1,b,2\n" * 20, {}),
        "kge": ("x\tr\ty\ny\tr\tz\nz\ts\tx\n" * 20, {}),
        "word2vec": ("a b c d\n" * 30, {"options.min_count": 1}),
    }
    text, settings = texts[name]
    model = mpips.load(trained_on_text(tmp_path, name, text, settings))
    module, content, printed = exported(model, tmp_path / "m.pt")
    assert module is None
    assert str(tmp_path / "m.pt") in printed
    for table, values in model.tables.items():
        own = content["tables"][table]
        if isinstance(values, np.ndarray):
            assert own.numpy().tobytes() == values.tobytes()
        else:
            assert np.array_equal(own["keys"].numpy(), values[0])
            assert own["rows"].numpy().tobytes() == values[1].tobytes()
    expected = {
        "mf": {"users": ["u1", "u2"], "items": ["a", "b"]},
        "kge": {"entities": ["x", "y", "z"], "relations": ["r", "s"]},
        "word2vec": {"words": ["a", "b", "c", "d"]},
    }
    found = {key: sorted(names) for key, names in content["vocabularies"].items()}
    assert found == expected[name]
    for path, array in model.arrays.items():
        if path.startswith("vocabulary/"):
            continue
        assert np.array_equal(content["arrays"][path].numpy(), array)
    with pytest.raises(ConfigError, match="has no graph for ONNX or PyTorch"):
        model.to_torch()


@pytest.mark.long
def test_torch_without_mpips_loads_and_exports_the_module(tmp_path: Path) -> None:
    model = trained(CASES["words, deepfm"], tmp_path)
    exported(model, tmp_path / "m.pt")
    inputs = model.onnx_inputs(samples_in(CASES["words, deepfm"].file(tmp_path, 20, 2)))
    np.savez(tmp_path / "inputs.npz", **inputs)
    program = (
        "import sys, numpy as np, torch, m; assert 'mpips' not in sys.modules\n"
        "given = {k: torch.from_numpy(v) for k, v in np.load('inputs.npz').items()}\n"
        "model = m.load(); n = torch.export.Dim('n')\n"
        "shapes = {k: {0: n} for k in given}\n"
        "made = torch.export.export(model, (), given, dynamic_shapes=shapes).module()\n"
        "few = {k: v[:7] for k, v in given.items()}\n"
        "assert torch.equal(made(**few), model(**few))\n"
        "np.save('found.npy', model.probabilities(**given).detach().numpy())\n"
    )
    subprocess.run([sys.executable, "-c", program], cwd=tmp_path, check=True, timeout=300)
    path = CASES["words, deepfm"].file(tmp_path, 20, 2)
    found = np.load(tmp_path / "found.npy")
    assert np.allclose(found, model.predict_proba(path), rtol=1e-5, atol=2e-7)


def test_a_module_of_the_model_takes_logarithms_and_fills_empty_cells(tmp_path: Path) -> None:
    case = CASES["rows, empty cells, logarithms"]
    model = trained(case, tmp_path)
    path = case.file(tmp_path, 20, 2)
    assert_same(model, path, model.to_torch(), model.onnx_inputs(samples_in(path)))


def test_a_dense_model_is_the_state_dict_of_network(tmp_path: Path) -> None:
    from mpips.inference.network import Network

    folder, _ = make("mlp", tmp_path)
    model = mpips.load(folder / "checkpoints")
    defined, content, _ = exported(model, tmp_path / "m.pt")
    network = Network(content["widths"], content["state_dict"]["mean"].dtype == torch.float64)
    network.load_state_dict(content["state_dict"])
    x = torch.from_numpy(
        np.loadtxt(folder / "test.csv", delimiter=",", skiprows=1)[:, [0, 1, 2, 4]]
    )
    with torch.no_grad():
        assert torch.equal(network(x), defined.load()(x))


def test_texts_of_a_checkpoint_bring_no_statements_into_the_source() -> None:
    graph = Graph()
    x = graph.input("x", np.float32, ["n", 1])
    out = graph.add("Mul", x, graph.weight(np.ones((1,), np.float32), "w"))
    hostile = 'a"""\nraise SystemExit(3)\n\\'
    own = {"name": "x", "dtype": "float32", "shape": ["n", 1], "meaning": hostile}
    facts = {
        "task": hostile,
        "step": 1,
        "mpips": hostile,
        "inputs": [own],
        "outputs": [own],
        "labels": ["a"],
    }
    source = TorchModule(graph, out, 1.0, 0.0).source(facts, hostile)
    run(source, "hostile.py")
    statements = [type(node).__name__ for node in ast.parse(source).body]
    assert statements == [
        "Expr",
        "ImportFrom",
        "ImportFrom",
        "Import",
        "ImportFrom",
        "ClassDef",
        "FunctionDef",
    ]


@pytest.mark.parametrize("name", ["w; import os", "class", "a.b", ""])
def test_a_name_that_is_no_identifier_is_refused(name: str) -> None:
    graph = Graph()
    x = graph.input("x", np.float32, ["n", 1])
    out = graph.add("Mul", x, graph.weight(np.ones((2,), np.float32), "w"))
    graph.arrays[name] = graph.arrays.pop("w")
    graph.nodes[0] = msgspec.structs.replace(graph.nodes[0], inputs=(x, name))
    with pytest.raises(ConfigError, match="cannot be a name in a module of PyTorch"):
        TorchModule(graph, out, 1.0, 0.0)

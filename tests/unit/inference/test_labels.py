"""Numbers and several classes of tasks on tables: the training, and all that stands alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from model_rig import labelled_csv

import mpips
from mpips.cli.evaluate import command as evaluate_command
from mpips.cli.export import command as export_command
from mpips.cli.init import command as init_command
from mpips.cli.predict import command as predict_command
from mpips.config.schema import load_config
from mpips.errors import ConfigError, DataError
from mpips.inference.model import Model
from mpips.training.train import rehearse, train

pytest.importorskip("h5py")

TASKS = ("wide_deep", "deepfm", "dcnv2", "mlp")
MEANINGS = ("targets", "classes")


class Trained:
    """A model of a generated table, with its metrics and files."""

    def __init__(self, folder: Path, task: str, labels: str) -> None:
        self.labels = labels
        self.test = labelled_csv(folder / "test.csv", 300, 2, labels, task != "mlp")
        train_file = labelled_csv(folder / "train.csv", 1200, 1, labels, task != "mlp")
        pairs = [
            ("task", task),
            ("data.train", str(train_file)),
            ("data.test", str(self.test)),
            ("train.epochs", 6),
            ("options.hidden", [16]),
            ("options.labels", labels),
            ("checkpoint.folder", str(folder / "checkpoints")),
        ]
        self.metrics: dict[str, float] = train(
            load_config(None, pairs), "none", False
        ).value.metrics
        self.path = folder / "checkpoints"
        self.model: Model = mpips.load(self.path)
        self.y = np.array([row.rsplit(",", 1)[1] for row in self.test.read_text().splitlines()[1:]])


@pytest.fixture(scope="module", params=[(t, m) for t in TASKS for m in MEANINGS], ids=str)
def trained(request: pytest.FixtureRequest, tmp_path_factory: Any) -> Trained:
    return Trained(tmp_path_factory.mktemp("labels"), *request.param)


def test_the_metrics_are_those_of_the_predictions(trained: Trained) -> None:
    found = trained.model.evaluate(trained.test)
    assert found == {name: v for name, v in trained.metrics.items() if name != "loss"}
    predicted = trained.model.predict(trained.test)
    if trained.labels == "targets":
        y = trained.y.astype(float)
        assert list(found) == ["rmse", "r2", "mae"]
        error = predicted.astype(np.float64) - y
        assert found["rmse"] == pytest.approx(np.sqrt(np.mean(error**2)))
        assert found["mae"] == pytest.approx(np.mean(np.abs(error)))
        assert found["r2"] == pytest.approx(1 - np.mean(error**2) / y.var())
        with pytest.raises(ConfigError, match="predicts numbers, which have no probabilities"):
            trained.model.predict_proba(trained.test)
        return
    assert list(found) == ["accuracy", "cross_entropy"]
    assert trained.model.classes.tolist() == ["high", "low", "middle"]
    assert found["accuracy"] == pytest.approx(np.mean(predicted == trained.y))
    p = trained.model.predict_proba(trained.test)
    assert p.shape == (300, 3)
    true = p[np.arange(300), np.searchsorted(trained.model.classes, trained.y)]
    assert found["cross_entropy"] == pytest.approx(-np.log(true).mean(), rel=1e-5)


def test_the_known_model_is_learned(trained: Trained) -> None:
    """The noise of the targets is 30, their deviation about 690; the classes have no noise."""
    if trained.labels == "targets":
        assert trained.metrics["rmse"] < 90
    else:
        assert trained.metrics["accuracy"] > 0.93


def test_a_file_of_predictions_and_the_command_line(trained: Trained, tmp_path: Path) -> None:
    out = tmp_path / "out.csv"
    arguments = [str(trained.path), "--data", str(trained.test), "--out", str(out)]
    assert CliRunner().invoke(predict_command, arguments).exit_code == 0
    header, *lines = out.read_text().splitlines()
    predicted = trained.model.predict(trained.test)
    if trained.labels == "targets":
        assert header == "prediction"
        assert np.array(lines, np.float32).tobytes() == predicted.tobytes()
    else:
        assert header == "prediction,probability_high,probability_low,probability_middle"
        assert [line.split(",")[0] for line in lines] == predicted.tolist()
    arguments = [str(trained.path), "--data", str(trained.test), "--json"]
    result = CliRunner().invoke(evaluate_command, arguments)
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    assert {name: report[name] for name in trained.model.evaluate(trained.test)} == (
        trained.model.evaluate(trained.test)
    )


def test_the_example_of_the_checkpoint_and_an_export(trained: Trained, tmp_path: Path) -> None:
    stored = np.array(trained.model.manifest.example["predictions"])
    assert stored.shape == (5, 1 if trained.labels == "targets" else 3)
    out = tmp_path / "m.npz"
    arguments = [str(trained.path), "--format", "npz", "-o", str(out)]
    result = CliRunner().invoke(export_command, arguments)
    assert result.exit_code == 0, result.output
    with np.load(out) as archive:
        assert ("targets/mean" in archive) == (trained.labels == "targets")
        if trained.labels == "targets":
            assert abs(archive["targets/mean"][0] - 5350) < 100


def test_an_estimator_of_scikit_learn(trained: Trained) -> None:
    pytest.importorskip("sklearn")
    pandas = pytest.importorskip("pandas")
    frame = pandas.read_csv(trained.test)
    found = trained.model.to_sklearn()
    score = found.score(frame.drop(columns="y"), frame["y"])
    name = "r2" if trained.labels == "targets" else "accuracy"
    assert score == pytest.approx(trained.metrics[name], abs=1e-6)


def test_a_network_of_torch_returns_the_numbers_themselves(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    trained = Trained(tmp_path, "mlp", "targets")
    x = np.loadtxt(trained.test, delimiter=",", skiprows=1)[:, :2]
    with torch.no_grad():
        found = trained.model.to_torch()(torch.from_numpy(x)).numpy()
    assert np.allclose(found[:, 0], trained.model.predict(x), rtol=1e-5)


@pytest.mark.parametrize("task", ["wide_deep", "mlp"])
def test_the_unit_of_the_targets_changes_nothing(task: str, tmp_path: Path) -> None:
    """The same targets in other units, with other zeros: the same model, so the defaults suit both."""
    pandas = pytest.importorskip("pandas")
    columns = ["colour", "size", "age", "y"] if task == "wide_deep" else ["size", "age", "y"]
    frame = pandas.read_csv(labelled_csv(tmp_path / "a.csv", 400, 1))[columns]
    found = []
    for factor, shift in ((1.0, 0.0), (1e-6, 0.0), (1e4, -3e7)):
        own = frame.assign(y=frame.y * factor + shift)
        model = mpips.fit(task, own, epochs=2, labels="targets", hidden=[8]).model
        x = own.drop(columns="y")
        x = x if task == "wide_deep" else x.to_numpy()
        found.append((model.predict(x).astype(float) - shift) / factor)
    assert np.allclose(found[0], found[1], rtol=1e-4)
    assert np.allclose(found[0], found[2], rtol=1e-4)


@pytest.mark.parametrize(
    ("text", "labels", "complaint"),
    [
        ("c,a,y\nr,1,2.5\nb,2,2.5\n", "targets", r"task 'wide_deep': all targets are 2\.5"),
        ("c,a,y\nr,1,2.5\nb,2,nan\n", "targets", r"a\.csv:3: .*'nan'"),
        ("c,a,y\nr,1,2.5\nb,2,old\n", "targets", r"a\.csv:3: .*'old'"),
        ("c,a,y\nr,1,2.5\nb,2,\n", "targets", r"a\.csv:3: "),
        ("c,a,y\nr,1,2\nb,2,old\n", "classes", r"a\.csv:3: .*'old'"),
        ("c,a,y\nr,1,old\nb,2,3\n", "classes", r"a\.csv:3: .*'3'"),
        ("c,a,y\nr,1,old\nb,2,old\n", "classes", "needs two classes or more, the data has 1"),
        ("c,a,z\nr,1,2.5\nb,2,3.5\n", "targets", "no column is named 'label'"),
    ],
)
def test_labels_that_cannot_be_learned_are_named(
    text: str, labels: str, complaint: str, tmp_path: Path
) -> None:
    (tmp_path / "a.csv").write_text(text)
    pairs = [
        ("task", "wide_deep"),
        ("data.train", str(tmp_path / "a.csv")),
        ("options.labels", labels),
    ]
    with pytest.raises(DataError, match=complaint):
        rehearse(load_config(None, pairs))


def test_classes_and_their_weights_are_none_of_numbers(tmp_path: Path) -> None:
    file = labelled_csv(tmp_path / "a.csv", 20, 1)
    pairs: list[tuple[str, Any]] = [("task", "wide_deep"), ("data.train", str(file))]
    more = [("options.labels", "targets"), ("data.class_weight", "balanced")]
    with pytest.raises(ConfigError, match=r"data\.class_weight: task 'wide_deep' predicts numbers"):
        rehearse(load_config(None, [*pairs, *more]))
    with pytest.raises(ConfigError, match=r"options.labels = 'numbers': must be .*targets"):
        rehearse(load_config(None, [*pairs, ("options.labels", "numbers")]))
    with pytest.raises(ConfigError, match=r"unknown key 'options\.labels'"):
        rehearse(load_config(None, [("task", "logistic"), *pairs[1:], more[0]]))


def test_weights_of_samples_weigh_squared_errors(tmp_path: Path) -> None:
    """Samples of weight 0 are of another model, which is not learned."""
    pandas = pytest.importorskip("pandas")
    frame = pandas.read_csv(labelled_csv(tmp_path / "a.csv", 1500, 1))
    wrong = np.arange(len(frame)) % 3 == 0
    frame["w"] = np.where(wrong, 0.0, 1.0)
    frame.loc[wrong, "y"] = 9000.0
    settings = {"data.weight": "w"}
    found = mpips.fit(
        "wide_deep", frame, epochs=6, labels="targets", settings=settings, hidden=[16]
    )
    clean = labelled_csv(tmp_path / "b.csv", 300, 2)
    assert found.model.evaluate(clean)["rmse"] < 150


@pytest.mark.parametrize(
    ("labels", "text", "task"),
    [("targets", True, "wide_deep"), ("targets", False, "mlp"), ("classes", True, "wide_deep")],
)
def test_init_drafts_a_job_for_such_labels(
    labels: str, text: bool, task: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    labelled_csv(Path("a.csv"), 200, 1, labels, text)
    result = CliRunner().invoke(init_command, ["a.csv"])
    assert result.exit_code == 0, result.output
    assert ("numbers to be predicted" in result.output) == (labels == "targets")
    config = load_config("job.toml", [("train.epochs", 1)])
    assert config.task == task
    assert config.options.get("labels", "classes") == labels
    metrics = train(config, "none", verbose=False).value.metrics
    assert "loss" in metrics


def test_a_restart_goes_on_with_the_same_scale(tmp_path: Path) -> None:
    """The same bits as a run that was not interrupted; the checkpoint has the moments of the targets."""
    labelled_csv(tmp_path / "a.csv", 200, 1)

    def run(epochs: int, folder: str, labels: str = "targets") -> Any:
        pairs = [
            ("task", "deepfm"),
            ("data.train", str(tmp_path / "a.csv")),
            ("data.test", str(tmp_path / "a.csv")),
            ("train.epochs", epochs),
            ("options.labels", labels),
            ("options.hidden", [8]),
            ("checkpoint.folder", str(tmp_path / folder)),
        ]
        return train(load_config(None, pairs), "none", verbose=False).value.metrics

    run(2, "twice")
    assert run(4, "twice") == run(4, "once")
    labelled_csv(tmp_path / "a.csv", 200, 1, "classes")
    with pytest.raises(
        ConfigError, match=r"was trained on numbers \(targets\), the training data now"
    ):
        run(6, "once", "classes")


def test_windows_have_the_moments_of_the_whole(tmp_path: Path) -> None:
    """Data that is read in windows gives the same scale of targets as data in memory."""
    file = labelled_csv(tmp_path / "a.csv", 3000, 1)

    def model(folder: str, *more: tuple[str, Any]) -> Model:
        pairs = [
            ("task", "wide_deep"),
            ("data.train", str(file)),
            ("train.epochs", 1),
            ("options.labels", "targets"),
            ("checkpoint.folder", str(tmp_path / folder)),
            *more,
        ]
        train(load_config(None, pairs), "none", verbose=False)
        return mpips.load(tmp_path / folder)

    whole = model("whole").moments.targets
    windows = model("windows", ("data.memory_mib", 0.02)).moments.targets
    assert whole is not None
    assert windows is not None
    assert (whole.count, windows.count) == (3000, 3000)
    assert np.allclose(whole.standardise(), windows.standardise(), rtol=1e-12)

"""What a user gets from the command line with the defaults, on data that was not trained on."""

import functools
import itertools
import json
import os
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest
from click_logs import click_lines, write_clicks
from launcher import launch
from model_rig import labelled_csv, several_csv, several_svm

import mpips

REPOSITORY = Path(__file__).resolve().parents[2]
DATA = Path(os.environ.get("MPIPS_TEST_DATA", REPOSITORY.parent / "shared" / "data"))
needs_data = pytest.mark.skipif(
    not (DATA / "w6a.train.svm").is_file(), reason=f"the data sets are missing from {DATA}"
)
# 1 worker: 3 ranks, 3 workers: 5 ranks; one server each.
RANKS = {1: 3, 3: 5}


@functools.cache
def trained(n_workers: int, *arguments: str, same: bool = True) -> dict:
    """The JSON line of `mpips train` with these arguments.

    `same`: workers evaluate the values of the checkpoint, bit by bit, and not a copy that follows them.
    """
    argv = [
        sys.executable,
        "-m",
        "mpips",
        "train",
        *arguments,
        "--servers",
        "1",
        "--quiet",
        "--json",
    ]
    with (
        tempfile.TemporaryDirectory() as folder,
        launch(RANKS[n_workers], [*argv, "--save", folder], timeout=120.0) as job,
    ):
        assert job.wait() == 0, job.tail()
        found = json.loads(job.stdout().strip().splitlines()[-1])
        # The checkpoint alone predicts as the job did; a job file names its own data.
        given = dict(itertools.pairwise(arguments))
        test = given.get("--test", given.get("--train"))
        for name, value in mpips.load(folder).evaluate(test).items() if test else ():
            rounding = {"rel": 1e-6, "abs": 1e-6} if same else {"abs": 0.01}
            assert found[name] == pytest.approx(value, **rounding), name
        return found


def files(name: str) -> tuple[str, ...]:
    """Training and test file of a LIBSVM data set."""
    train, test = DATA / f"{name}.train.svm", DATA / f"{name}.test.svm"
    return ("--train", str(train), "--test", str(test))


MODELS = {
    "bsp": ("--set", "table.consistency=bsp"),
    "ssp": ("--set", "table.consistency=ssp", "--set", "table.bound=2"),
    "asp": ("--set", "table.consistency=asp"),
}


@pytest.mark.long
def test_mlp_reads_digits() -> None:
    found = trained(3, "mlp", "--train", "digits")
    assert found["accuracy"] >= 0.96
    assert found["updates_pushed"] == found["updates_applied"] > 0
    assert found["transports"] == {"shm": 3}


@pytest.mark.parametrize("n_workers", [pytest.param(1, marks=pytest.mark.long), 3])
def test_deepfm_learns_from_click_logs_that_are_read_in_windows(
    n_workers: int, tmp_path: Path
) -> None:
    rows = click_lines(2400)
    days = [tmp_path / name for name in ("day_0.gz", "day_1", "day_2")]
    for i, day in enumerate(days):
        write_clicks(day, rows[800 * i : 800 * (i + 1)])
    data = ("--train", str(days[0]), "--train", str(days[1]), "--test", str(days[2]))
    options = ("--epochs", "4", "--set", "data.memory_mib=0.2")
    found = trained(n_workers, "deepfm", *data, *options)
    assert found["n_samples"] == 1600
    assert found["samples"] == 4 * 1600
    assert found["auc"] >= 0.85


def test_mlp_reads_digits_with_an_outer_step_every_eight_steps() -> None:
    bsp = trained(3, "mlp", "--train", "digits")
    settings = ("table.consistency=diloco", "table.steps=8", "table.compression=int8")
    found = trained(3, "mlp", "--train", "digits", *(a for s in settings for a in ("--set", s)))
    assert bsp["accuracy"] >= 0.96
    assert bsp["updates_pushed"] == bsp["updates_applied"] > 0
    assert bsp["transports"] == {"shm": 3}
    assert found["accuracy"] >= bsp["accuracy"] - 0.01
    assert 7 < bsp["updates_pushed"] / found["updates_pushed"] <= 8
    assert found["steps"] == bsp["steps"]


@pytest.mark.long
def test_codecs_with_a_residual_learn_the_digits_as_float32_does() -> None:
    sgd = ("--set", "table.optimizer={name='sgd',lr=0.5}", "--set", "cluster.seed=1")
    plain = trained(3, "softmax", "--train", "digits", *sgd, *MODELS["bsp"])
    assert plain["accuracy"] >= 0.96
    for codec in ("onebit", "{name='topk',fraction=0.01}", "shared_int8"):
        more = ("--set", f"table.compression={codec}")
        found = trained(3, "softmax", "--train", "digits", *sgd, *MODELS["bsp"], *more)
        assert abs(found["accuracy"] - plain["accuracy"]) <= 0.005, codec
        assert found["cross_entropy"] != plain["cross_entropy"]


@pytest.mark.long
def test_pulls_and_pushes_of_one_bit_learn_the_digits_as_float32_does() -> None:
    """Workers evaluate the copy that they share; the checkpoint has the values, which are near."""
    sgd = ("--set", "table.optimizer={name='sgd',lr=0.5}", "--set", "cluster.seed=1")
    plain = trained(3, "softmax", "--train", "digits", *sgd, *MODELS["bsp"])
    both = ("table.compression=onebit", "table.pull_compression=onebit")
    given = (*sgd, *MODELS["bsp"], *(word for s in both for word in ("--set", s)))
    found = trained(3, "softmax", "--train", "digits", *given, same=False)
    assert abs(found["accuracy"] - plain["accuracy"]) <= 0.005
    assert found["cross_entropy"] != plain["cross_entropy"]


@pytest.mark.long
@needs_data
def test_logistic_tells_mushrooms_apart() -> None:
    assert trained(3, "logistic", *files("agaricus"))["auc"] >= 0.9999


# All pairs of task, model and number of workers; BSP on three workers for both tasks.
@needs_data
@pytest.mark.parametrize(
    ("task", "model", "n_workers"),
    [
        pytest.param("logistic", "bsp", 3, marks=pytest.mark.long),
        ("logistic", "ssp", 3),
        pytest.param("logistic", "asp", 1, marks=pytest.mark.long),
        pytest.param("fm", "bsp", 1, marks=pytest.mark.long),
        pytest.param("fm", "bsp", 3, marks=pytest.mark.long),
        pytest.param("fm", "ssp", 1, marks=pytest.mark.long),
        ("fm", "asp", 3),
    ],
)
def test_w6a_is_learned_under_every_consistency(task: str, model: str, n_workers: int) -> None:
    found = trained(n_workers, task, *files("w6a"), *MODELS[model])
    alone = trained(1, task, *files("w6a"), *MODELS["bsp"])
    assert abs(found["auc"] - alone["auc"]) <= 0.005
    assert found["updates_pushed"] == found["updates_applied"] > 0
    assert sum(found["staleness"]) == found["updates_applied"]
    # Every sample of every epoch once, whatever the number of workers.
    assert found["samples"] == alone["samples"]
    if model == "bsp":
        assert found["auc"] >= 0.985
        assert found["staleness"] == [found["updates_applied"]]
        assert task == "fm" or found["log_loss"] <= 0.034


@pytest.mark.long
@needs_data
@pytest.mark.parametrize(
    ("task", "model"), [("wide_deep", "bsp"), ("deepfm", "ssp"), ("dcnv2", "asp")]
)
def test_columns_of_text_and_numbers_are_learned_by_three_workers(task: str, model: str) -> None:
    train, test = DATA / "bank.train.csv", DATA / "bank.valid.csv"
    found = trained(3, task, "--train", str(train), "--test", str(test), *MODELS[model])
    # scikit-learn's HistGradientBoosting: 0.926, 0.207; logistic regression: 0.894, 0.250.
    assert found["auc"] >= 0.922
    assert found["log_loss"] <= 0.214
    assert found["updates_pushed"] == found["updates_applied"] > 0


@pytest.mark.parametrize(
    ("task", "labels", "n_workers", "model"),
    [
        pytest.param("deepfm", "targets", 3, "asp", marks=pytest.mark.long),
        pytest.param("wide_deep", "targets", 1, "bsp", marks=pytest.mark.long),
        ("dcnv2", "classes", 3, "bsp"),
        ("wide_deep", "several", 3, "asp"),
        pytest.param("mlp", "several", 3, "bsp", marks=pytest.mark.long),
    ],
)
def test_generated_tables_are_learned_whatever_their_labels(
    task: str, labels: str, n_workers: int, model: str, tmp_path: Path
) -> None:
    """The models that drew the labels are known; scikit-learn's gradient boosting has RMSE 44."""
    text, write = task != "mlp", several_csv if labels == "several" else labelled_csv
    kind = (labels,) if write is labelled_csv else ()
    for name, n, seed in (("train.csv", 4000, 1), ("test.csv", 1000, 2)):
        write(tmp_path / name, n, seed, *kind, text)
    files = ("--train", str(tmp_path / "train.csv"), "--test", str(tmp_path / "test.csv"))
    option = 'data.label=["a","b","rare"]' if labels == "several" else f"options.labels={labels}"
    found = trained(n_workers, task, *files, "--set", option, "--epochs", "12", *MODELS[model])
    assert found["updates_pushed"] == found["updates_applied"] > 0
    assert found["samples"] == 12 * 4000
    if labels == "targets":
        assert found["rmse"] < 75  # the noise is 30, the deviation of the targets 661
    elif labels == "classes":
        assert found["accuracy"] > 0.96
        assert found["cross_entropy"] < 0.1
    else:
        # The model that drew the labels has 0.264, and 0.376 without a column of text.
        assert found["log_loss"] < (0.264 if text else 0.376) + 0.02
        assert found["mean_auc"] > (0.85 if text else 0.8)


@pytest.mark.long
@pytest.mark.parametrize(("n_workers", "model"), [(1, "ssp"), (3, "bsp")])
def test_lists_of_labels_are_learned(n_workers: int, model: str, tmp_path: Path) -> None:
    """As the same labels in columns; one label is in the share of one worker only."""
    train = several_svm(tmp_path / "train.svm", 4000, 1)
    with train.open("a") as file:
        file.write("77 1:1.5 3:20\n")
    test = several_svm(tmp_path / "test.svm", 1000, 2)
    files = ("--train", str(train), "--test", str(test), "--set", "options.labels=several")
    found = trained(n_workers, "mlp", *files, "--epochs", "12", *MODELS[model])
    assert found["updates_pushed"] == found["updates_applied"] > 0
    assert found["samples"] == 12 * 4001
    # The log-loss is a mean over the labels, and that of label 77, which no test sample has, is near 0.
    assert found["log_loss"] < (0.376 + 0.02) * 3 / 4 + 0.01
    assert found["micro_f1"] > 0.6


@needs_data
@pytest.mark.parametrize("model", ["bsp", pytest.param("asp", marks=pytest.mark.long)])
def test_a_knowledge_graph_is_learned_by_three_workers(model: str) -> None:
    train, valid, test = (
        DATA / "kg" / f"codex-s.{part}.txt" for part in ("train", "valid", "test")
    )
    few = ("--epochs", "5", "--set", "options.dim=128", "--set", f'options.known=["{valid}"]')
    found = trained(3, "kge", "--train", str(train), "--test", str(test), *few, *MODELS[model])
    # 0.46 after 40 epochs with the default dim; see docs/howto/graphs.md.
    assert found["mrr"] >= 0.37
    assert found["updates_pushed"] == found["updates_applied"] > 0
    assert found["samples"] == 5 * 32_888


@pytest.mark.parametrize(
    ("implicit", "model"),
    [
        pytest.param("false", "bsp", marks=pytest.mark.long),
        pytest.param("false", "asp", marks=pytest.mark.long),
        ("true", "ssp"),
    ],
)
def test_generated_ratings_are_learned_by_three_workers(
    implicit: str, model: str, tmp_path: Path
) -> None:
    draw = np.random.default_rng(1)
    users, items = draw.normal(size=(80, 2)), draw.normal(size=(50, 2))
    pairs = draw.permutation(80 * 50)[:3000]
    for name, part in (("train", pairs[:2400]), ("test", pairs[2400:])):
        u, i = part // 50, part % 50
        ratings = 3 + users[u, 0] + items[i, 0] + users[u, 1] * items[i, 1]
        rows = zip(u.tolist(), i.tolist(), ratings.tolist(), strict=True)
        (tmp_path / name).write_text("".join(f"u{a}::i{b}::{r}\n" for a, b, r in rows))
    files = ("--train", str(tmp_path / "train"), "--test", str(tmp_path / "test"))
    options = ["--set", f"options.implicit={implicit}", "--set", "options.dim=4"]
    if implicit == "true":
        options += ["--set", "options.least_rating=4"]
    else:
        options += ["--set", "options.l2=0.002", "--set", "options.learning_rate=0.2"]
    found = trained(3, "mf", *files, *options, "--batch-size", "32", *MODELS[model])
    assert found["updates_pushed"] == found["updates_applied"] > 0
    if implicit == "true":
        assert found["ndcg_at_10"] >= 0.3
    else:
        # The ratings have no noise; their standard deviation is 1.6.
        assert found["rmse"] <= 0.2


@needs_data
def test_a_job_file_trains_like_its_flags(tmp_path: Path) -> None:
    job = tmp_path / "job.toml"
    job.write_text(
        f'task = "logistic"\n[data]\ntrain = "{DATA / "agaricus.train.svm"}"\n'
        f'test = "{DATA / "agaricus.test.svm"}"\n[train]\nepochs = 3\neval_every = 1\n'
        '[table]\npartition = "frequency"\n'
    )
    found = trained(3, str(job))
    same = trained(3, "logistic", *files("agaricus"), "--set", "train.epochs=3")
    assert found["log_loss"] == same["log_loss"]
    assert [point["epoch"] for point in found["history"]] == [1, 2, 3]
    assert [point["loss"] for point in same["history"]] == [p["loss"] for p in found["history"]]
    assert found["history"][-1]["loss"] == found["loss"]
    assert all("auc" in point for point in found["history"])
    assert [("auc" in point) for point in same["history"]] == [False, False, True]

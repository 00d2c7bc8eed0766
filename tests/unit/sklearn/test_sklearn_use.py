"""What `mpips.sklearn` refuses, each in one sentence, and what it does in other processes and threads."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from script_rig import script_job

pytest.importorskip("sklearn", reason="scikit-learn is not installed")

import mpips
from mpips.errors import ConfigError
from mpips.sklearn import MpipsClassifier, MpipsRegressor

X, Y = np.eye(6, dtype=np.float32), np.arange(6) % 2


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"hidden": 5}, r"hidden = 5: must be a tuple of numbers of units, such as \(100,\)"),
        ({"hidden": (5, 0)}, r"hidden = \(5, 0\): must be a tuple"),
        ({"batch_size": 0}, r"MpipsClassifier: batch_size = 0: must be a whole number of 1 or"),
        ({"max_iter": 2.5}, r"max_iter = 2.5: must be a whole number"),
        ({"n_iter_no_change": True}, r"n_iter_no_change = True: must be a whole number"),
        ({"alpha": -1.0}, r"alpha = -1.0: must be a number of 0 or more"),
        ({"alpha": np.nan}, r"alpha = nan: must be a number of 0 or more"),
        ({"tol": -1e-4}, r"tol = -0.0001: must be a number of 0 or more, or None"),
        ({"learning_rate": 0}, r"learning_rate = 0: must be a number greater than 0, or None"),
        ({"learning_rate": 1e30}, r"MpipsClassifier: learning_rate: .*lr = 1e\+30"),
        (
            {"optimizer": "ftrl"},
            r"optimizer = 'ftrl': must be one of 'adam', 'adagrad', 'rmsprop', ",
        ),
        ({"optimizer": mpips.AdamW()}, r"optimizer = AdamW\(.*\): must be one of"),
        ({"optimizer": mpips.Adam}, r"optimizer = <class .*: must be one of"),
        ({"optimizer": mpips.SGD(0.1, weight_decay=0.1)}, r"must have no weight_decay; use alpha"),
        (
            {"optimizer": mpips.SGD(0.1), "learning_rate": 0.1},
            r"learning_rate = 0.1: must be None where the optimizer is a value",
        ),
        ({"consistency": "bps"}, r"MpipsClassifier: .*'bps'"),
        ({"consistency": 3}, r"consistency = 3: must be 'bsp', 'ssp', 'asp', 'auto', or a value"),
        ({"consistency": mpips.LocalSGD(4)}, r"must be 'bsp', 'ssp', 'asp', 'auto', or a value"),
        ({"consistency": mpips.BSP(backup=1)}, r"must have reduce = 'mean' and no backup workers"),
        ({"class_weight": "even"}, r"class_weight"),
    ],
)
def test_parameters_are_checked_by_fit(options: dict[str, Any], words: str) -> None:
    model = MpipsClassifier(**options)
    with pytest.raises(ValueError, match=words):
        model.fit(X, Y)
    assert not hasattr(model, "n_iter_")


def test_calls_of_partial_fit_that_do_not_fit_together() -> None:
    model = MpipsClassifier()
    with pytest.raises(ValueError, match=r"classes must be passed on the first call"):
        model.partial_fit(X, Y)
    with pytest.raises(ValueError, match=r"y has the label 1, which is not in classes"):
        model.partial_fit(X, Y, classes=[0, 2])
    model.partial_fit(X, Y, classes=[0, 1])
    with pytest.raises(ValueError, match=r"are not those of the first call"):
        model.partial_fit(X, Y, classes=[0, 1, 2])
    with pytest.raises(ValueError, match=r"y has the label 2, which"):
        model.partial_fit(X, Y + 2)
    model.set_params(hidden=(4,))
    with pytest.raises(
        ValueError, match=r"it has the widths \(6, 1\), and now they are \(6, 4, 1\)"
    ):
        model.partial_fit(X, Y)
    with pytest.raises(ValueError, match=r"'balanced' needs all samples"):
        MpipsClassifier(class_weight="balanced").partial_fit(X, Y, classes=[0, 1])
    regressor = MpipsRegressor().partial_fit(X, Y)
    with pytest.raises(ValueError, match=r"y has 2 targets, the model has 1"):
        regressor.partial_fit(X, np.stack([Y, Y], axis=1))


def test_numbers_that_are_too_large() -> None:
    with pytest.raises(ValueError, match=r"the loss is .* in epoch \d+ of the fit: scale the feat"):
        MpipsRegressor(optimizer="sgd", learning_rate=1e9).fit(X, Y)
    with pytest.raises(ValueError, match=r"y has numbers beyond float32"):
        MpipsRegressor().fit(X, Y * 1e60)


def test_one_class_is_refused() -> None:
    with pytest.raises(ValueError, match=r"needs samples of two classes or more; .* one class"):
        MpipsClassifier().fit(X, np.ones(6))


def test_a_launcher_without_init(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "4")
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "0")
    with pytest.raises(ConfigError, match=r"one of 4 ranks .*: call mpips.init\(\)"):
        MpipsClassifier().fit(X, Y)


def test_a_script_has_one_consistency() -> None:
    def script() -> None:
        with script_job():
            MpipsRegressor(max_iter=12, tol=None).fit(X, Y)
            MpipsRegressor(max_iter=12, tol=None, consistency=mpips.SSP(1)).fit(X, Y)

    with pytest.raises(
        ConfigError, match=r"consistency = SSP\(bound=1.*have BSP.*of its first fit"
    ):
        script()


def test_a_thread_trains_alone_and_is_refused_in_a_script() -> None:
    def fitted() -> Any:
        return MpipsRegressor(max_iter=12, tol=None, random_state=0).fit(X, Y).coef_

    with ThreadPoolExecutor(1) as pool:
        np.testing.assert_array_equal(pool.submit(fitted).result(), fitted())
        with script_job():
            with pytest.raises(ConfigError, match=r"fit was called in a thread of a script"):
                pool.submit(fitted).result()
            fitted()


def test_without_scikit_learn() -> None:
    code = "import sys; sys.modules['sklearn'] = None; import mpips.sklearn"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert "CapabilityError: mpips.sklearn needs scikit-learn" in done.stderr
    assert "pip install scikit-learn" in done.stderr


# The children of joblib train alone: forked ones, also of a script, and new processes (loky).
CHILDREN = """
import os, sys, warnings
import joblib, numpy as np
import mpips
from sklearn.model_selection import cross_val_score
from mpips.sklearn import MpipsClassifier

class Recording(MpipsClassifier):
    def score(self, X, y):
        assert "mpi4py" not in sys.modules
        return os.getpid() + super().score(X, y) / 4

def scores(**options):
    return cross_val_score(model, x, y, cv=2, **options)

if __name__ == "__main__":
    rng = np.random.default_rng(0)
    x = rng.normal(size=(80, 3)); y = x[:, 0] > 0
    model = Recording(max_iter=20, tol=None, random_state=0)
    wanted = scores() - os.getpid()
    os.environ["OMPI_COMM_WORLD_SIZE"] = "4"  # children of a rank inherit it
    found = [scores(n_jobs=2)]
    del os.environ["OMPI_COMM_WORLD_SIZE"]
    mpips.init(verbose=False)
    with joblib.parallel_config("multiprocessing"):
        found.append(scores(n_jobs=2))
    model.fit(x, y)
    with joblib.parallel_config("multiprocessing"):
        found.append(scores(n_jobs=2))
    for got in found:
        assert os.getpid() not in np.floor(got), got
        np.testing.assert_allclose(got % 1, wanted)
    np.testing.assert_allclose(scores() - os.getpid(), wanted)
    assert "mpi4py" not in sys.modules
    print("all alike")
"""


def test_no_process_loads_mpi_without_a_launcher(tmp_path: Any) -> None:
    program = tmp_path / "program.py"
    program.write_text(CHILDREN)
    done = subprocess.run(
        [sys.executable, str(program)], capture_output=True, text=True, timeout=100
    )
    assert done.stdout == "all alike\n", done.stderr
    assert done.returncode == 0

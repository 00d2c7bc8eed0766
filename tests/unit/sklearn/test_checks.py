"""The checks that scikit-learn has for every estimator."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("sklearn", reason="scikit-learn is not installed")

from sklearn.utils.estimator_checks import parametrize_with_checks

from mpips.sklearn import MpipsClassifier, MpipsRegressor

# A step is made on a batch. A sample of weight 0 has its place in a batch, and a sample of weight 2 one place
# and not two, so other samples make up the steps. scikit-learn excepts its own SGD and MLP estimators alike.
EXCEPTED = {
    "check_sample_weight_equivalence_on_dense_data": "a weight does not change the batches",
    "check_sample_weight_equivalence_on_sparse_data": "a weight does not change the batches",
}


def excepted(estimator: Any) -> dict[str, str]:
    return EXCEPTED


# So few epochs are enough for the scores that the checks require.
@pytest.mark.filterwarnings("ignore:max_iter = .* epochs")
@parametrize_with_checks(
    [
        MpipsClassifier(learning_rate=0.05, max_iter=60),
        MpipsRegressor(learning_rate=0.05, max_iter=60),
        MpipsClassifier((16,), max_iter=60, consistency="ssp"),
    ],
    expected_failed_checks=excepted,
)
def test_check_of_scikit_learn(estimator: Any, check: Any) -> None:
    check(estimator)

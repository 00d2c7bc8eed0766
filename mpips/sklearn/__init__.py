"""Estimators of scikit-learn whose `fit` trains on the parameter server: in one process, or on all ranks.

Open `estimator.py`, then `training.py`, which describes what a fit does with tables and clocks, and `job.py`
for the fits of a script on several ranks.
"""

try:
    import sklearn as _sklearn
except ImportError as error:
    from mpips.errors import CapabilityError

    raise CapabilityError(
        f"mpips.sklearn needs scikit-learn ({error}): pip install scikit-learn"
    ) from None

from mpips.session.versions import check_version

# The first version with validate_data and __sklearn_tags__.
check_version("scikit-learn", _sklearn.__version__, (1, 6), "mpips.sklearn")

from mpips.sklearn.classifier import MpipsClassifier  # noqa: E402
from mpips.sklearn.regressor import MpipsRegressor  # noqa: E402

__all__ = ["MpipsClassifier", "MpipsRegressor"]
